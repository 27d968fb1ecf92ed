"""Puts the attention of each layer of a decoder with a cache into the operator that the standard has for it since opset 23.

Attention appends the new keys and values to the cache, shares each key among its queries, adds the mask and sums the values. A runtime that
has it repeats no keys in memory. It copies the cache in each step, which onnxruntime's own operator does not (`fusing`).

Operator: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.tape import Tape

from handlers.graphs.attention.finding import OPERATOR, Attention, find_all, is_operator, is_united
from handlers.graphs.attention.reading import OtherFormError
from handlers.graphs.attention.replacing import constant, masked, settled, take_over

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
    return settled(model)


def _replace(attention: Attention, tape: Tape) -> None:
    settings = {"scale": attention.scale, **({"softcap": attention.softcap} if attention.softcap else {})}
    inputs = [attention.query, attention.key, attention.value, attention.mask, *attention.past]
    made = tape.op_multi_out(OPERATOR, inputs, settings, num_outputs=3)
    for old, new in zip((attention.result, *attention.present), made, strict=True):
        take_over(old, new)


def has_operator(graph: ir.Graph) -> bool:
    """Return whether a graph has the operator."""
    return any(map(is_operator, graph))


def spell_out(model: ir.Model) -> ir.Model:
    """Put products and a softmax in the place of each such operator, in place, for readers of older operator sets. One that another program
    has put into the graph may stay."""
    if not has_operator(model.graph):
        return model
    try:
        attentions = find_all(model.graph)
    except OtherFormError:
        return model
    for attention in filter(is_united, attentions):
        _spell_out(attention, model.graph)
    return settled(model)


def _spell_out(attention: Attention, graph: ir.Graph) -> None:
    tape = Tape(graph)
    presents = [
        tape.op("Concat", [past, new], {"axis": 2}) for past, new in zip(attention.past, (attention.key, attention.value), strict=True)
    ]  # fmt: skip
    for old, new in zip(attention.present, presents, strict=True):
        take_over(old, new)
    keys, values = (_repeated(present, attention, tape, graph) for present in presents)
    scores = tape.op("MatMul", [attention.query, tape.op("Transpose", [keys], {"perm": [0, 1, 3, 2]})])
    weights = tape.op("Softmax", [masked(scores, attention.mask, attention, tape, graph)], {"axis": -1})
    take_over(attention.result, tape.op("MatMul", [weights, values]))


def _repeated(heads: ir.Value, attention: Attention, tape: Tape, graph: ir.Graph) -> ir.Value:
    """(B, N, T, H) of (B, K, T, H): each head for all queries that share it."""
    group = attention.heads // attention.key_heads
    if group == 1:
        return heads
    one_more = tape.op("Unsqueeze", [heads, constant(graph, 2)])
    repeats = tape.op("Expand", [one_more, constant(graph, 1, 1, group, 1, 1)])
    return tape.op("Reshape", [repeats, constant(graph, 0, attention.heads, -1, attention.width)])
