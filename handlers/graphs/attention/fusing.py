"""Puts the attention of each layer of a decoder with a cache into onnxruntime's GroupQueryAttention, and back into the standard's form.

The exporter writes an attention as a concatenation of cache and new keys, two products and a softmax. The operator does all of it, and
where one buffer is given for the past and for the present, it adds the new rows there and copies nothing. The mask that the graph computes
is added to the scores as before, so windows and padding stay as they are. The operator does not take several rows that each go on by
several tokens; for these, the other branch of an If has the standard's operators.

Operators: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md (GroupQueryAttention, RotaryEmbedding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.tape import Tape

from handlers.graphs.attention import rotation
from handlers.graphs.attention.finding import Attention, find_all
from handlers.graphs.attention.reading import SWAPPED, OtherFormError, first_input, size, swaps_heads
from handlers.graphs.attention.replacing import masked, settled, take_over
from handlers.graphs.attention.sizes import Sizes

DOMAIN = "com.microsoft"
OPERATOR = "GroupQueryAttention"
STANDARD = "else_branch"
"""The branch that needs no operator of onnxruntime's."""


def fuse(model: ir.Model) -> ir.Model:
    """Change the attention of all layers of a graph, in place. OtherFormError where one can't be changed; then nothing is changed."""
    graph = model.graph
    attentions = find_all(graph)
    inputs = {value.name: value for value in graph.inputs}
    sizes = Sizes(graph, inputs.get("input_ids") or inputs["hidden_states"], inputs["attention_mask"])
    for attention in attentions:
        _replace(attention, sizes)
    _measure_past(graph, sizes)
    model.opset_imports.setdefault(DOMAIN, 1)
    return settled(model)


def can_fuse(model: ir.Model) -> bool:
    """Return whether `fuse` would change a graph."""
    try:
        return bool(find_all(model.graph))
    except OtherFormError:
        return False


def is_fused(model: ir.Model) -> bool:
    """Return whether `fuse` has changed a graph."""
    return bool(fused_ones(model))


def shares_buffers(model: ir.Model) -> bool:
    """Whether past and present of every layer may be one buffer, longer than what is in it: the graph reads the past in the operator only,
    the present nowhere, and asks no cache for its length."""
    inside = {inner for node in fused_ones(model) for branch in node.attributes.values() for inner in branch.as_graph()}
    caches = [*_pasts(model.graph), *(value for value in model.graph.outputs if (value.name or "").startswith("present."))]
    return bool(inside) and all(node in inside or _asks(node, 0) for value in caches for node, _ in value.uses())


def sharing(models: Mapping[str, ir.Model]) -> list[str]:
    """Of graphs by role, the roles of those of which `shares_buffers` is true."""
    return [role for role, model in models.items() if shares_buffers(model)]


def spell_out(model: ir.Model) -> ir.Model:
    """Put the standard's operators in the place of each such attention, in place; rotary embeddings stay onnxruntime's."""
    fused = fused_ones(model)
    if not fused:
        return model
    for node in fused:
        branch = node.attributes[STANDARD].as_graph()
        results = list(branch.outputs)
        branch.outputs.clear()
        for value in list(branch.initializers.values()):  # a tool may have moved constants there
            del branch.initializers[value.name or ""]
            if value.name in model.graph.initializers:
                value.name = f"{node.name}.{value.name}"
            model.graph.register_initializer(value)
        for inner in list(branch):
            branch.remove(inner)
            model.graph.insert_before(node, inner)
        for old, new in zip(node.outputs, results, strict=True):
            take_over(old, new)
        model.graph.remove(node, safe=True)
    return settled(model)


def fused_ones(model: ir.Model) -> list[ir.Node]:
    """Return the If nodes that `fuse` has put into a graph."""
    ifs = (node for node in model.graph if node.op_type == "If")
    return [node for node in ifs if any(inner.op_type == OPERATOR for inner in node.attributes["then_branch"].as_graph())]


def _pasts(graph: ir.Graph) -> list[ir.Value]:
    """Return the inputs that hold keys and values of the tokens before."""
    return [value for value in graph.inputs if (value.name or "").startswith("past_key_values.")]


def _asks(node: ir.Node, axis: int) -> bool:
    """Return whether a node is a Shape that tells one axis alone."""
    return node.op_type == "Shape" and (node.attributes.get_int("start", 0), node.attributes.get_int("end", 4)) == (axis, axis + 1)


def _replace(attention: Attention, sizes: Sizes) -> None:
    tape = Tape(sizes.graph)
    inputs = [_turned(value, sizes, tape) for value in (attention.query, attention.key)] + [_flat(attention.value, sizes, tape)]
    branches = {"then_branch": _fused(attention, inputs, sizes), STANDARD: _spelt_out(attention, inputs, sizes)}
    result, *present = tape.op_multi_out("If", [sizes.one_by_one], branches, num_outputs=3)
    for old, new in zip(attention.present, present, strict=True):
        take_over(old, new)
    _read_flat(attention, result, sizes, tape)


def _turned(value: ir.Value, sizes: Sizes, tape: Tape) -> ir.Value:
    """(B, S, N · H) of (B, N, S, H), with the rotary embedding in an operator of its own if there is one."""
    turning = rotation.find(value)
    if turning is None:
        return _flat(value, sizes, tape)
    tables = [_table(angles, sizes) for angles in (turning.cosine, turning.sine)]
    heads = {"num_heads": size(value, 1), "interleaved": 0}
    return tape.op("RotaryEmbedding", [_flat(turning.inner, sizes, tape), sizes.rows, *tables], heads, domain=DOMAIN)


