"""Puts the attention of each layer of a decoder with a cache into the operator that the standard has for it since opset 23.

Attention appends the new keys and values to the cache, shares each key among its queries, adds the mask and sums the values. A runtime that
has it repeats no keys in memory. It copies the cache in each step, which onnxruntime's own operator does not (`fusing`).

Operator: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx_ir.tape import Tape

from handlers.onnx.attention.finding import OPERATOR as OPERATOR
from handlers.onnx.attention.finding import Attention, find_all, is_united
from handlers.onnx.attention.reading import OtherFormError, take_over
from handlers.onnx.attention.sizes import Constants

OPSET = 23
"""The first one with the operator."""


def unite(model: ir.Model) -> ir.Model:
    """Change the attention of all layers of a graph, in place. OtherFormError where one can't be changed; then nothing is changed."""
    opset = model.graph.opset_imports.get("", 0)
    if opset < OPSET:
        raise OtherFormError(f"opset {opset} has no operator for attention")
    attentions = find_all(model.graph)
    if any(map(is_united, attentions)):
        raise OtherFormError("its attention is in one operator already")
    for attention in attentions:
        _replace(attention, Tape(model.graph))
    for tidying in (passes.NameFixPass(), passes.TopologicalSortPass(), passes.RemoveUnusedNodesPass()):
        tidying(model)
    return model


def _replace(attention: Attention, tape: Tape) -> None:
    settings = {"scale": attention.scale, **({"softcap": attention.softcap} if attention.softcap else {})}
    inputs = [attention.query, attention.key, attention.value, attention.mask, *attention.past]
    made = tape.op_multi_out(OPERATOR, inputs, settings, num_outputs=3)
    for old, new in zip((attention.result, *attention.present), made, strict=True):
        take_over(old, new)


def has_operator(graph: ir.Graph) -> bool:
    """Whether a graph has the operator."""
    return any((node.domain, node.op_type) == ("", OPERATOR) for node in graph)


def spell_out(model: ir.Model) -> ir.Model:
    """Put products and a softmax in the place of each such operator, in place, for readers of older operator sets. One that another program
    has put into the graph may stay."""
    if not has_operator(model.graph):
        return model
    try:
        attentions = find_all(model.graph)
    except OtherFormError:
        return model
    constants = Constants(model.graph)
    for attention in filter(is_united, attentions):
        _spell_out(attention, Tape(model.graph), constants)
    for tidying in (passes.NameFixPass(), passes.TopologicalSortPass(), passes.RemoveUnusedNodesPass()):
        tidying(model)
    return model


def _spell_out(attention: Attention, tape: Tape, constants: Constants) -> None:
    presents = [
        tape.op("Concat", [past, new], {"axis": 2}) for past, new in zip(attention.past, (attention.key, attention.value), strict=True)
    ]  # fmt: skip
    for old, new in zip(attention.present, presents, strict=True):
        take_over(old, new)
    keys, values = (_repeated(one, attention, tape, constants) for one in presents)
    kind = attention.mask.dtype.numpy() if attention.mask.dtype is not None else np.float32
    scores = tape.op("MatMul", [attention.query, tape.op("Transpose", [keys], {"perm": [0, 1, 3, 2]})])
    scores = tape.op("Mul", [scores, constants.of(attention.scale, dtype=kind)])
    if attention.softcap:
        cap = constants.of(attention.softcap, dtype=kind)
        scores = tape.op("Mul", [tape.op("Tanh", [tape.op("Div", [scores, cap])]), cap])
    scores = tape.op("Add", [scores, attention.mask])
    scores.type, scores.shape = attention.mask.type, None
    take_over(attention.result, tape.op("MatMul", [tape.op("Softmax", [scores], {"axis": -1}), values]))


def _repeated(heads: ir.Value, attention: Attention, tape: Tape, constants: Constants) -> ir.Value:
    """(B, N, T, H) of (B, K, T, H): each head for all queries that share it."""
    group = attention.heads // attention.key_heads
    if group == 1:
        return heads
    one_more = tape.op("Unsqueeze", [heads, constants.of(2)])
    repeats = tape.op("Expand", [one_more, constants.of(1, 1, group, 1, 1)])
    return tape.op("Reshape", [repeats, constants.of(0, attention.heads, -1, attention.width)])
