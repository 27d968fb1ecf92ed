"""When a way to export fails the next is taken and said; when all fail the error names each of them."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import onnx_ir as ir
import pytest

from daemon.contract.faults.errors import Permanent
from handlers.onnx.export import stage
from handlers.onnx.export.failures.attempts import first_line
from handlers.onnx.tracing.exporters import Request, dynamo, legacy
from handlers.onnx.tracing.strategies import STRATEGIES, Strategy
from tests.onnx.conftest import SMALL, Exported, make_context, make_model, silent
from tests.onnx.test_export import assert_equal_to_torch

LEGACY = next(strategy for strategy in STRATEGIES if strategy.name == "legacy-eager")


def refuses(request: Request) -> ir.Model:
    raise RuntimeError("invalid unordered_map<K, T> key\nand many more lines")


def forgets_the_mask(request: Request) -> ir.Model:
    """A graph that looks right and ignores its mask: what an exporter makes of a mask that it took for a constant."""
    model = legacy(request)
    mask = model.graph.inputs[1]
    ones = ir.Value(name="ones", const_value=ir.tensor([[1]], dtype=ir.DataType.INT64), shape=ir.Shape([1, 1]), type=mask.type)
    zeros = ir.Value(name="zeros", const_value=ir.tensor([[0]], dtype=ir.DataType.INT64), shape=ir.Shape([1, 1]), type=mask.type)
    model.graph.register_initializer(ones)
    model.graph.register_initializer(zeros)
    blank = ir.node("Mul", [mask, zeros])
    filled = ir.node("Add", [blank.outputs[0], ones])
    for node, index in list(mask.uses()):
        node.replace_input_with(index, filled.outputs[0])
    blank.replace_input_with(0, mask)
    model.graph.insert_before(model.graph[0], [blank, filled])
    return model


def other_opset(request: Request) -> ir.Model:
    return legacy(dataclasses.replace(request, opset=17))


def export(pico_base: Path, folder: Path, *strategies: Strategy, opset: int = 18) -> Exported:
    context = make_context(folder, "onnx", {"merge": pico_base}, pico_base, opset=opset)
    return Exported(pico_base, Path(context.staging), stage.export(context, silent(), strategies))


# R7.1
def test_the_next_strategy_is_taken_and_recorded(pico_base: Path, tmp_path: Path) -> None:
    exported = export(pico_base, tmp_path, Strategy("first", refuses, "eager"), LEGACY)
    assert exported.output.strategy == "legacy-eager"
    (fallback,) = exported.output.fallbacks
    assert (fallback.wanted, fallback.taken) == ("first", "legacy-eager")
    assert fallback.reason == "first: RuntimeError: invalid unordered_map<K, T> key"
    assert_equal_to_torch(exported, 3, (6, 1, 1), 2)
    first, second = exported.output.figures["attempts"]
    assert {key: first[key] for key in ("strategy", "outcome", "code")} == {"strategy": "first", "outcome": "failed", "code": "tracer-map"}
    assert (second["strategy"], second["outcome"]) == ("legacy-eager", "succeeded") and second["seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (forgets_the_mask, "the graph's logits differ from torch's by"),
        pytest.param(other_opset, "the exporter wrote opset 17 where 18 was asked for", marks=pytest.mark.slow),
    ],
)
def test_a_graph_that_is_silently_wrong_counts_as_a_failure(pico_base: Path, tmp_path: Path, wrong: object, reason: str) -> None:
    exported = export(pico_base, tmp_path, Strategy("wrong", wrong, "eager"), LEGACY)  # type: ignore[arg-type]
    assert reason in exported.output.fallbacks[0].reason
    assert_equal_to_torch(exported, 3, (6, 1, 1), 2)


@pytest.mark.slow
def test_an_older_opset_than_asked_for_is_recorded(pico_base: Path, tmp_path: Path) -> None:
    exported = export(pico_base, tmp_path, LEGACY, opset=23)
    assert exported.output.figures["opset"] == 20
    (fallback,) = exported.output.fallbacks
    assert (fallback.wanted, fallback.taken) == ("opset 23", "opset 20")
    assert fallback.reason == "legacy-eager writes no newer one"


# R3.5, R7.5
def test_when_all_fail_the_error_names_each_strategy_and_nothing_is_left(pico_base: Path, tmp_path: Path) -> None:
    context = make_context(tmp_path, "onnx", {"merge": pico_base}, pico_base)
    strategies = (Strategy("legacy-sdpa", refuses, "eager"), Strategy("dynamo-eager", forgets_the_mask, "eager"))
    with pytest.raises(Permanent) as caught:
        stage.export(context, silent(), strategies)
    assert caught.value.fault.code == "export-failed"
    found = 'legacy-sdpa: it says "invalid unordered_map<K, T> key and many more lines"; dynamo-eager: the graph\'s logits differ'
    assert found in str(caught.value)
    assert list(Path(context.staging).iterdir()) == []


def test_a_full_disk_is_not_answered_by_another_strategy(pico_base: Path, tmp_path: Path) -> None:
    def fills_the_disk(request: Request) -> ir.Model:
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    with pytest.raises(OSError, match="No space left"):
        export(pico_base, tmp_path, Strategy("first", fills_the_disk, "eager"), LEGACY)


def test_an_error_is_told_by_its_root_and_first_line() -> None:
    try:
        try:
            raise KeyError("s10")
        except KeyError as cause:
            raise RuntimeError("pages of advice") from cause
    except RuntimeError as error:
        assert first_line(error) == "KeyError: 's10'"


def test_an_unknown_strategy_is_refused_with_the_known_ones(pico_base: Path, tmp_path: Path) -> None:
    context = make_context(tmp_path, "onnx", {"merge": pico_base}, pico_base, strategy="magic")
    with pytest.raises(Permanent, match="use one of dynamo-eager, dynamo-sdpa, dynamo-rewritten"):
        stage.run(context, silent())


@pytest.mark.parametrize(
    ("architecture", "named"),
    [("BertForPreTraining", "BertForPreTraining is not a model of a kind"), (None, "config.json names no architecture")],
)
def test_an_unsupported_architecture_is_named_with_what_still_works(
    pico_base: Path, tmp_path: Path, architecture: str | None, named: str
) -> None:
    import transformers

    folder = tmp_path / "bert"
    config = transformers.BertConfig(vocab_size=320, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    config.architectures = [architecture] if architecture else None
    config.save_pretrained(folder)
    with pytest.raises(Permanent) as caught:
        stage.run(make_context(tmp_path, "onnx", {"merge": folder}, pico_base), silent())
    assert caught.value.fault.code == "unsupported-architecture"
    assert named in str(caught.value) and "leave the variants that are made of graphs out of export.variants" in str(caught.value)


def test_a_model_without_a_cache_of_keys_and_values_is_unsupported(pico_base: Path, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "mamba", "Mamba", vocab_size=320, hidden_size=32, num_hidden_layers=1)
    with pytest.raises(Permanent, match="the model keeps no cache of keys and values"):
        stage.run(make_context(tmp_path, "onnx", {"merge": folder}, pico_base), silent())


def test_weights_that_are_missing_are_an_error_and_never_random(pico_base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_model(tmp_path / "llama", "Llama", **SMALL)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Permanent, match=r"for example model\.layers\.1\.mlp\.up_proj\.weight"):
        stage.run(make_context(tmp_path, "onnx", {"merge": folder}, pico_base), silent())


@pytest.mark.slow
def test_a_mixture_of_experts_takes_the_strategy_for_experts(pico_base: Path, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "moe", "Qwen3Moe", **SMALL, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    context = make_context(tmp_path, "onnx", {"merge": folder}, pico_base)
    experts = next(strategy for strategy in STRATEGIES if strategy.experts)
    exported = Exported(folder, Path(context.staging), stage.export(context, silent(), (Strategy("plain", dynamo, "eager"), experts)))
    assert exported.output.strategy == "dynamo-experts" and exported.output.fallbacks[0].wanted == "plain"
    assert_equal_to_torch(exported, 3, (6, 1, 1), 2)
