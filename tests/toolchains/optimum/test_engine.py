"""optimum as one more export strategy: without it the strategy says what brings it, with it the family's check judges its graphs too.

Most of it is tried with a stand-in that hands out graphs made here; the real toolchain is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import StageOutput
from handlers.families.base import Part
from handlers.families.seq2seq.ports import DECODER_WITH_PAST, FILES, ports
from handlers.graphs.comparison import GraphMismatchError
from handlers.onnx.export import stage
from handlers.onnx.export.failures.attempts import AllStrategiesFailedError
from handlers.onnx.options import OnnxOptions
from handlers.onnx.tracing import optimum as toolchain_engine
from handlers.onnx.tracing.strategies import STRATEGIES, named
from tests.onnx.conftest import Exported, Runner, make_context, prompts, silent, torch_logits
from tests.toolchains.conftest import calls, offered, stand_in

COPY = "shutil.copytree({folder!r}, options['target'], ignore=shutil.ignore_patterns('*.json'))"
Climb = Callable[..., StageOutput]


@pytest.fixture
def climb(monkeypatch: pytest.MonkeyPatch) -> Climb:
    """The strategies with optimum as the only one."""

    def run(context: StageContext) -> StageOutput:
        return stage.export(context, silent(), [named(STRATEGIES, "optimum")])

    return run


@pytest.fixture
def context(tmp_path: Path, million: Path) -> StageContext:
    """An attempt to export a Qwen3."""
    return make_context(tmp_path / "job", "onnx", {"merge": million}, million)


@pytest.fixture(scope="module")
def million_onnx(export: Callable[..., Exported], million: Path) -> Exported:
    """What our own exporter makes of it. Read only."""
    return export(million)


def turned(source: Path, target: Path, *, doubled: bool = False) -> Path:
    """A copy of an exported folder whose graph has its inputs and outputs the other way round, and with `doubled` other weights."""
    target.mkdir()
    model = onnx.load(source / "model.onnx")
    for weight in model.graph.initializer:
        if doubled and weight.data_type == TensorProto.FLOAT and len(weight.dims) == 2:
            weight.CopyFrom(onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(weight), weight.name))
    for values in (model.graph.input, model.graph.output):
        other = list(values)[::-1]
        del values[:]
        values.extend(other)
    onnx.save(model, target / "model.onnx")
    return target


def test_without_the_toolchain_the_way_names_the_command_that_brings_it(climb: Climb, context: StageContext) -> None:
    with pytest.raises(AllStrategiesFailedError) as caught:
        climb(context)
    (failure,) = caught.value.failures
    assert failure.diagnosis.code == "not-installed"
    assert "the toolchain optimum is not installed: ckptd toolchain install optimum" in failure.reason


@pytest.mark.slow
def test_its_graph_is_verified_and_has_our_order(climb: Climb, context: StageContext, million_onnx: Exported, tmp_path: Path) -> None:
    chain = stand_in(tmp_path / "chain", COPY.format(folder=str(turned(million_onnx.folder, tmp_path / "turned"))))
    output = climb(offered(context, chain))
    assert output.strategy == "optimum" and output.fallbacks == []
    assert (
        output.figures["inputs"] == million_onnx.output.figures["inputs"]
        and output.figures["outputs"] == million_onnx.output.figures["outputs"]
    )
    ((module, options),) = calls(chain)
    assert module == "handlers.toolchains.optimum_export"
    wanted = {"source": context.inputs["merge"], "task": "text-generation", "opset": "18", "cache": "1"}
    assert wanted.items() <= options.items()


@pytest.mark.slow
def test_a_graph_that_computes_something_else_is_refused(
    climb: Climb, context: StageContext, million_onnx: Exported, tmp_path: Path
) -> None:
    other = str(turned(million_onnx.folder, tmp_path / "other", doubled=True))
    with pytest.raises(AllStrategiesFailedError, match="logits differ from torch's") as caught:
        climb(offered(context, stand_in(tmp_path / "chain", COPY.format(folder=other))))
    assert caught.value.failures[0].diagnosis.code == "graph-differs"
    assert list(Path(context.staging).iterdir()) == []


def test_what_goes_wrong_inside_is_the_ways_failure(climb: Climb, context: StageContext, tmp_path: Path) -> None:
    with pytest.raises(AllStrategiesFailedError, match=r"optimum_export ended with exit code 1 and no answer: ValueError: no such model"):
        climb(offered(context, stand_in(tmp_path / "chain", "raise ValueError('no such model')")))


def graph(path: Path, inputs: dict[str, list[Any]], outputs: dict[str, list[Any]]) -> None:
    """A graph whose outputs are an input each, plus one."""
    values = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in one.items()] for one in (inputs, outputs)]
    nodes = [helper.make_node("Add", [name.replace("present", "past_key_values"), "one"], [name]) for name in outputs]
    body = helper.make_graph(nodes, "made", *values, [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])])
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def asked(role: str, context: StageContext, scratch: Path) -> Any:
    part = Part(role, FILES[role], ports(role, 1), None, ())  # type: ignore[arg-type]
    return toolchain_engine.graph_of(part, 18, context, Path("unused"), scratch)


def test_the_encoders_cache_which_a_later_step_does_not_change_is_handed_on(context: StageContext, tmp_path: Path) -> None:
    (tmp_path / "optimum").mkdir()
    signature = ports(DECODER_WITH_PAST, 1)
    own = {name: ["b", 2, "p", 4] for name in signature.inputs}
    outputs = {name: ["b", 2, "p", 4] for name in signature.outputs if ".decoder." in name}
    path = tmp_path / "optimum" / FILES[DECODER_WITH_PAST]
    graph(path, {**own, "logits_in": [1]}, outputs)
    with pytest.raises(GraphMismatchError, match=r"unexpected \['logits_in'\]"):
        asked(DECODER_WITH_PAST, context, tmp_path)
    graph(path, own, outputs)
    with pytest.raises(GraphMismatchError, match=r"missing \['logits'\], unexpected \[\]"):
        asked(DECODER_WITH_PAST, context, tmp_path)
    proto = onnx.load(path)
    proto.graph.node.append(helper.make_node("Add", ["input_ids", "one"], ["logits"]))
    proto.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", 2, "p", 4]))
    onnx.save(proto, path)
    model = asked(DECODER_WITH_PAST, context, tmp_path)
    assert tuple(value.name for value in model.graph.outputs) == signature.outputs
    assert tuple(value.name for value in model.graph.inputs) == signature.inputs
    handed = {str(node.outputs[0].name): node.inputs[0].name for node in model.graph if node.op_type == "Identity"}
    assert handed == {f"present.0.encoder.{kind}": f"past_key_values.0.encoder.{kind}" for kind in ("key", "value")}


def test_a_graph_that_was_not_made_is_named(context: StageContext, tmp_path: Path) -> None:
    (tmp_path / "optimum").mkdir()
    with pytest.raises(GraphMismatchError, match=r"optimum made nothing, and no encoder_model\.onnx"):
        asked("encoder", context, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cache", [True, False])
def test_the_real_optimum_gives_a_verified_qwen3(climb: Climb, optimum: Path, million: Path, tmp_path: Path, cache: bool) -> None:
    made_for = make_context(tmp_path / "job", "onnx", {"merge": million}, million)
    options = made_for.work.options(OnnxOptions).model_copy(update={"cache": cache})
    made_for = made_for.model_copy(update={"work": made_for.work.with_options(options)})
    output = climb(offered(made_for, optimum))
    assert output.strategy == "optimum" and output.figures["opset"] == 18 and output.figures["relative_error"] < 1e-4
    assert ("past_key_values.1.value" in output.figures["inputs"]) == cache
    if cache:
        ids, mask = prompts(2, 12, 3)
        kept = mask[..., None].astype(bool)
        found = Runner(Path(made_for.staging)).logits(ids, mask, (7, 1, 4))
        np.testing.assert_allclose(np.where(kept, found, 0), np.where(kept, torch_logits(million, ids, mask), 0), atol=2e-4)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_optimum_gives_a_verified_encoder_decoder(climb: Climb, optimum: Path, marian: Path, tmp_path: Path) -> None:
    made_for = make_context(tmp_path / "job", "onnx", {"merge": marian}, marian, opset=21)
    output = climb(offered(made_for, optimum))
    assert set(output.figures["graphs"]) == {"encoder", "decoder", "decoder_with_past", "decoder_merged"}
    assert [(one.wanted, one.taken) for one in output.fallbacks] == [("opset 21", "opset 20")]
    assert output.figures["relative_error"] < 1e-4
