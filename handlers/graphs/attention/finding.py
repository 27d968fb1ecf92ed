"""Finds the attention of each layer of a decoder with a cache: from the cache on, to what its heads give.

It is written as products and a softmax, or as the standard's operator, which `standard` makes of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from handlers.graphs.attention.reading import OtherFormError, first_input, made_by, numbers, operands, pair, size, unscaled

OPERATOR = "Attention"
"""The standard's, since opset 23."""
_PAST = re.compile(r"past_key_values\.(\d+)\.key")
UNIT = 8
"""The operator takes heads of a size that is a multiple of it."""


@dataclass(frozen=True)
class Attention:
    """One layer's attention. B batch, S new tokens, P tokens in the cache, T all, N heads, K heads of keys, H size of a head."""

    query: ir.Value
    """(B, N, S, H)"""
    key: ir.Value
    """(B, K, S, H), of the new tokens."""
    value: ir.Value
    """The same."""
    past: tuple[ir.Value, ir.Value]
    """(B, K, P, H), keys and values."""
    present: tuple[ir.Value, ir.Value]
    """(B, K, T, H)"""
    mask: ir.Value
    """(B or 1, 1, S, T), is added to the scores."""
    result: ir.Value
    """(B, N, S, H)"""
    scale: float
    """The scores are multiplied by it."""
    softcap: float
    """c of c · tanh(scores / c), which keeps the scores within ±c; 0 where there is none."""

    @property
    def heads(self) -> int:
        """Of the queries."""
        return size(self.query, 1)

    @property
    def key_heads(self) -> int:
        """Of keys and values: each serves the same number of the queries' heads."""
        return size(self.past[0], 1)

    @property
    def width(self) -> int:
        """Size of a head."""
        return size(self.past[0], 3)


def find_all(graph: ir.Graph) -> list[Attention]:
    """Return the attention of all layers. OtherFormError where that of one is of another form, or there is none with a cache."""
    inputs, outputs = ({value.name or "": value for value in values} for values in (graph.inputs, graph.outputs))
    layers = sorted(int(match[1]) for name in inputs if (match := _PAST.fullmatch(name)))
    if not layers or "attention_mask" not in inputs or not inputs.keys() & {"input_ids", "hidden_states"}:
        raise OtherFormError("the graph is not that of a decoder with a cache and a mask")
    attentions = []
    for layer in layers:
        try:
            attentions.append(find(inputs, outputs, layer))
        except (OtherFormError, KeyError) as error:
            raise OtherFormError(f"the attention of layer {layer}: {error}") from error
    return attentions


def is_united(attention: Attention) -> bool:
    """Return whether it is the standard's operator."""
    node = attention.present[0].producer()
    return node is not None and is_operator(node)


def is_operator(node: ir.Node) -> bool:
    """Return whether a node is the standard's operator for attention."""
    return (node.domain, node.op_type) == ("", OPERATOR)


def find(inputs: Mapping[str, ir.Value], outputs: Mapping[str, ir.Value], layer: int) -> Attention:
    """Return the attention of a layer. OtherFormError where a node on the way is not one that is known."""
    past = tuple(inputs[f"past_key_values.{layer}.{what}"] for what in ("key", "value"))
    present = tuple(outputs[f"present.{layer}.{what}"] for what in ("key", "value"))
    node = present[0].producer()
    if node is not None and is_operator(node):
        return _checked(_as_united(node, (past[0], past[1]), (present[0], present[1])))
    key, value = (_appended(after, before) for after, before in zip(present, past, strict=True))
    products = _products(present[1])
    if len(products) != 1:
        raise OtherFormError("its values are not read by one product")
    weights, rows = pair(products[0])
    softmax = made_by(weights, "Softmax")
    if softmax.attributes.get_int("axis", -1) not in (-1, 3):
        raise OtherFormError("its softmax is not over the tokens")
    scores, mask = _unmasked(first_input(softmax))
    scores, scale = unscaled(scores)
    softcap = 0.0
    node = scores.producer()
    if node is not None and node.op_type == "Tanh":
        softcap = scale
        scores, share = unscaled(first_input(node))
        scale = share * softcap
    query, turned = pair(made_by(scores, "MatMul"))
    query, first = unscaled(query)
    turned, second = unscaled(turned)
    node = made_by(turned, "Transpose")
    keys, third = unscaled(first_input(node))
    if tuple(node.attributes.get_ints("perm", ())) != (0, 1, 3, 2) or _unrepeated(keys) is not present[0]:
        raise OtherFormError("its keys are not those of the cache")
    if _unrepeated(rows) is not present[1]:
        raise OtherFormError("its values are not those of the cache")
    scale *= first * second * third
    return _checked(
        Attention(query, key, value, (past[0], past[1]), (present[0], present[1]), mask, products[0].outputs[0], scale, softcap)
    )  # fmt: skip


