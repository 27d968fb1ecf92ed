"""The attention of a decoder in one operator: equal to what was traced, its cache stays in its buffer, and it can be undone."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.tape import Tape

from handlers.graphs.attention import finding, fusing, rotation, shared_buffers
from handlers.graphs.attention.finding import find_all
from handlers.graphs.attention.fusing import OPERATOR, fuse, shares_buffers, spell_out
from handlers.graphs.attention.reading import OtherFormError
from handlers.graphs.attention.sizes import Sizes
from handlers.graphs.graphset import read
from handlers.graphs.sessions import check_form, open_session
from handlers.onnx.optimize.judging.equivalence import difference
from handlers.onnx.optimize.judging.random_inputs import Maker
from handlers.onnx.optimize.judging.timing import Race
from handlers.onnx.optimize.step import StepReport
from handlers.onnx.optimize.steps import CACHED_ATTENTION
from handlers.onnx.quantize import fp16, int8
from handlers.web import layout
from tests.onnx.conftest import Exported, make_context, silent
from tests.onnx.layers.deep_models import MODELS, job, make, run
from tests.onnx.optimize import optimizing
from tests.onnx.optimize.optimizing import EQUAL, copied, of
from tests.sampling import some

DECODERS = [name for name, (_, kind, _) in MODELS.items() if kind.endswith(("ForCausalLM", "LMHeadModel"))]
NOT_FUSED = {"GPT-OSS"}
"""Decoders whose attention the operator does not compute as they do, or is not known: sinks beside the tokens."""
QUICK = ("Qwen3", "GPT-2", "Gemma 2")


pytestmark = pytest.mark.usefixtures("equally_fast")


def proof(traced: Exported, folder: Path, race: Race = EQUAL) -> StepReport:
    """What comes of trying the operator on a traced graph."""
    optimized = optimizing.run(copied(traced, folder), "basic", race=race, steps=(), trials=(CACHED_ATTENTION,))
    return of(optimized, CACHED_ATTENTION.name)


@pytest.mark.parametrize(("after", "good"), [(1.05, True), (1.2, False)])
def test_it_may_be_a_little_slower_on_a_short_past(qwen3: Exported, tmp_path: Path, after: float, good: bool) -> None:
    assert proof(qwen3, tmp_path, Race(1.0, after, "slower")).good == good


def operators(model: ir.Model) -> list[str]:
    """Of all nodes."""
    return [node.op_type for node in model.graph.all_nodes()]


def fused(folder: Path) -> Path:
    """The graph of a folder with fused attention, beside it."""
    model, path = fuse(ir.load(folder / "model.onnx")), folder / "fused.onnx"
    assert shares_buffers(model)
    ir.save(model, path)
    check_form(path)
    return path


def in_int8(folder: Path, job_folder: Path, optimize: str = "auto") -> Path:
    """What the stage onnx-int8 makes of an exported folder."""
    context = make_context(job_folder, "onnx-int8", {"onnx": folder}, folder, optimize=optimize)
    int8.run(context, silent())
    return Path(context.staging)


def assert_equal(folder: Path, path: Path, *, buffers: bool) -> None:
    """A graph gives what the folder's gives, for all shapes; with `buffers`, where it may, also with past and present in one buffer."""
    graph = read(folder).graphs[0]
    before, after = open_session(folder / graph.file, 1), open_session(path, 1)
    shapes = set()
    for case in Maker(graph, json.loads((folder / "config.json").read_text())).cases():
        expected = before.run(None, case.feeds)
        difference(graph.outputs, expected, after.run(None, case.feeds), case)
        rows, tokens = case.feeds["input_ids"].shape
        past = case.feeds["attention_mask"].shape[1] - tokens
        if buffers and (rows == 1 or tokens == 1 or past == 0):
            difference(graph.outputs, expected, shared_buffers.run(after, case.feeds), case)
        shapes.add((rows > 1, tokens > 1, past > 0))
    assert shapes >= {(False, False, True), (True, False, True), (True, True, True), (True, True, False)}


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DECODERS])
def test_fused_attention_is_the_one_that_was_traced(name: str, two_layers: Callable[..., Exported], tmp_path: Path) -> None:
    folder = copied(two_layers(name), tmp_path)
    if name in NOT_FUSED:
        with pytest.raises(OtherFormError, match="layer 0"):
            fuse(ir.load(folder / "model.onnx"))
        return
    path = fused(folder)
    assert operators(ir.load(path)).count(OPERATOR) == 2
    assert_equal(folder, path, buffers=True)
    plain = spell_out(ir.load(path))
    assert OPERATOR not in operators(plain) and "If" not in operators(plain) and not shares_buffers(plain)
    ir.save(plain, folder / "plain.onnx")
    check_form(folder / "plain.onnx")
    assert_equal(folder, folder / "plain.onnx", buffers=False)


