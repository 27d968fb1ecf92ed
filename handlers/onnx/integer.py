"""Weights of a graph in int8, in standard ONNX operators: what the onnx-int8 stage does to a graph.

Matrix products become DynamicQuantizeLinear → MatMulInteger → two scales, as onnxruntime's `quantize_dynamic` writes
them: symmetric int8 weights with one scale an output column, uint8 activations whose range is taken at run time.
Beyond that tool it takes Gemm without rewriting it first, stores embedding tables in int8 with one scale a row, and
lets an output layer that is tied to the embedding share its table. Weights are turned one at a time, so memory stays
near the size of the result. Imports neither torch nor onnxruntime.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from handlers.onnx.graph import weight_bytes

MIN_SIDE = 16
"""Smaller matrices, such as the frequencies of rotary embeddings, stay in fp32: nothing to gain, much to lose."""
MIN_TABLE_SHARE = 0.02
"""A table below this share of all weights stays in fp32: position tables above all."""
_BLOCK = 1 << 22
"""Elements turned at once."""


@dataclass
class Counts:
    """What was done to a graph."""

    quantized: Counter[str] = field(default_factory=Counter)
    """Operator → how many became integer."""
    kept: int = 0
    """Matrix products and tables with constant weights that stayed in fp32."""
    shared_tables: int = 0
    """Embedding tables that also serve as the output layer's weight."""


@dataclass(frozen=True)
class IntegerWeight:
    """A matrix as int8 `values` in its stored layout and fp32 `scales`, one for each row or column of that layout."""

    stem: str
    """What the names of its parts begin with."""
    values: ir.Value
    scales: np.ndarray


