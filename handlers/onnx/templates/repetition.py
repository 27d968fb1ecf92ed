"""Makes the graph of a deep model of that of one with a few of its layers: the nodes of a layer are repeated with the next one's weights.

Which nodes belong to a layer follows from the weights that they depend on, or from the cache that they read for this layer alone. Before
anything is repeated, two layers of the same kind are shown to be the same graph: node for node, attribute for attribute, constant for
constant, with the weights and ports of the one in the places of those of the other, and with what the layer before, or the first layer of
all, gives in the same places. What does not fit raises NotRepeatableError.

The graph is that of one model without branches; after `repeat`, weights have no values, only their sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from handlers.onnx.templates.sources import Source

PORT = re.compile(r"^(past_key_values|present)\.(\d+)\.([\w.]+)$")
"""The ports of a layer's cache, as `handlers.graphs.signature` and the family `seq2seq` name them."""
SHARED = -1
"""The place of what stands before all layers."""


class NotRepeatableError(Exception):
    """The layers of the graph are not alike, or hang together in another way than each with the one before."""


@dataclass(frozen=True)
class Stack:
    """The layers of the deep model, and those that the graph has."""

    prefix: str
    """What stands before the layer's number in a tensor's name."""
    kinds: tuple[int, ...]
    """Of each layer of the deep model."""
    kept: tuple[int, ...]
    """Numbers, in the deep model, of the layers that the graph has."""

    @property
    def whole(self) -> bool:
        """Whether the graph has all layers."""
        return len(self.kept) == len(self.kinds)

    def number(self, tensor: str) -> int:
        """The layer that a tensor belongs to."""
        head, dot, _ = tensor.removeprefix(self.prefix).partition(".")
        return int(head) if tensor.startswith(self.prefix) and dot and head.isdigit() else SHARED

    def moved(self, tensor: str, layer: int | str) -> str:
        """The name of a layer's tensor with another layer's number."""
        return f"{self.prefix}{layer}.{tensor.removeprefix(self.prefix).partition('.')[2]}"


@dataclass(frozen=True)
class _Likeness:
    """One layer's values as those of another layer of its kind."""

    values: dict[ir.Value, ir.Value]
    """What the layer itself computes."""
    taken: dict[ir.Value, ir.Value]
    """What it takes from the layer before."""


class _Graph:
    """The graph with its nodes sorted into layers."""

    def __init__(self, model: ir.Model, sources: Mapping[str, Source], stack: Stack) -> None:
        self.model, self.sources, self.stack = model, sources, stack
        self.place: dict[ir.Value, int] = {}
        self.layers: dict[int, list[ir.Node]] = {}
        places: dict[ir.Node, int] = {}
        for node in model.graph:
            check_plain(node)
            places[node] = max((self._place_of(value) for value in node.inputs if value is not None), default=SHARED)
            self.place.update(dict.fromkeys(node.outputs, places[node]))
        self._place_readers_of_caches(places)
        for node, place in places.items():
            self.layers.setdefault(place, []).append(node)
        missing = set(range(len(stack.kept))) - self.layers.keys()
        if missing:
            raise NotRepeatableError(f"layer {min(missing)} has no nodes of its own")

    def _place_readers_of_caches(self, places: dict[ir.Node, int]) -> None:
        """Put what is computed of one layer's cache alone, and used in this layer alone, into the layer; else it is shared, as a mask is
        whose length is read from one cache."""
        read: dict[ir.Value, set[int]] = {}
        for node, place in places.items():
            if place == SHARED:
                ports = {number for value in node.inputs if value is not None for number in read.get(value, self._port_of(value))}
                read.update(dict.fromkeys(node.outputs, ports))
        for node in reversed(places):
            if places[node] != SHARED or len(read[node.outputs[0]]) != 1:
                continue
            (layer,) = read[node.outputs[0]]
            users = {places[user] for value in node.outputs for user, _ in value.uses()}
            users |= {next(iter(self._port_of(value)), SHARED) for value in node.outputs if value.is_graph_output()}
            if users == {layer}:
                places[node] = layer
                self.place.update(dict.fromkeys(node.outputs, layer))

    @staticmethod
    def _port_of(value: ir.Value) -> set[int]:
        """The layer that a cache is that of; nothing for any other value."""
        port = PORT.match(value.name or "") if value.is_graph_input() or value.is_graph_output() else None
        return {int(port[2])} if port else set()

    def _place_of(self, value: ir.Value) -> int:
        return self.layer_of(value) if value.is_initializer() else self.place.get(value, SHARED)

    def layer_of(self, value: ir.Value) -> int:
        """The layer that a weight belongs to."""
        source = self.sources.get(value.name or "")
        layers = {self.stack.number(name) for name in source.tensors} if source is not None else {SHARED}
        if len(layers) != 1:
            raise NotRepeatableError(f"{value.name} is made of weights of several layers")
        return layers.pop()

    def label(self, value: ir.Value | None, layer: int) -> object:
        """See `label_of`."""
        return label_of(value, self.sources, self.stack, layer)


