"""Keeps the keys and values of the tokens before in int8: a quarter of the memory, and of what each new token reads.

A channel of a head has one scale for all tokens, which is fixed in the graph. In the branch with onnxruntime's operator that operator
rounds what is new and reads int8; in the other branch the standard's operators do the same. Both compute a token's own attention with
rounded keys and values too, so that a text gives the same outputs in one pass and token by token.

Keys are kept as they are after their rotation, and a rotation moves what is in a channel to its partner and back as positions go on: a
channel's extent in short texts says little about long ones. What bounds it at all positions is the length of the pair.
Operator: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md (GroupQueryAttention, k_scale and v_scale).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx_ir.tape import Tape

from handlers.graphs.attention.fusing import OPERATOR, STANDARD, fused_ones, shares_buffers
from handlers.graphs.attention.reading import OtherFormError, first_input, made_by

LARGEST = 127
KEY, VALUE = 1, 2
"""Inputs of the operator with what is new."""
_PAST = {KEY: 3, VALUE: 4}
_SCALE = {KEY: 12, VALUE: 13}
_KIND = {KEY: "k_quant_type", VALUE: "v_quant_type"}
_MARGIN = 1.25
"""By how much keys and values of other texts may be larger than those that were seen, before they are cut."""


def round_cache(model: ir.Model, extents: Mapping[str, np.ndarray]) -> None:
    """Change the caches of a graph whose attention `fuse` has changed, in place; OtherFormError where it can't be done.

    `extents`: input of a past → largest |x| that was seen of each channel, (K heads of keys, H size of a head).
    """
    nodes = fused_ones(model)
    if not nodes or not shares_buffers(model):
        raise OtherFormError("its caches are not read by onnxruntime's operator alone")
    for node in nodes:
        operator = _operator(node)
        operator.resize_inputs(max(_SCALE.values()) + 1)
        operator.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)
        for what in (KEY, VALUE):
            past = operator.inputs[_PAST[what]]
            assert past is not None and past.name is not None
            scale = _scale(model.graph, past, reach(operator, what, extents[past.name]))
            operator.replace_input_with(_SCALE[what], scale)
            operator.attributes[_KIND[what]] = ir.AttrString(_KIND[what], "PER_CHANNEL")
            present = _spell_out(node.attributes[STANDARD].as_graph(), past, scale)
            for value in (past, operator.outputs[what], present, node.outputs[what]):
                value.type = ir.TensorType(ir.DataType.INT8)
    passes.NameFixPass()(model)


def is_rounded(model: ir.Model) -> bool:
    """Return whether `round_cache` has changed a graph."""
    return any(_operator(node).attributes.get_int("kv_cache_bit_width", 0) for node in fused_ones(model))


def widen_cache(model: ir.Model) -> ir.Model:
    """Undo `round_cache`, in place, for runtimes that know caches of fp32 alone."""
    for node in fused_ones(model) if is_rounded(model) else ():
        operator, branch = _operator(node), node.attributes[STANDARD].as_graph()
        for what in (KEY, VALUE):
            past = operator.inputs[_PAST[what]]
            assert past is not None
            joined = _joined(branch, past)
            ((cast, _),) = joined.outputs[0].uses()
            (wide,) = (reader.outputs[0] for reader, _ in cast.outputs[0].uses())
            ir.convenience.replace_all_uses_with(wide, joined.outputs[0])
            rounded = joined.inputs[1]
            for name in ("Cast", "Clip", "Round", "Div"):
                rounded = first_input(made_by(rounded, name))
            joined.replace_input_with(1, rounded)
            for value in (past, operator.outputs[what], joined.outputs[0], node.outputs[what]):
                value.type = ir.TensorType(ir.DataType.FLOAT)
            del operator.attributes[_KIND[what]]
        operator.resize_inputs(min(_SCALE.values()))
        del operator.attributes["kv_cache_bit_width"]
    passes.RemoveUnusedNodesPass()(model)
    return model


def _operator(node: ir.Node) -> ir.Node:
    return next(inner for inner in node.attributes["then_branch"].as_graph() if inner.op_type == OPERATOR)


def _joined(branch: ir.Graph, past: ir.Value) -> ir.Node:
    """Return what puts new rows behind a past."""
    (concat,) = (node for node, _ in past.uses() if node.graph is branch and node.op_type == "Concat")
    return concat


def reach(operator: ir.Node, what: int, extent: np.ndarray) -> np.ndarray:
    """Largest |x| of each channel at any position, (K, H), of the largest that was seen at some.

    Of keys that are turned by halves of a head, the pair's length. Other keys may be turned in part, or by neighbours: there each channel
    gets √2 times the largest of its head.
    """
    if what == VALUE:
        return extent
    new = operator.inputs[KEY]
    turned = new.producer() if new is not None else None
    if turned is None or turned.op_type != "RotaryEmbedding":
        return np.broadcast_to(np.sqrt(2) * extent.max(axis=1, keepdims=True), extent.shape)
    first, second = np.split(extent, 2, axis=1)
    return np.tile(np.hypot(first, second), 2)


def _scale(graph: ir.Graph, past: ir.Value, extent: np.ndarray) -> ir.Value:
    """(1, K, 1, H): what a step of one stands for."""
    floor = max(float(extent.max(initial=0.0)), 1e-6) * 1e-3  # a channel in which nothing was seen
    steps = (np.maximum(extent, floor) * _MARGIN / LARGEST).astype(np.float32)[None, :, None, :]
    tensor = ir.tensor(steps, name=f"{past.name}.scale")
    value = ir.Value(name=tensor.name, const_value=tensor, shape=ir.Shape(steps.shape), type=ir.TensorType(tensor.dtype))
    graph.register_initializer(value)
    return value


def _spell_out(branch: ir.Graph, past: ir.Value, scale: ir.Value) -> ir.Value:
    """Round what is new and read what is rounded in the branch of the standard's operators; gives the branch's present."""
    joined = _joined(branch, past)
    present, tape = joined.outputs[0], Tape()
    steps = tape.op("Round", [tape.op("Div", [joined.inputs[1], scale])])
    low, high = (tape.op("Constant", [], {"value_float": bound}) for bound in (-LARGEST - 1.0, float(LARGEST)))
    new = tape.op("Cast", [tape.op("Clip", [steps, low, high])], {"to": ir.DataType.INT8})
    branch.insert_before(joined, tape.nodes)
    joined.replace_input_with(1, new)
    readers, tape = tuple(present.uses()), Tape()
    wide = tape.op("Mul", [tape.op("Cast", [present], {"to": ir.DataType.FLOAT}), scale])
    branch.insert_after(joined, tape.nodes)
    for reader, place in readers:
        reader.replace_input_with(place, wide)
    return present