def _as_united(node: ir.Node, past: tuple[ir.Value, ir.Value], present: tuple[ir.Value, ir.Value]) -> Attention:
    """Return what `standard` has put into one operator."""
    query, key, value, mask, *rest = operands(node)
    if tuple(rest) != past or tuple(node.outputs[1:]) != present:
        raise OtherFormError("its operator does not read and give the cache")
    # onnxruntime writes down what it takes where nothing is said, and that is 0.
    strange = sorted(name for name, attribute in node.attributes.items() if name not in ("scale", "softcap") and attribute.value != 0)
    if strange or "scale" not in node.attributes:
        raise OtherFormError(f"its operator has {', '.join(strange) or 'no scale'}")
    softcap = node.attributes.get_float("softcap", 0.0)
    return Attention(query, key, value, past, present, mask, node.outputs[0], node.attributes.get_float("scale"), softcap)


def _checked(attention: Attention) -> Attention:
    """Return the same. OtherFormError where its sizes are not those that the operators take."""
    keyed = (attention.key, attention.value, attention.past[1])
    if attention.heads % attention.key_heads or any(size(value, 3) != attention.width for value in (attention.query, *keyed)):
        raise OtherFormError("its heads have different sizes")
    if any(size(value, 1) != attention.key_heads for value in keyed):
        raise OtherFormError("its keys and values have different heads")
    if attention.width % UNIT:
        raise OtherFormError(f"its heads are of the size {attention.width}, which is no multiple of {UNIT}")
    return attention


def _appended(present: ir.Value, past: ir.Value) -> ir.Value:
    """Return what is put behind the past."""
    node = made_by(present, "Concat")
    before, new = pair(node)
    if before is not past or node.attributes.get_int("axis", 0) not in (-2, 2):
        raise OtherFormError("its cache is not the past and what is new")
    return new


def _products(value: ir.Value) -> list[ir.Node]:
    """Return the products whose second factor is a value, or its heads repeated."""
    products = []
    for node, place in value.uses():
        if node.op_type == "MatMul" and place == 1:
            products.append(node)
        elif node.op_type in ("Unsqueeze", "Expand", "Reshape") and place == 0:
            products += _products(node.outputs[0])
    return products


def _unrepeated(value: ir.Value) -> ir.Value:
    """Heads before each was repeated for the queries' heads that share it: an axis behind them, Expand, Reshape."""
    node = value.producer()
    if node is None or node.op_type != "Reshape":
        return value
    raised = made_by(first_input(made_by(first_input(node), "Expand")), "Unsqueeze")
    if numbers(raised.inputs[1]) != [2]:
        raise OtherFormError("its heads are not repeated one by one")
    return first_input(raised)


def _unmasked(value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Scores, and the mask that is added to them: one for all heads."""
    left, right = operands(made_by(value, "Add"))
    for scores, mask in ((left, right), (right, left)):
        if mask.shape is not None and len(mask.shape) == 4 and mask.shape[1] == 1 and mask.dtype == scores.dtype:
            return scores, mask
    raise OtherFormError("its mask is not one for all heads")