def label_of(value: ir.Value | None, sources: Mapping[str, Source], stack: Stack, layer: int) -> object:
    """What an input is, if no node makes it, with the numbers of layers counted from `layer` on; None if a node does."""
    if value is None:
        return "nothing"
    if value.is_initializer():
        source = sources.get(value.name or "")
        if source is not None:
            return ("weight", source.renamed(lambda tensor: _unnumbered(tensor, stack, layer)))
        tensor = value.const_value
        return ("constant", tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()) if tensor is not None else ("empty", value)
    return ("port", counted(value.name, layer)) if value.is_graph_input() else None


def counted(name: str | None, layer: int) -> object:
    """The name of an input or output of a graph; that of a cache's port in parts, with its layer counted from `layer` on."""
    port = PORT.match(name or "")
    return (port[1], int(port[2]) - layer, port[3]) if port else name


def _unnumbered(tensor: str, stack: Stack, layer: int) -> str:
    number = stack.number(tensor)
    return tensor if number == SHARED else stack.moved(tensor, f"{number - layer:+d}")


def check_plain(node: ir.Node) -> None:
    """NotRepeatableError for a node with branches, whose own nodes are not looked into."""
    if any(attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in node.attributes.values()):
        raise NotRepeatableError(f"{node.op_type} has branches")


def _attributes(node: ir.Node) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted(
            (name, repr(attribute.value.tobytes()) if attribute.type == ir.AttributeType.TENSOR else f"{attribute.type} {attribute.value}")
            for name, attribute in node.attributes.items()
        )
    )


def kind_of(node: ir.Node) -> tuple[object, ...]:
    """What a node is, apart from its inputs."""
    return node.domain, node.op_type, node.overload, len(node.inputs), len(node.outputs), _attributes(node)


def _liken(graph: _Graph, layer: int, other: int) -> tuple[_Likeness, list[ir.Node]]:
    """Layer `layer` as layer `other`, and the nodes of `other` that have no like in `layer`."""
    likeness = _Likeness({}, {})
    left: dict[tuple[object, ...], list[ir.Node]] = {}
    for node in graph.layers[other]:
        left.setdefault(kind_of(node), []).append(node)
    for node in graph.layers[layer]:
        rest = left.get(kind_of(node), [])
        match = next(((like, taken) for like in rest if (taken := _taken(graph, likeness, node, like, layer, other)) is not None), None)
        if match is None:
            name = node.name or node.outputs[0].name
            raise NotRepeatableError(f"{node.op_type} {name} of layer {layer} has no like in layer {other}")
        like, taken = match
        rest.remove(like)
        likeness.taken.update(taken)
        likeness.values.update(zip(node.outputs, like.outputs, strict=True))
    unlike = {node for nodes in left.values() for node in nodes}
    return likeness, [node for node in graph.layers[other] if node in unlike]


