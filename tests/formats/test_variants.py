"""What the stages of formats say alike: a variant that can't be made, a form that is hardly smaller; and smaller forms of graphs."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.variants import NotPossible, not_possible, refusing, warn_of_little
from handlers.graphs import graphset, smaller
from handlers.graphs.graphset import Graph, GraphSet
from tests.onnx.conftest import make_context, silent


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    source = tmp_path / "source"
    source.mkdir()
    graph = Graph(role="model", file="model.bin", inputs=(), outputs=())
    GraphSet(task="feature-extraction", family="encoder", graphs=(graph,), dtype="float32", opset=0).write(source)
    (source / "model.bin").write_bytes(b"1234")
    (source / "config.json").write_text("{}")
    return make_context(tmp_path / "job", "litert-int8", {"litert": source}, source)


def test_a_library_that_gives_up_means_a_variant_that_can_not_be_made(context: StageContext) -> None:
    with pytest.raises(Permanent) as raised, refusing(context, "it gives up", "/a/model"):
        raise RuntimeError("no operator\n  Foo")
    fault = raised.value.fault
    assert fault == not_possible(context, "it gives up (RuntimeError: no operator Foo)", "/a/model").fault
    assert fault.code == FaultCode.FORM_NOT_POSSIBLE and fault.operation == "make the variant litert-int8"
    assert fault.remedy == "leave litert-int8 out of export.variants" and str(fault.path) == "/a/model"
    with pytest.raises(Permanent) as raised, refusing(context, "it gives up"):
        raise NotPossible("the whole reason")
    assert raised.value.fault.cause == "the whole reason"


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), MemoryError(), RuntimeError("std::bad_alloc"),
     Permanent(FaultCode.INVALID_GRAPH, "look", "it is wrong", "do not")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_of_the_machine_or_of_ours_stays_what_it_is(context: StageContext, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, refusing(context, "it gives up"):
        raise error
    assert raised.value is error


def test_a_form_that_is_hardly_smaller_is_worth_one_warning() -> None:
    assert warn_of_little(0.81, "tables") == []
    assert warn_of_little(0.8, "tables") == ["20% of the weights are left as they are, since they are tables"]
    assert warn_of_little(0.6, "tables", enough=0.5) == []


def test_a_smaller_form_has_each_graph_compressed_and_all_that_lies_beside_them(context: StageContext) -> None:
    def halve(source: Path, target: Path, graph: Graph) -> None:
        assert graph.role == "model"
        target.write_bytes(source.read_bytes()[::2])

    made = smaller.compressed(context, silent(), "litert", "int8", halve, "a quantizer")
    staging = Path(context.staging)
    assert made.dtype == "int8" and (staging / "model.bin").read_bytes() == b"13"
    assert json.loads((staging / "config.json").read_text()) == {} and not (staging / graphset.FILE).exists()
    figures = smaller.figures("int8", "numpy", {"int8": 3, "float32": 1}, {"int8", "int4"})
    assert figures == {"library": importlib.metadata.version("numpy"), "bits": 8, "small_share": 0.75}

    def refuse(source: Path, target: Path, graph: Graph) -> None:
        raise ValueError("no")

    with pytest.raises(Permanent, match=r"a quantizer does not compress it \(ValueError: no\)"):
        smaller.compressed(context, silent(), "litert", "int8", refuse, "a quantizer")