def _table(angles: ir.Value, sizes: Sizes) -> ir.Value:
    """(B · S, H / 2) of (B or 1, S, H): a row for each token at hand, in the place of the operator's table of all positions."""

    def make(tape: Tape) -> ir.Value:
        half = size(angles, 2) // 2
        first = tape.op("Slice", [angles, *(sizes.constant(number) for number in (0, half, 2))])
        shape = tape.op("Concat", [sizes.batch, sizes.tokens, sizes.constant(half)], {"axis": 0})
        return tape.op("Reshape", [tape.op("Expand", [first, shape]), sizes.constant(-1, half)])

    return sizes.once(f"{angles.name}.table", make)


def _flat(value: ir.Value, sizes: Sizes, tape: Tape) -> ir.Value:
    """(B, S, N · H) of (B, N, S, H); where that is what it was made of, that."""
    width, node = size(value, 1) * size(value, 3), value.producer()
    swapped = first_input(node) if node is not None and swaps_heads(node) else tape.op("Transpose", [value], {"perm": list(SWAPPED)})
    node = swapped.producer()
    if node is not None and node.op_type == "Reshape":
        before = first_input(node)
        if before.shape is not None and len(before.shape) == 3 and before.shape[2] == width:
            return before
    return tape.op("Reshape", [swapped, sizes.constant(0, 0, width)])


def _fused(attention: Attention, inputs: Sequence[ir.Value], sizes: Sizes) -> ir.Graph:
    """Return the branch with the operator."""
    graph = ir.Graph([], [], nodes=[], name="fused")
    settings: dict[str, Any] = {"num_heads": attention.heads, "kv_num_heads": attention.key_heads, "scale": attention.scale}
    if attention.softcap:
        settings["softcap"] = attention.softcap
    lengths, unused = (sizes.last, sizes.total_int32), (None, None, None)
    outputs = Tape(graph).op_multi_out(
        OPERATOR, [*inputs, *attention.past, *lengths, *unused, attention.mask], settings, num_outputs=3, domain=DOMAIN
    )
    return _closed(graph, outputs, attention)


def _spelt_out(attention: Attention, inputs: Sequence[ir.Value], sizes: Sizes) -> ir.Graph:
    """Return the branch with the standard's operators. The heads that share keys have an axis of their own, so that no key is repeated."""
    graph = ir.Graph([], [], nodes=[], name="standard")
    tape = Tape(graph)
    kinds, group, width = attention.key_heads, attention.heads // attention.key_heads, attention.width
    query, *new = inputs
    split = tape.op("Reshape", [query, sizes.constant(0, 0, kinds, group, width)])
    queries = tape.op("Transpose", [split], {"perm": [0, 2, 3, 1, 4]})
    presents = []
    for flat, past in zip(new, attention.past, strict=True):
        heads = tape.op("Transpose", [tape.op("Reshape", [flat, sizes.constant(0, 0, kinds, width)])], {"perm": list(SWAPPED)})
        presents.append(tape.op("Concat", [past, heads], {"axis": 2}))
    keys, values = (tape.op("Unsqueeze", [present, sizes.constant(2)]) for present in presents)
    scores = tape.op("MatMul", [queries, tape.op("Transpose", [keys], {"perm": [0, 1, 2, 4, 3]})])
    scores = masked(scores, tape.op("Unsqueeze", [attention.mask, sizes.constant(2)]), attention, tape, sizes.graph)
    summed = tape.op("MatMul", [tape.op("Softmax", [scores], {"axis": -1}), values])
    swapped = tape.op("Transpose", [summed], {"perm": [0, 3, 1, 2, 4]})
    return _closed(graph, [tape.op("Reshape", [swapped, sizes.constant(0, 0, attention.heads * width)]), *presents], attention)


def _closed(graph: ir.Graph, outputs: Sequence[ir.Value], attention: Attention) -> ir.Graph:
    for output, old in zip(outputs, (attention.query, *attention.present), strict=True):
        output.type = old.type
    graph.outputs.extend(outputs)
    return graph


def _read_flat(attention: Attention, result: ir.Value, sizes: Sizes, tape: Tape) -> None:
    """Let what makes (B, S, N · H) of the old result read the new one, which has that form; give others the form that they read."""
    width = attention.heads * attention.width
    result.type = attention.query.type
    for node in [node for node, _ in attention.result.uses() if swaps_heads(node)]:
        for reader, place in tuple(node.outputs[0].uses()):
            flat = reader.outputs[0]
            if reader.op_type == "Reshape" and place == 0 and flat.shape is not None and len(flat.shape) == 3 and flat.shape[2] == width:
                result.shape = flat.shape
                ir.convenience.replace_all_uses_with(flat, result)
                reader.graph.remove(reader, safe=True)  # type: ignore[union-attr]
        if not node.outputs[0].uses():
            node.graph.remove(node, safe=True)  # type: ignore[union-attr]
    if attention.result.uses():
        split = tape.op("Reshape", [result, sizes.constant(0, 0, attention.heads, attention.width)])
        take_over(attention.result, tape.op("Transpose", [split], {"perm": list(SWAPPED)}))


def _measure_past(graph: ir.Graph, sizes: Sizes) -> None:
    """Compute the length of the past from those of the mask and the new tokens, not from the cache's, which may be longer."""
    for cache in _pasts(graph):
        for node in [node for node, _ in cache.uses() if _asks(node, 2)]:
            ir.convenience.replace_all_uses_with(node.outputs[0], sizes.past)