def _taken(
    graph: _Graph, likeness: _Likeness, node: ir.Node, like: ir.Node, layer: int, other: int
) -> dict[ir.Value, ir.Value] | None:  # fmt: skip
    """What two nodes that are alike take from outside of their layers; None if they are not alike."""
    taken: dict[ir.Value, ir.Value] = {}
    for value, wanted in zip(node.inputs, like.inputs, strict=True):
        labels = graph.label(value, layer), graph.label(wanted, other)
        if labels != (None, None):
            if labels[0] != labels[1]:
                return None
            continue
        assert value is not None and wanted is not None
        if value in likeness.values:
            if likeness.values[value] is not wanted:
                return None
        elif (
            graph.place[value] == layer or graph.place[wanted] == other or likeness.taken.get(value, taken.get(value, wanted)) is not wanted
        ):
            return None
        else:
            taken[value] = wanted
    return taken if all(_same_port(*pair, layer, other) for pair in zip(node.outputs, like.outputs, strict=True)) else None


def _same_port(value: ir.Value, wanted: ir.Value, layer: int, other: int) -> bool:
    """Whether both are the same output of their layers' caches, or none. The last layer may give an output of the graph itself, which it is
    for no other layer."""
    ports = [each.is_graph_output() and PORT.match(each.name or "") is not None for each in (value, wanted)]
    return counted(value.name, layer) == counted(wanted.name, other) if all(ports) else not any(ports)


class _Likenesses:
    """All layers but the first as the first one of their kind; what follows the last layer is taken off it."""

    def __init__(self, graph: _Graph) -> None:
        self.graph, stack = graph, graph.stack
        last = len(stack.kept) - 1
        self.kinds = [stack.kinds[layer] for layer in stack.kept]
        before = next((layer for layer in range(1, last) if self.kinds[layer] == self.kinds[last]), None)
        if before is None:
            raise NotRepeatableError("the last layer is unlike all others")
        _, self.after = _liken(graph, before, last)
        end = set(self.after)
        graph.layers[last] = [node for node in graph.layers[last] if node not in end]
        self.first: dict[int, int] = {}
        self._of: dict[int, _Likeness] = {}
        for layer in range(1, last + 1):
            first = self.first.setdefault(self.kinds[layer], layer)
            self._of[layer], rest = _liken(graph, first, layer)
            if rest:
                raise NotRepeatableError(f"{rest[0].op_type} {rest[0].name} of layer {layer} has no like in layer {first}")
        for layer in range(1, last + 1):
            self._check_taken(layer)

    def _check_taken(self, layer: int) -> None:
        """What two layers take must be the same thing, computed before all layers or in the first one, or come from the layer before,
        there from the same place."""
        first = self.first[self.kinds[layer]]
        for value, wanted in self._of[layer].taken.items():
            if value is wanted and self.graph.place[value] in (SHARED, 0):
                continue
            if (self.graph.place[value], self.graph.place[wanted]) != (first - 1, layer - 1):
                raise NotRepeatableError(f"layer {layer} takes {wanted.name} from elsewhere than the layer before")
            if first > 1 and self.kinds[first - 1] == self.kinds[layer - 1] and self.moved(value, first - 1, layer - 1) is not wanted:
                raise NotRepeatableError(f"layer {layer} takes {wanted.name}, and layer {first} something else")

    def moved(self, value: ir.Value, layer: int, other: int) -> ir.Value:
        """A value of layer `layer` as the value in its place in layer `other`, which is of the same kind."""
        if layer == other:
            return value
        if 0 in (layer, other) or self.kinds[layer] != self.kinds[other]:
            raise NotRepeatableError(f"layer {other} can't stand for layer {layer}")
        back = {like: mine for mine, like in self._of[layer].values.items()}
        return self._of[other].values[back[value]]