def test_heads_of_a_size_that_the_operator_does_not_take_stay_as_they_are(tmp_path: Path) -> None:
    source = make(tmp_path / "model", "Llama", num_hidden_layers=1, hidden_size=48)
    folder = run(job(tmp_path / "job", source, optimize="auto", templates=False)).folder
    with pytest.raises(OtherFormError, match="layer 0: its heads are of the size 12, which is no multiple of 8"):
        fuse(ir.load(folder / "model.onnx"))
    assert read(folder).extra == {}


@pytest.mark.parametrize("unknown", ["heads", "angles"])
def test_a_graph_of_which_something_is_not_known_is_not_left_half_changed(unknown: str, qwen3: Exported) -> None:
    """What is missed in the second layer must be missed before the first one is changed."""
    model = ir.load(qwen3.folder / "model.onnx")
    before, second = operators(model), find_all(model.graph)[1]
    if unknown == "heads":
        assert second.key.shape is not None
        second.key.shape = ir.Shape([None if place == 1 else size for place, size in enumerate(second.key.shape)])
        with pytest.raises(OtherFormError, match="layer 1: "):
            fuse(model)
        assert operators(model) == before
        return
    found = rotation.find(second.query)
    assert found is not None and found.cosine.shape is not None
    found.cosine.shape = ir.Shape([*found.cosine.shape[:2], None])
    assert operators(fuse(model)).count(OPERATOR) == 2, "it is turned by the standard's operators instead"


def test_a_graph_that_reads_a_present_itself_shares_no_buffers(qwen3: Exported) -> None:
    """Such as one whose later layers attend to the keys of an earlier one: it would read what is not filled yet."""
    model = fuse(ir.load(qwen3.folder / "model.onnx"))
    assert shares_buffers(model)
    present = next(value for value in model.graph.outputs if value.name == "present.0.key")
    reader = ir.node("Transpose", [present], {"perm": [0, 1, 3, 2]}, name="reader")
    model.graph.append(reader)
    assert not shares_buffers(model)


def test_the_cache_is_changed_where_it_is(qwen3: Exported, tmp_path: Path) -> None:
    session = open_session(fused(Path(shutil.copytree(qwen3.folder, tmp_path / "own"))), 1)  # other tests look at what is in it
    before = open_session(qwen3.folder / "model.onnx", 1)
    maker = Maker(read(qwen3.folder).graphs[0], json.loads((qwen3.folder / "config.json").read_text()))
    case = maker.speed()["decode"]
    names = [one.name for one in session.get_outputs()]
    for got, expected, name in zip(shared_buffers.run(session, case.feeds), before.run(None, case.feeds), names, strict=True):
        assert np.isfinite(got).all() and np.allclose(got, expected, atol=1e-4), name


def test_quantized_graphs_get_it_and_the_fp32_one_keeps_the_standard(qwen3_auto: Exported, tmp_path: Path) -> None:
    plain = qwen3_auto.folder
    assert OPERATOR not in operators(ir.load(plain / "model.onnx")) and read(plain).extra == {"cached_attention": ["model"]}
    made = in_int8(plain, tmp_path / "auto")
    assert OPERATOR in operators(ir.load(made / "model.onnx")) and read(made).extra == {"shared_cache": ["model"]}
    shared = generated(made)
    read(made).model_copy(update={"extra": {}}).write(made)
    assert shared == generated(made) and len(shared) > 4, "the example gives the same tokens with one buffer and without"
    (tmp_path / "page").mkdir()
    written = layout.write(made, read(made).graphs[0], tmp_path / "page", "").graph.file
    assert OPERATOR not in operators(ir.load(tmp_path / "page" / written)), "a page gets the standard's operators"
    made = in_int8(plain, tmp_path / "basic", optimize="basic")
    assert OPERATOR not in operators(ir.load(made / "model.onnx")) and read(made).extra == {}


