"""A layer that differs anywhere from another one of its kind is never repeated: any one change in a traced graph is noticed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from handlers.graphs.weights.shared_weights import initializers
from handlers.onnx.templates import filling, layers, repetition, shallow
from handlers.onnx.templates.repetition import PORT, SHARED, NotRepeatableError, Stack
from handlers.onnx.templates.sources import Source
from handlers.onnx.templates.weights import Weights
from tests.onnx.layers.deep_models import job, make, run

CHANGES = 150
"""Of each graph."""
THREE_EACH = {
    "Llama": {"num_hidden_layers": 3}, "Marian": {"encoder_layers": 3, "decoder_layers": 3},
    "T5": {"num_layers": 3, "num_decoder_layers": 3}, "BERT": {"num_hidden_layers": 3},
}  # fmt: skip


@dataclass
class Subject:
    """A graph that may be changed."""

    model: ir.Model
    sources: dict[str, Source]
    draw: random.Random
    inside: frozenset[ir.Node] = frozenset()
    """Nodes of the second and the last layer, but not what follows the last one."""
    of_first: frozenset[ir.Value] = frozenset()
    """What the first layer computes."""

    def choose(self, stack: Stack) -> ir.Node:
        """One of these."""
        graph = repetition._Graph(self.model, self.sources, stack)
        after = set(repetition._Likenesses(graph).after)
        found = [node for layer in (1, 2) for node in graph.layers[layer] if node not in after]
        self.inside = frozenset(found)
        self.of_first = frozenset(value for node in graph.layers[0] for value in node.outputs)
        return self.draw.choice(found)


def attribute(subject: Subject, node: ir.Node) -> bool:
    numbers = [one for one in node.attributes.values() if one.type in (ir.AttributeType.INT, ir.AttributeType.FLOAT)]
    if not numbers:
        return False
    one = subject.draw.choice(numbers)
    node.attributes[one.name] = ir.AttrInt64(one.name, int(one.value) + 1) if one.type == ir.AttributeType.INT else ir.AttrFloat32(
        one.name, float(one.value) * 1.5 + 0.25
    )  # fmt: skip
    return True


def operator(subject: Subject, node: ir.Node) -> bool:
    node.op_type = f"{node.op_type}Other"
    return True


def constant(subject: Subject, node: ir.Node) -> bool:
    places = [
        place for place, value in enumerate(node.inputs)
        if value is not None and value.is_initializer() and value.name not in subject.sources and value.const_value is not None
    ]  # fmt: skip
    if not places:
        return False
    place = subject.draw.choice(places)
    old = node.inputs[place]
    assert old is not None and old.const_value is not None
    values = old.const_value.numpy()
    other = values + np.ones_like(values) if values.dtype != np.bool_ else ~values
    new = ir.Value(name=f"{old.name}.other", const_value=ir.tensor(other), type=old.type, shape=old.shape)
    subject.model.graph.register_initializer(new)
    node.replace_input_with(place, new)
    return True


def weight(subject: Subject, node: ir.Node) -> bool:
    names = [value.name or "" for value in node.inputs if value is not None and value.name in subject.sources]
    if not names:
        return False
    name = subject.draw.choice(names)
    old = subject.sources[name]
    tensor = subject.draw.choice([one for source in subject.sources.values() for one in source.tensors if one not in old.tensors])
    subject.sources[name] = old.renamed(lambda _: tensor)
    return True


def order(subject: Subject, node: ir.Node) -> bool:
    if len(node.inputs) < 2 or node.inputs[0] is node.inputs[1]:
        return False
    one, other = node.inputs[:2]
    node.replace_input_with(0, other)
    node.replace_input_with(1, one)
    return True


def other_value(subject: Subject, node: ir.Node) -> bool:
    """Takes what another node gives, or another layer's cache."""
    place = subject.draw.randrange(len(node.inputs))
    before = []
    for one in subject.model.graph:
        if one is node:
            break
        before += one.outputs
    old = node.inputs[place]
    found = [value for value in (*before, *subject.model.graph.inputs) if value is not old]
    if old in subject.of_first:  # which the second layer alone takes: it is copied for itself only, so this may be anything of the first
        found = [value for value in found if value not in subject.of_first]
    if old is None or not found:
        return False
    node.replace_input_with(place, subject.draw.choice(found))
    return True


def added(subject: Subject, node: ir.Node) -> bool:
    """One more operation behind it."""
    users = [(user, place) for user, place in node.outputs[0].uses()]
    inside = subject.inside
    if not any(user in inside for user, _ in users) or node.outputs[0].is_graph_output():  # it would follow the last layer
        return False
    new = ir.node("Abs", [node.outputs[0]])
    new.outputs[0].name = "added"
    subject.model.graph.insert_after(node, new)
    for user, place in users:
        user.replace_input_with(place, new.outputs[0])
    return True


CHANGE: tuple[Callable[[Subject, ir.Node], bool], ...] = (attribute, operator, constant, weight, order, other_value, added)


def digest(model: ir.Model, sources: Mapping[str, Source]) -> dict[ir.Value, object]:
    """Of each value, what it is computed of."""
    known: dict[ir.Value, object] = {}
    for value in initializers(model):
        tensor = value.const_value
        known[value] = sources.get(value.name or "", tensor.tobytes() if tensor is not None else None)
    for node in model.graph:
        inputs = tuple(known.get(value, value.name) if value is not None else None for value in node.inputs)
        for number, value in enumerate(node.outputs):
            known[value] = hash((node.op_type, repr(sorted(f"{one}" for one in node.attributes.values())), inputs, number))
    return known


def outputs(model: ir.Model, sources: Mapping[str, Source]) -> list[object]:
    """What the graph's outputs are computed of."""
    known = digest(model, sources)
    return [known.get(value) for value in model.graph.outputs]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(THREE_EACH))
def test_no_change_in_one_layer_is_repeated(name: str, tmp_path: Path) -> None:
    source = make(tmp_path / "model", name, **THREE_EACH[name])
    whole = layers.of_model(_loaded(source))
    assert whole is not None
    weights, _ = shallow.write(Weights(source), tmp_path / "small", (), fewer_tokens=False)
    small = run(job(tmp_path / "job", tmp_path / "small", templates=False))
    finder, seen = filling.finder_of(weights), 0
    stacks = [Stack(shallow.prefix_of(weights.infos, one), (*one.kinds, one.kinds[-1], one.kinds[-1]), (0, 1, 4)) for one in whole.lists]
    for path in sorted(small.folder.glob("*.onnx")):
        for number in range(CHANGES):
            model = ir.load(path)
            sources = filling.find_sources(model, finder)
            subject = Subject(model, sources, random.Random(f"{path.name} {number}"))
            stack = next(one for one in stacks if any(one.number(name) != SHARED for source in sources.values() for name in source.tensors))
            before = outputs(model, sources)
            if not number:
                deep, _ = repetition.repeat(ir.load(path), sources, stack)
                ports = [value.name for value in deep.graph.outputs if PORT.match(value.name or "")]
                assert not ports or len({name.split(".")[1] for name in ports if name}) == 5
            node = subject.choose(stack)
            change = subject.draw.choice(CHANGE)
            if not change(subject, node) or outputs(model, subject.sources) == before:
                continue
            seen += 1
            with pytest.raises(NotRepeatableError):
                repetition.repeat(model, subject.sources, stack)
                print(f"{path.name}: {change.__name__} of {node.name}")
    assert seen > CHANGES // 2


def _loaded(source: Path) -> object:
    from handlers.families.base import Tracing
    from handlers.families.choice import choose

    return choose(source).load(source, Tracing("eager"))