def quantize_matrix(weight: np.ndarray, channel: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 of an fp32 matrix, one scale for each index of axis `channel`: (int8 matrix, fp32 scales).

    scale = max|w| / 127, value = round(w / scale), half to even; a channel of zeros has scale 1.
    """
    other = 1 - channel
    extent = np.maximum(weight.max(axis=other), -weight.min(axis=other)).astype(np.float32)
    scales = np.where(extent > 0, extent / np.float32(127), np.float32(1)).astype(np.float32)
    values = np.empty(weight.shape, np.int8)
    rows = max(1, _BLOCK // weight.shape[1])
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        divisor = scales[part, None] if channel == 0 else scales[None, :]
        values[part] = np.rint(weight[part] / divisor)
    return values, scales


def _array(value: ir.Value) -> np.ndarray:
    if value.const_value is None:
        raise ValueError(f"{value.name} has no value")
    return value.const_value.numpy()


def _is_matrix(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Whether a value is a constant fp32 matrix large enough to be worth it."""
    if value is None or not value.is_initializer() or value.const_value is None or value.const_value.dtype != ir.DataType.FLOAT:
        return False
    shape = value.const_value.shape.numpy()
    return len(shape) == 2 and min(shape) >= MIN_SIDE


@dataclass(frozen=True)
class Product:
    """A node that multiplies by a constant matrix."""

    node: ir.Node
    factor: ir.Value
    """The activation."""
    weight: ir.Value
    transposed: bool
    """The matrix is stored (outputs, inputs) instead of (inputs, outputs)."""
    bias: ir.Value | None = None


def find_products(model: ir.Model) -> list[Product]:
    """MatMul and plain Gemm nodes whose second factor is a constant matrix, seen through a Transpose."""
    found = []
    for node in model.graph:
        if node.op_type not in ("MatMul", "Gemm"):
            continue
        factor, weight = node.inputs[0], node.inputs[1]
        bias, transposed = None, False
        if node.op_type == "Gemm":
            if (
                node.attributes.get_float("alpha", 1.0) != 1
                or node.attributes.get_float("beta", 1.0) != 1
                or node.attributes.get_int("transA", False)
            ):
                continue
            bias, transposed = node.inputs[2] if len(node.inputs) > 2 else None, bool(node.attributes.get_int("transB", False))
        producer = weight.producer() if weight is not None else None
        if producer is not None and producer.op_type == "Transpose":
            weight, transposed = producer.inputs[0], not transposed
        if factor is not None and _is_matrix(weight):
            found.append(Product(node, factor, weight, transposed, bias))
    return found


@dataclass(frozen=True)
class Lookup:
    """A node that looks rows up in a constant matrix."""

    node: ir.Node
    table: ir.Value
    rows: ir.Value


def find_lookups(model: ir.Model) -> list[Lookup]:
    """Gather nodes along the rows of a constant matrix that holds a good share of the model."""
    total = weight_bytes(model)
    found = []
    for node in model.graph:
        if node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0:
            table, rows = node.inputs
            if _is_matrix(table) and rows is not None and _array(table).nbytes >= MIN_TABLE_SHARE * total:
                found.append(Lookup(node, table, rows))
    return found


class IntegerRewriter:
    """Rewrites one graph in place; `counts` says what it did."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.counts = Counts()
        self._weights: dict[str, IntegerWeight] = {}
        self._activations: dict[ir.Value, tuple[ir.Value, ir.Value, ir.Value]] = {}

    def rewrite(self) -> Counts:
        """Turn every product and table that can be turned, and forget the fp32 weights that nothing reads any more."""
        products, lookups = find_products(self.model), find_lookups(self.model)
        tied = {lookup.table for lookup in lookups} & {product.weight for product in products if product.transposed}
        for lookup in lookups:
            self._lookup(lookup)
        for product in products:
            self._product(product)
        self.counts.shared_tables = len(tied)
        self._forget_unused()
        self.counts.kept = len(find_products(self.model)) + len(find_lookups(self.model))
        return self.counts

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        """An initializer, made once: its name says which weight and which use it belongs to."""
        known = self.model.graph.initializers.get(name)
        if known is not None:
            return known
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
        self.model.graph.register_initializer(value)
        return value

    def _integer(self, weight: ir.Value, channel: int) -> IntegerWeight:
        """The int8 form of a weight, made once however many nodes read it."""
        stem = f"{weight.name}.int8.{'rows' if channel == 0 else 'columns'}"
        if stem not in self._weights:
            values, scales = quantize_matrix(_array(weight), channel)
            self._weights[stem] = IntegerWeight(stem, self._constant(stem, values), scales)
        return self._weights[stem]

    def _add(
        self, before: ir.Node, operator: str, *inputs: ir.Value, name: str, outputs: int = 1, **attributes: int | list[int]
    ) -> ir.Node:
        node = ir.node(operator, list(inputs), attributes, num_outputs=outputs, name=name)
        for index, output in enumerate(node.outputs):
            output.name = name if outputs == 1 else f"{name}.{index}"
        self.model.graph.insert_before(before, node)
        return node

    def _replace(self, node: ir.Node, result: ir.Node) -> None:
        old, new = node.outputs[0], result.outputs[0]
        new.shape, new.type = old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name, new.name = f"{old.name}.fp32", old.name
        self.model.graph.remove(node, safe=True)

    def _lookup(self, lookup: Lookup) -> None:
        """Gather int8 rows and their scales, and multiply."""
        node, table = lookup.node, lookup.table
        integer = self._integer(table, 0)
        scales = self._constant(f"{integer.stem}.table_scale", integer.scales[:, None])
        stem = f"{node.outputs[0].name}.int8"
        rows = self._add(node, "Gather", integer.values, lookup.rows, name=f"{stem}.rows", axis=0)
        wide = self._add(node, "Cast", rows.outputs[0], name=f"{stem}.cast", to=int(ir.DataType.FLOAT))
        scale = self._add(node, "Gather", scales, lookup.rows, name=f"{stem}.scale", axis=0)
        self._replace(node, self._add(node, "Mul", wide.outputs[0], scale.outputs[0], name=f"{stem}.scaled"))
        self.counts.quantized["Gather"] += 1

    def _activation(self, value: ir.Value, before: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
        """(uint8 values, scale, zero point) of an activation, computed once however many products read it."""
        if value not in self._activations:
            node = self._add(before, "DynamicQuantizeLinear", value, name=f"{value.name}.uint8", outputs=3)
            self._activations[value] = (node.outputs[0], node.outputs[1], node.outputs[2])
        return self._activations[value]

    def _product(self, product: Product) -> None:
        """Multiply in integers, then bring the result back by the product of both scales."""
        node, channel = product.node, 0 if product.transposed else 1
        integer = self._integer(product.weight, channel)
        values, scale, zero = self._activation(product.factor, node)
        stem = f"{node.outputs[0].name}.int8"
        matrix = integer.values
        if product.transposed:
            matrix = self._add(node, "Transpose", matrix, name=f"{stem}.transposed", perm=[1, 0]).outputs[0]
        zeros = self._constant(f"{integer.stem}.zero_point", np.zeros(len(integer.scales), np.int8))
        column_scales = self._constant(f"{integer.stem}.scale", integer.scales)
        total = self._add(node, "MatMulInteger", values, matrix, zero, zeros, name=f"{stem}.sum")
        wide = self._add(node, "Cast", total.outputs[0], name=f"{stem}.cast", to=int(ir.DataType.FLOAT))
        scales = self._add(node, "Mul", scale, column_scales, name=f"{stem}.scales")
        result = self._add(node, "Mul", wide.outputs[0], scales.outputs[0], name=f"{stem}.scaled")
        if product.bias is not None:
            result = self._add(node, "Add", result.outputs[0], product.bias, name=f"{stem}.biased")
        self.counts.quantized[node.op_type] += 1
        self._replace(node, result)

    def _forget_unused(self) -> None:
        for node in list(self.model.graph):
            if node.op_type == "Transpose" and not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                self.model.graph.remove(node, safe=True)
        initializers = self.model.graph.initializers
        for name, value in list(initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del initializers[name]
