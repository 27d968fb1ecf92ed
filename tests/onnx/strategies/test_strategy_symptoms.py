"""Errors that the exporters really raise are told apart, and each leads to the ways that help against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from daemon.contract.faults.errors import Retryable
from handlers.families.base import Part
from handlers.graphs import graph_file
from handlers.graphs.comparison import GraphMismatchError
from handlers.onnx.export.building import OpsetMismatchError
from handlers.onnx.export.failures.attempts import AllStrategiesFailedError, try_strategies
from handlers.onnx.export.failures.diagnosis import SYMPTOMS, diagnose
from handlers.onnx.tracing.exporters import Exporter, NotInstalledError, Request, dynamo, legacy, optimum
from handlers.onnx.tracing.strategies import STRATEGIES, Strategy

TABLE = {strategy.name: strategy for strategy in STRATEGIES}


@dataclass(frozen=True)
class Plain:
    inputs: tuple[str, ...] = ("x",)
    outputs: tuple[str, ...] = ("y",)
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=lambda: {"x": {0: "batch", 1: "sequence"}, "y": {0: "batch"}})


class Module(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.scale = torch.nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.function(tensors[0]) * self.scale,)


def exported(exporter: Exporter, function: Callable[[torch.Tensor], torch.Tensor], scratch: Path, opset: int = 18) -> ir.Model:
    part = Part("model", "model.onnx", Plain(), Module(function).eval(), (torch.rand(2, 3, 4),))
    return exporter(Request(part, opset, scratch))


def branches_on_data(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def fixes_an_axis(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(3)[None, :, None]


# R7.1
@pytest.mark.parametrize(
    ("exporter", "function", "opset", "code"),
    [
        (dynamo, branches_on_data, 18, "data-dependent"),
        (dynamo, torch.special.bessel_j0, 18, "unsupported-operator"),
        (legacy, torch.special.bessel_j0, 18, "unsupported-operator"),
        (dynamo, fixes_an_axis, 18, "axis-specialized"),
        (legacy, torch.relu, 99, "opset-unknown"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_the_exporters_really_raise_is_understood(
    tmp_path: Path, exporter: Exporter, function: Callable[[torch.Tensor], torch.Tensor], opset: int, code: str
) -> None:
    with pytest.raises(Exception) as caught:
        exported(exporter, function, tmp_path, opset)
    diagnosis = diagnose(caught.value)
    assert diagnosis.code == code and diagnosis.then and diagnosis.manual


# R7.4
@pytest.mark.filterwarnings("ignore")
def test_an_opset_that_does_not_exist_is_not_what_the_newer_exporter_writes(tmp_path: Path) -> None:
    assert graph_file.opset(exported(dynamo, torch.relu, tmp_path, 99)) != 99
    assert diagnose(OpsetMismatchError("the exporter wrote opset 18 where 99 was asked for")).code == "opset-other"


def test_the_allocators_own_message_means_that_memory_ran_out() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 48)
    assert diagnose(caught.value).code == "out-of-memory"
    assert diagnose(MemoryError()).code == "out-of-memory"


def test_a_message_too_long_for_protobuf_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx
    from google.protobuf.message import EncodeError

    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 10)
    with pytest.raises(ValueError, match="protobuf") as caught:
        onnx.checker.check_model(onnx.helper.make_model(onnx.helper.make_graph([], "large", [], [])))
    assert diagnose(caught.value).code == "protobuf-limit"
    assert diagnose(EncodeError("Failed to serialize proto")).code == "protobuf-limit"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("invalid unordered_map<K, T> key"), "tracer-map"),
        (RuntimeError("_Map_base::at"), "tracer-map"),
        (GraphMismatchError("axis 0 of input_ids is 2, not batch"), "axis-specialized"),
        (GraphMismatchError("the graph's inputs differ from those asked for: missing ['attention_mask'], unexpected []"), "names-missing"),
        (GraphMismatchError("onnxruntime does not take the graph: [ONNXRuntimeError]"), "invalid-graph"),
        (GraphMismatchError("the graph's logits differ from torch's by 0.5 of the largest value"), "graph-differs"),
        (ValueError("XForCausalLM does not support an attention implementation through sdpa"), "attention-unavailable"),
        (NotInstalledError("optimum is not installed"), "not-installed"),
        (RuntimeError("something new"), "unknown"),
    ],
)
def test_messages_are_told_apart(error: Exception, code: str) -> None:
    assert diagnose(error).code == code


def test_the_cause_below_pages_of_advice_is_found() -> None:
    try:
        try:
            raise RuntimeError("unordered_map::at")
        except RuntimeError as cause:
            raise ValueError("Failed to export the model. Next steps: read the manual") from cause
    except ValueError as error:
        assert diagnose(error).code == "tracer-map"


def test_every_symptom_names_strategies_that_exist() -> None:
    assert {name for symptom in SYMPTOMS for name in symptom.diagnosis.then or ()} <= TABLE.keys()


def rows(*names: str) -> list[Strategy]:
    return [TABLE[name] for name in names]


def fails_with(errors: Mapping[str, Exception]) -> tuple[Callable[[Strategy], str], list[str]]:
    tried: list[str] = []

    def attempt(strategy: Strategy) -> str:
        tried.append(strategy.name)
        if strategy.name in errors:
            raise errors[strategy.name]
        return "made"

    return attempt, tried


def test_a_diagnosis_skips_what_cannot_help_and_chooses_the_order() -> None:
    attempt, tried = fails_with({"legacy-eager": RuntimeError("unordered_map::at")})
    climbed = try_strategies(
        rows("legacy-eager", "dynamo-opset", "dynamo-sdpa", "legacy-rewritten"), attempt, path="", on_failure=lambda _: None
    )
    assert climbed.strategy.name == "legacy-rewritten" and tried == ["legacy-eager", "legacy-rewritten"]
    (failure,) = climbed.failures
    assert (failure.strategy, failure.diagnosis.code) == ("legacy-eager", "tracer-map")


def test_an_unknown_error_leaves_the_default_order() -> None:
    attempt, tried = fails_with({"dynamo-eager": RuntimeError("new"), "dynamo-sdpa": RuntimeError("new")})
    try_strategies(rows("dynamo-eager", "dynamo-sdpa", "dynamo-opset", "legacy-eager"), attempt, path="", on_failure=lambda _: None)
    assert tried == ["dynamo-eager", "dynamo-sdpa", "dynamo-opset"]


def test_a_later_diagnosis_comes_before_an_earlier_one() -> None:
    errors = {"dynamo-eager": GraphMismatchError("the graph's logits differ"), "dynamo-rewritten": OpsetMismatchError("wrote opset 18")}
    attempt, tried = fails_with(errors)
    try_strategies(rows("dynamo-eager", "dynamo-rewritten", "dynamo-sdpa", "dynamo-opset"), attempt, path="", on_failure=lambda _: None)
    assert tried == ["dynamo-eager", "dynamo-rewritten", "dynamo-opset"]


def test_what_is_not_installed_is_said_and_changes_nothing() -> None:
    attempt, tried = fails_with({"optimum": NotInstalledError("optimum is not installed")})
    climbed = try_strategies(rows("optimum", "layers"), attempt, path="", on_failure=lambda _: None)
    assert tried == ["optimum", "layers"] and climbed.failures[0].reason == "NotInstalledError: optimum is not installed"
    with pytest.raises(NotInstalledError, match="optimum is not installed"):
        exported(optimum, torch.relu, Path())


def test_want_of_memory_tries_what_needs_less_and_then_waits() -> None:
    attempt, tried = fails_with({"dynamo-eager": MemoryError(), "layers": NotInstalledError("set onnx.layers_per_graph")})
    with pytest.raises(Retryable) as caught:
        try_strategies(rows("dynamo-eager", "dynamo-sdpa", "legacy-eager", "layers"), attempt, path="", on_failure=lambda _: None)
    assert tried == ["dynamo-eager", "layers"]
    assert caught.value.fault.code == "out-of-memory"


def test_all_that_failed_is_in_the_error() -> None:
    attempt, _ = fails_with({name: RuntimeError(f"{name} broke") for name in TABLE})
    with pytest.raises(AllStrategiesFailedError) as caught:
        try_strategies(rows("dynamo-eager", "legacy-eager"), attempt, path="", on_failure=lambda _: None)
    assert [failure.strategy for failure in caught.value.failures] == ["dynamo-eager", "legacy-eager"]
    assert 'dynamo-eager: it says "dynamo-eager broke"; legacy-eager' in str(caught.value)
