"""One decoder for all steps, composed of the graph of the first step and the graph of the later ones.

Called by the family `seq2seq`. It has no branches: lengths select. With `use_cache_branch` true the encoder's states are cut to length
0 before they are projected to keys and values, with false the past is cut to length 0; the two, joined along their length, are the
cross-attention cache, which is given out as it is at every step. So it is never empty whatever the switch says, a dummy past of any
length does no harm, and passes that rewrite graphs find all nodes at the top level.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from handlers.families.seq2seq.ports import DECODER_MERGED, ENCODER_SEQUENCE, MASK, STATES, USE_CACHE, cache_names, decoder_ports
from handlers.graphs import graph_file
from handlers.graphs.comparison import GraphMismatchError
from handlers.graphs.signature import PAST

_LENGTH, _HEADS = 2, 2
"""Axes: the length of a cached tensor (batch, heads, length, size), the heads of what it is made of (batch, length, heads, size)."""
_ALL = np.iinfo(np.int64).max


def merged(first: ir.Model, later: ir.Model, layers: int) -> ir.Model:
    """Return the decoder for all steps made of copies of `first` and `later`, whose axes are named; weights are shared with them.

    Raises GraphMismatchError when the cross-attention cache of `first` can't be computed apart.
    """
    signature = decoder_ports(DECODER_MERGED, layers)
    model = later.clone()
    body = model.graph
    body.name = DECODER_MERGED
    _measure_first_layer(body)
    projector = _projector(first, layers)
    _forget_lengths(body, PAST)
    _forget_lengths(projector, ENCODER_SEQUENCE)
    inputs = {str(value.name): value for value in body.inputs}
    for value in projector.inputs[1:]:
        ir.convenience.replace_all_uses_with(value, inputs[str(value.name)])
    states = _like(projector.inputs[0])
    switch = ir.Value(name=USE_CACHE, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([1]))
    head = _Head(body, switch)
    shortened = head.cut(states, 1, head.without_cache)
    ir.convenience.replace_all_uses_with(projector.inputs[0], shortened)
    projected = _take_over(projector, head)
    past = {name: value for name, value in inputs.items() if name.startswith("past_key_values.")}
    dummy = {name: _like(value) for name, value in past.items()}
    for name, value in past.items():
        kept = head.cut(dummy[name], _LENGTH, head.with_cache)
        if ".encoder." in name:
            kept = head.add("Concat", [kept, projected[name.replace("past_key_values.", "present.", 1)]], axis=_LENGTH)
        ir.convenience.replace_all_uses_with(value, kept)
    values = {**inputs, **dummy, STATES: states, USE_CACHE: switch}
    body.inputs[:] = [values[name] for name in signature.inputs]
    body.insert_before(body[0], head.nodes)
    graph_file.tidy(model)
    _check_outputs(body, signature.outputs)
    return model


def _measure_first_layer(body: ir.Graph) -> None:
    """Read each length of the caches from the first cache that has it, so that no layer waits for a later one. Torch reads any of them."""
    pasts = (value for value in body.inputs if str(value.name).startswith("past_key_values."))
    caches = {value: list(value.shape) for value in pasts if value.shape is not None}
    for cache, sizes in caches.items():
        for node in [node for node, _ in cache.uses() if node.op_type == "Shape"]:
            part = slice(*(node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end")))
            node.replace_input_with(0, next(other for other, lengths in caches.items() if lengths[part] == sizes[part]))


class _Head:
    """Nodes that come before all others of a graph."""

    def __init__(self, body: ir.Graph, switch: ir.Value) -> None:
        self.graph = body
        self.nodes: list[ir.Node] = []
        zero, everything = self.constant("none_of_it", 0), self.constant("all_of_it", _ALL)
        self._zero = zero
        self._axes: dict[int, ir.Value] = {}
        self.with_cache = self.add("Where", [switch, everything, zero])
        """Length to keep of what only counts when there is a cache."""
        self.without_cache = self.add("Where", [switch, zero, everything])
        """Length to keep of what only counts when there is none."""

    def constant(self, name: str, number: int) -> ir.Value:
        """Return an int64 constant of shape (1)."""
        value = _constant(f"merged.{name}", number)
        self.graph.register_initializer(value)
        return value

    def add(self, op: str, inputs: Sequence[ir.Value], **attributes: int) -> ir.Value:
        """Return the output of a new node."""
        node = ir.node(op, inputs, attributes=attributes, name=f"merged.{op}.{len(self.nodes)}")
        node.outputs[0].name = f"merged.{op}.{len(self.nodes)}.out"
        self.nodes.append(node)
        return node.outputs[0]

    def cut(self, value: ir.Value, axis: int, length: ir.Value) -> ir.Value:
        """`value` as long along `axis` as `length` allows."""
        if axis not in self._axes:
            self._axes[axis] = self.constant(f"axis_{axis}", axis)
        return self.add("Slice", [value, self._zero, length, self._axes[axis]])


def _projector(first: ir.Model, layers: int) -> ir.Graph:
    """Return what makes the encoder's keys and values of its states; of the other inputs it may take the batch's size."""
    try:
        projector = ir.convenience.extract(first.graph, [STATES, MASK, "input_ids"], list(cache_names("present", layers, "encoder")))
    except ValueError as error:
        raise GraphMismatchError(f"the cross-attention cache can't be computed apart: {error}") from None
    for output in projector.outputs:
        _spell_heads_out(projector, output)
    return projector


def _spell_heads_out(projector: ir.Graph, output: ir.Value) -> None:
    """Give the Reshape that splits a projection into heads their number instead of -1, which says nothing for length 0."""
    node = output.producer()
    while node is not None and node.op_type != "Reshape":
        node = node.inputs[0].producer() if node.op_type == "Transpose" and node.inputs[0] is not None else None
    wanted = node.inputs[1] if node is not None else None
    parts = wanted.producer() if wanted is not None else None
    heads = output.shape[1] if output.shape is not None else None
    if parts is None or parts.op_type != "Concat" or not isinstance(heads, int):
        return
    for index, part in enumerate(parts.inputs):
        constant = ir.convenience.get_const_tensor(part) if part is not None else None
        if index == _HEADS and constant is not None and constant.numpy().tolist() == [-1]:
            number = _constant(f"{output.name}.heads", heads)
            projector.register_initializer(number)
            parts.replace_input_with(index, number)


def _take_over(projector: ir.Graph, head: _Head) -> dict[str, ir.Value]:
    """Move the projector's nodes and weights; gives its outputs by the names they had."""
    taken = set(ir.convenience.create_value_mapping(head.graph))
    outputs = {str(value.name): value for value in projector.outputs}
    projector.outputs.clear()
    nodes = list(projector)
    weights = sorted(projector.initializers.values(), key=lambda value: str(value.name))  # extract() has them in the order of a set
    projector.remove(nodes)
    projector.initializers.clear()
    for value in (*weights, *(value for node in nodes for value in node.outputs)):
        if value.name in taken or value.name in outputs:
            value.name = f"projected.{value.name}"
    for number, node in enumerate(nodes):
        node.name = f"projected.{node.op_type}.{number}"
    for value in weights:
        head.graph.register_initializer(value)
    head.nodes.extend(nodes)
    return outputs


def _forget_lengths(part: ir.Graph, axis: str) -> None:
    """Let inner values say nothing of an axis that is no longer as long as the input's."""
    symbol = re.compile(rf"\b{axis}\b")
    for value in (value for node in part for value in node.outputs):
        if value.shape is not None and not value.is_graph_output():
            value.shape = ir.Shape(
                [None if isinstance(size, ir.SymbolicDim) and symbol.search(size.value or "") else size for size in value.shape]
            )


def _constant(name: str, number: int) -> ir.Value:
    tensor = ir.tensor([number], dtype=ir.DataType.INT64, name=name)
    return ir.Value(name=name, const_value=tensor, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))


def _like(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, type=value.type, shape=value.shape)


def _check_outputs(body: ir.Graph, wanted: Sequence[str]) -> None:
    names = tuple(str(value.name) for value in body.outputs)
    if names != tuple(wanted):
        raise GraphMismatchError(f"the composed decoder gives {names}, not {tuple(wanted)}")