def generated(folder: Path) -> list[int]:
    """The tokens that a folder's example gives."""
    example = runpy.run_path(str(folder / "example.py"))
    return list(example["generate"](example["Steps"](["model.onnx"], 16), [5, 9, 17, 40], 12))


def test_a_graph_that_is_not_equal_proves_nothing(qwen3: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = finding.find
    monkeypatch.setattr(finding, "find", lambda *given: replace(find(*given), scale=find(*given).scale * 1.01))
    report = proof(qwen3, tmp_path)
    assert not report.good and "differs by" in report.reason


def test_a_graph_that_reads_more_than_the_past_from_its_buffer_proves_nothing(
    qwen3: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The length of the past must not come from the buffer: with that left as it was, only steps in a longer buffer show it."""
    monkeypatch.setattr(fusing, "_measure_past", lambda *_: None)
    assert not proof(qwen3, tmp_path).good


def last_of_one_token(sizes: Sizes) -> ir.Value:
    """The number of the last token, as long as there is no past, or one new token on top of it."""
    tape = Tape(sizes.graph)
    first = tape.op("Sub", [sizes.tokens, sizes.constant(1)])
    last = tape.op("Where", [tape.op("Equal", [sizes.past, sizes.constant(0)]), first, sizes.past])
    return tape.op("Expand", [tape.op("Cast", [last], {"to": ir.DataType.INT32}), sizes.batch])


def few(sizes: Sizes) -> ir.Value:
    """Whether there is one row or one token: several rows that begin are left to the standard's operators, which take the buffer for the
    past."""
    tape, one = Tape(sizes.graph), sizes.constant(1)
    return tape.op("Squeeze", [tape.op("Or", [tape.op("Equal", [size, one]) for size in (sizes.batch, sizes.tokens)])])


@pytest.mark.parametrize(("wrong", "name"), [(last_of_one_token, "last"), (few, "one_by_one")])
def test_a_graph_that_is_wrong_in_one_kind_of_step_proves_nothing(
    wrong: Callable[[Sizes], ir.Value], name: str, qwen3: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A row that goes on by several tokens, in a model without windows; several rows that begin, in a longer buffer."""
    monkeypatch.setattr(Sizes, name, property(wrong))
    assert not proof(qwen3, tmp_path).good


@pytest.mark.parametrize(("name", "optimize"), some([("Qwen3", "extended"), ("Qwen3", "basic"), ("GPT-2", "extended")], of=3))
def test_a_template_of_few_layers_serves_all(name: str, optimize: str, tmp_path: Path) -> None:
    """Of GPT-2, a norm is fused with the addition before it, whose bias is a weight of the layer before."""
    depth = 5
    source = make(tmp_path / "model", name, num_hidden_layers=depth)
    exported = run(job(tmp_path / "job", source, optimize=optimize))
    model, template = ir.load(exported.folder / "model.onnx"), cast(dict[str, Any], exported.output.figures["template"])
    assert template["used"] == "made" and len(template["layers"]) < depth
    fused = optimize == "extended"
    assert operators(model).count(OPERATOR) == (depth if fused else 0)
    assert read(exported.folder).extra == ({"shared_cache": ["model"]} if fused else {})
    half = make_context(tmp_path / "half", "onnx-fp16", {"onnx": exported.folder}, source)
    fp16.run(half, silent())
    assert OPERATOR not in operators(ir.load(Path(half.staging) / "model.onnx"))


@pytest.mark.slow
def test_a_traced_graph_with_it_becomes_half_precision(tmp_path: Path) -> None:
    """What is spelt out again has to come before what reads it."""
    source = make(tmp_path / "model", "Llama", num_hidden_layers=3)
    folder = run(job(tmp_path / "job", source, optimize="extended", templates=False)).folder
    assert OPERATOR in operators(ir.load(folder / "model.onnx"))
    half = make_context(tmp_path / "half", "onnx-fp16", {"onnx": folder}, source)
    fp16.run(half, silent())
    check_form(Path(half.staging) / "model.onnx")
    assert OPERATOR not in operators(ir.load(Path(half.staging) / "model.onnx"))
