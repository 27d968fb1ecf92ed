"""A chain of graphs comes of a template too: a few of its blocks are traced, and the graphs are those of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.tape import Tape

from daemon.contract.formats.stages import LAYER_BY_LAYER
from handlers.families.chain.family import Layered
from handlers.graphs import graphset
from handlers.onnx.export import templated
from handlers.onnx.templates import blocks
from handlers.onnx.templates.blocks import Blocks
from handlers.onnx.templates.repetition import NotRepeatableError, Stack
from handlers.onnx.templates.sources import Source
from tests.onnx import qwen
from tests.onnx.conftest import Exported, quantize
from tests.onnx.layers.deep_models import canonical, job, make, run


@pytest.mark.parametrize(
    ("kinds", "per_graph", "kept"),
    [
        ((0,) * 28, 4, (0, 1, 2, 3, 4, 5, 6, 7)), ((0,) * 9, 2, (0, 1, 2, 3, 8)), ((0,) * 6, 2, ()), ((0,) * 7, 8, ()),
        ((0,) * 4, 1, (0, 1)),
        ((0, 1) * 8, 2, (0, 1, 2, 3)), ((0, 1) * 8, 1, (0, 1, 2, 3)), ((0, 0, 1) * 8, 4, ()),
        ((1,) + (0,) * 15, 2, (0, 1, 2, 3, 4, 5)), (tuple(range(9)), 2, ()),
    ],
)  # fmt: skip
def test_the_blocks_that_stand_for_all(kinds: tuple[int, ...], per_graph: int, kept: tuple[int, ...]) -> None:
    assert blocks.chosen(kinds, per_graph) == kept


@pytest.mark.parametrize(("kinds", "per_graph"), [((0,) * 28, 4), ((0,) * 9, 2), ((0, 1) * 9, 2), ((1,) + (0,) * 15, 2), ((0, 1) * 8, 1)])
def test_each_block_has_one_of_its_kind_in_the_stand_in(kinds: tuple[int, ...], per_graph: int) -> None:
    kept = blocks.chosen(kinds, per_graph)
    found = Blocks(Stack("layers.", kinds, kept), per_graph)
    for number, stand in enumerate(found.stands):
        block, layers = kinds[number * per_graph :][:per_graph], kept[stand * per_graph :][:per_graph]
        assert block == tuple(kinds[layer] for layer in layers)
    repeated = {stand for stand in found.stands if found.stands.count(stand) > 1}
    assert {one for one, _ in found.alike} == repeated


Block = tuple[ir.Model, dict[str, Source]]


def block(first: int) -> Block:
    """A graph of two layers, of which the first in the stand-in is `first`: each multiplies by a weight, adds a constant, keeps a cache."""
    tape = Tape()
    states = ir.Value(name="hidden_states", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["batch", 4]))
    inputs, outputs, weights, sources = [states], list[ir.Value](), list[ir.Value](), dict[str, Source]()
    for layer in (first, first + 1):
        past = ir.Value(name=f"past_key_values.{layer}.key", type=states.type, shape=ir.Shape(["batch", 4]))
        weight = ir.Value(name=f"weight_{layer - first}", const_value=ir.tensor(np.full((4, 4), layer, np.float32)), type=states.type)
        three = ir.Value(name=f"three_{layer - first}", const_value=ir.tensor(np.array([3.0], np.float32)), type=states.type)
        sources[weight.name or ""] = Source((4, 4), f"layers.{layer}.weight")
        states = tape.op("Add", [tape.op("MatMul", [states, weight]), three])
        present = tape.op("Concat", [past, states], attributes={"axis": 0})
        present.name = f"present.{layer}.key"
        inputs.append(past)
        outputs.append(present)
        weights += [weight, three]
    states.name = "next_hidden_states"
    graph = ir.Graph(
        inputs, [states, *outputs], nodes=tape.nodes, initializers=weights, opset_imports={"": 18}, name="block"
    )  # fmt: skip
    return ir.Model(graph, ir_version=10), sources


def attribute(model: ir.Model, sources: dict[str, Source]) -> None:
    [node for node in model.graph if node.op_type == "Concat"][1].attributes["axis"] = ir.AttrInt64("axis", 1)


def constant(model: ir.Model, sources: dict[str, Source]) -> None:
    model.graph.initializers["three_1"].const_value = ir.tensor(np.array([4.0], np.float32))


def weight(model: ir.Model, sources: dict[str, Source]) -> None:
    sources["weight_0"], sources["weight_1"] = sources["weight_1"], sources["weight_0"]


def turned(model: ir.Model, sources: dict[str, Source]) -> None:
    sources["weight_1"] = Source((4, 4), sources["weight_1"].tensor, turned=True)


def unknown(model: ir.Model, sources: dict[str, Source]) -> None:
    del sources["weight_1"]


def order(model: ir.Model, sources: dict[str, Source]) -> None:
    node = next(node for node in model.graph if node.op_type == "Concat")
    one, other = node.inputs
    node.replace_input_with(0, other)
    node.replace_input_with(1, one)


def other_value(model: ir.Model, sources: dict[str, Source]) -> None:
    first, second = (node for node in model.graph if node.op_type == "Concat")
    second.replace_input_with(1, first.inputs[1])


def port(model: ir.Model, sources: dict[str, Source]) -> None:
    one, other = (value for value in model.graph.inputs if "past" in (value.name or ""))
    one.name, other.name = other.name, one.name


def outputs(model: ir.Model, sources: dict[str, Source]) -> None:
    model.graph.outputs[1], model.graph.outputs[2] = model.graph.outputs[2], model.graph.outputs[1]


def operator(model: ir.Model, sources: dict[str, Source]) -> None:
    next(node for node in model.graph if node.op_type == "Add").op_type = "Mul"


def branches(model: ir.Model, sources: dict[str, Source]) -> None:
    node = next(node for node in model.graph if node.op_type == "Add")
    node.attributes["then_branch"] = ir.AttrGraph("then_branch", ir.Graph([], [], nodes=[]))


CHANGES: list[Callable[[ir.Model, dict[str, Source]], None]] = [
    attribute, constant, weight, turned, unknown, order, other_value, port, outputs, operator, branches,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_two_blocks_are_alike_only_if_nothing_but_the_numbers_differs(change: Callable[[ir.Model, dict[str, Source]], None]) -> None:
    chain = Blocks(Stack("layers.", (0,) * 8, (0, 1, 2, 3)), 2)
    one, other = block(0), block(2)
    chain.check_alike([one, other])
    change(*other)
    with pytest.raises(NotRepeatableError):
        chain.check_alike([one, other])


def test_a_copied_block_reads_the_weights_and_caches_of_its_own_layers() -> None:
    chain = Blocks(Stack("layers.", (0,) * 8, (0, 1, 2, 3)), 2)
    model, sources = chain.copied(3, *block(0))
    assert [value.name for value in model.graph.inputs] == ["hidden_states", "past_key_values.6.key", "past_key_values.7.key"]
    assert [value.name for value in model.graph.outputs] == ["next_hidden_states", "present.6.key", "present.7.key"]
    assert [source.tensor for source in sources.values()] == ["layers.6.weight", "layers.7.weight"]


def template_of(exported: Exported) -> Any:
    """What the figures say of it."""
    return exported.output.figures["template"]


def assert_as_traced(filled: Exported, traced: Exported) -> None:
    """The same files, and graphs that compute the same in the same way."""
    assert sorted(path.name for path in filled.folder.iterdir()) == sorted(path.name for path in traced.folder.iterdir())
    assert graphset.read(filled.folder) == graphset.read(traced.folder)
    for path in traced.folder.glob("*.onnx"):
        assert canonical(filled.folder / path.name) == canonical(path), path.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "depth", "per_graph", "layers"),
    [
        ("Llama, tied, many tokens", 9, 2, [0, 1, 2, 3, 8]), ("Qwen2, windows in the upper layers", 14, 2, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("Qwen3-MoE, first layers dense", 10, 2, [0, 1, 2, 3, 4, 5]), ("Phi 3", 6, 1, [0, 1]),
    ],
)  # fmt: skip
def test_a_chain_is_filled_as_it_is_traced(name: str, depth: int, per_graph: int, layers: list[int], tmp_path: Path) -> None:
    changed: dict[str, Any] = {"num_hidden_layers": depth}
    first = run(job(tmp_path / "first", make(tmp_path / "a", name, **changed), layers_per_graph=per_graph))
    source = make(tmp_path / "b", name, seed=5, **changed)
    filled = run(job(tmp_path / "second", source, tmp_path / "first" / "cache", layers_per_graph=per_graph))
    assert (template_of(first)["used"], template_of(filled)["used"]) == ("made", "kept")
    assert template_of(first)["layers"] == layers and float(str(filled.output.figures["relative_error"])) < 2e-5
    traced = run(job(tmp_path / "traced", source, layers_per_graph=per_graph, templates=False))
    assert_as_traced(filled, traced)


@pytest.mark.slow
def test_a_chain_of_a_large_model_never_holds_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(tmp_path / "model", "Qwen3", num_hidden_layers=8, tie_word_embeddings=True)
    whole = run(job(tmp_path / "whole", source, layers_per_graph=2))
    monkeypatch.setattr(templated, "SMALL", 0)
    loaded: list[Path] = []
    load = Layered.load
    monkeypatch.setattr(Layered, "load", lambda self, path, tracing: loaded.append(path) or load(self, path, tracing))
    context = job(tmp_path / "layers", source, layers_per_graph=2, optimize="all").model_copy(update={"strategy": LAYER_BY_LAYER})
    exported = run(context)
    assert template_of(exported)["used"] == "made" and source not in loaded
    assert [one.role for one in graphset.read(exported.folder).graphs] == [one.role for one in graphset.read(whole.folder).graphs]
    assert graphset.read(exported.folder).extra["tied_head"] is True
    qwen.assert_equal_to_torch(source, exported.folder)
    smaller = quantize(exported.folder, tmp_path / "int8").folder
    assert graphset.read(smaller).size(smaller) < 0.6 * graphset.read(exported.folder).size(exported.folder)


@pytest.mark.slow
def test_blocks_that_are_unlike_are_all_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise NotRepeatableError("two blocks of the same kind have other outputs")

    monkeypatch.setattr(Blocks, "check_alike", refuse)
    found = run(job(tmp_path / "job", make(tmp_path / "model", "Llama", num_hidden_layers=8), layers_per_graph=2))
    assert template_of(found)["layers"] == [] and "other outputs" in template_of(found)["whole"]