def repeat(model: ir.Model, sources: Mapping[str, Source], stack: Stack) -> tuple[ir.Model, dict[str, Source]]:
    """The graph of all layers, and the sources of its weights."""
    return _Repeater(_Graph(model, sources, stack)).run()


class _Repeater:
    def __init__(self, graph: _Graph) -> None:
        self.graph, self.stack = graph, graph.stack
        self.likes = _Likenesses(graph)
        self.nodes: list[ir.Node] = []
        self.weights: dict[str, ir.Value] = {}
        self.sources: dict[str, Source] = {}
        self.inputs: dict[str, ir.Value] = {}
        self.made: dict[ir.Value, ir.Value] = {}
        """Value before all layers → its value in the deep graph."""
        self.made_first: dict[ir.Value, ir.Value] = {}
        """The same of the first layer, of which others may use what it computes for all: a table of positions, for example."""

    def run(self) -> tuple[ir.Model, dict[str, Source]]:
        """See `repeat`."""
        before, ports = self.graph.model.graph, self._ports()
        for value in before.inputs:
            name = value.name or ""
            if not PORT.match(name):
                self.made[value] = self._input(value, name)
            elif not any(map(PORT.match, self.inputs)):  # those of all layers stand in the place of the first one
                for layer in range(len(self.stack.kinds)):
                    for kind, first in ports.items():
                        self._input(first, f"past_key_values.{layer}.{kind}")
        self._emit(self.graph.layers.get(SHARED, []), self.made, lambda value: self._outer(value, 0), str)
        outputs: dict[str, ir.Value] = {}
        previous: dict[ir.Value, ir.Value] = {}
        stands = self._stand_ins()
        for layer, copied in enumerate(stands):
            previous = self._layer(layer, copied, stands[layer - 1] if layer else 0, previous, outputs)
            self.made_first = self.made_first or previous
        last = len(self.stack.kept) - 1
        ends = dict(self.made)

        def of_last(value: ir.Value) -> ir.Value:
            if self._place(value) == 0 and last > 0:
                return self.made_first[value]
            return previous[self.likes.moved(value, last, stands[-1])] if self._place(value) == last else self._outer(value, last)

        self._emit(self.likes.after, ends, of_last, str)
        names = [value.name or "" for value in before.outputs if not PORT.match(value.name or "")]
        named = {value.name: ends[value] if value in ends else of_last(value) for value in before.outputs if value.name in names}
        for name, value in named.items():
            value.name = name
        kinds = [port[3] for value in before.outputs if (port := PORT.match(value.name or "")) and int(port[2]) == 0]
        listed = [
            *(named[name] for name in names),
            *(outputs[f"present.{layer}.{kind}"] for layer in range(len(stands)) for kind in kinds),
        ]
        graph = ir.Graph(
            list(self.inputs.values()), listed, nodes=self.nodes, initializers=list(self.weights.values()),
            opset_imports=dict(before.opset_imports), name=before.name,
        )  # fmt: skip
        made = ir.Model(graph, ir_version=self.graph.model.ir_version)
        return made, self.sources

    def _ports(self) -> dict[str, ir.Value]:
        """Kind of a cache's port → that of the first layer."""
        ports = [(value, PORT.match(value.name or "")) for value in self.graph.model.graph.inputs]
        return {port[3]: value for value, port in ports if port is not None and int(port[2]) == 0}

    def _stand_ins(self) -> list[int]:
        """For each layer of the deep model, the layer of the graph that is copied for it."""
        kinds, short = self.stack.kinds, self.likes.kinds
        by_pair: dict[tuple[int, int], int] = {}
        for layer, pair in enumerate(pairwise(short[1:]), start=2):
            by_pair.setdefault(pair, layer)
        if self.stack.kept[1] != 1 or any(pair not in by_pair for pair in pairwise(kinds[1:])):
            raise NotRepeatableError("a kind of layer follows another one that it does not follow in the graph")
        return [0, 1, *(by_pair[pair] for pair in pairwise(kinds[1:]))]

    def _place(self, value: ir.Value) -> int:
        return self.graph.place.get(value, SHARED)

    def _layer(
        self, layer: int, copied: int, before: int, previous: Mapping[ir.Value, ir.Value], outputs: dict[str, ir.Value]
    ) -> dict[ir.Value, ir.Value]:  # fmt: skip
        """Copy a layer of the graph as layer `layer` of the deep model; gives value → its copy."""
        made: dict[ir.Value, ir.Value] = {}

        def outer(value: ir.Value) -> ir.Value:
            if self._place(value) == SHARED:
                return self._outer(value, copied, layer)
            if self._place(value) == 0 and copied > 1:
                return self.made_first[value]
            if self._place(value) != copied - 1:
                raise NotRepeatableError(f"layer {copied} takes {value.name} from layer {self._place(value)}")
            return previous[self.likes.moved(value, copied - 1, before)]

        def name(text: str) -> str:
            port = PORT.match(text)
            return f"{port[1]}.{layer}.{port[3]}" if port else f"{text}.{layer}" if layer > 1 else text

        self._emit(self.graph.layers[copied], made, outer, name)
        for value, copy in made.items():
            if value.is_graph_output():
                outputs[copy.name or ""] = copy
        return made

    def _outer(self, value: ir.Value, copied: int, layer: int | None = None) -> ir.Value:
        """A weight, a constant, an input, or what is computed before all layers, for a copy of layer `copied` as layer `layer`."""
        if value.is_initializer():
            return self._weight(value, copied, layer)
        port = PORT.match(value.name or "") if value.is_graph_input() else None
        if port is not None:
            number = int(port[2])
            return self.inputs[f"{port[1]}.{self.stack.kept[number] if layer is None or number != copied else layer}.{port[3]}"]
        if value not in self.made:
            raise NotRepeatableError(f"{value.name} is read outside of its layer")
        return self.made[value]

    def _weight(self, value: ir.Value, copied: int, layer: int | None) -> ir.Value:
        source, name = self.graph.sources.get(value.name or ""), value.name or ""
        if source is not None:
            at = self.graph.layer_of(value)
            if at != SHARED:
                # A node of a layer may read a weight of the layer before: a norm that is fused with the addition, and its bias, before it.
                number = (self.stack.kept[copied] if layer is None else layer) + at - copied
                source = source.renamed(lambda tensor: self.stack.moved(tensor, number))
                name = f"{source.tensors[0]}{'.turned' if source.turned else ''}{f'.{name}' if source.parts or source.added else ''}"
            if self.sources.setdefault(name, source) != source:  # the same tensor in another shape
                name = f"{name}.{'x'.join(map(str, source.shape))}"
                self.sources[name] = source
        if name not in self.weights:
            self.weights[name] = ir.Value(
                name=name, shape=value.shape, type=value.type, const_value=None if source is not None else value.const_value
            )
        return self.weights[name]

    def _input(self, value: ir.Value, name: str) -> ir.Value:
        self.inputs[name] = ir.Value(name=name, shape=value.shape, type=value.type)
        return self.inputs[name]

    def _emit(
        self, nodes: Iterable[ir.Node], made: dict[ir.Value, ir.Value], outer: Callable[[ir.Value], ir.Value], name: Callable[[str], str]
    ) -> None:  # fmt: skip
        """Copy nodes; `made` gets each value's copy."""
        for node in nodes:
            inputs = [None if value is None else made[value] if value in made else outer(value) for value in node.inputs]
            copy = ir.Node(
                node.domain, node.op_type, inputs, attributes=list(node.attributes.values()), overload=node.overload,
                num_outputs=len(node.outputs), version=node.version, name=name(node.name) if node.name else None,
            )  # fmt: skip
            for value, output in zip(node.outputs, copy.outputs, strict=True):
                output.name, output.shape, output.type = name(value.name or ""), value.shape, value.type
                made[value] = output
            self.nodes.append(copy)
