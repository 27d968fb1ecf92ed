"""Finds a graph's weights and replaces its nodes: the common part of the stages that make graphs smaller.

Called by `integer`, `weight_only` and `int8_static`'s rewriter. Looks into subgraphs too, so both branches of a merged decoder
are found. Imports neither torch nor onnxruntime.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from handlers.graphs.graph_file import weight_bytes
from handlers.graphs.weights.shared_weights import initializers
from handlers.graphs.weights.spool import Spool

SENTENCE_OUTPUT = "sentence_embedding"
"""The output that holds the vector of a text: sentence-transformers' name for it, and optimum's."""
MIN_SIDE = 16
"""Smaller matrices, such as the frequencies of rotary embeddings, stay in fp32: nothing to gain, much to lose."""
MIN_TABLE_SHARE = 0.02
"""A table below this share of all weights stays in fp32: position tables above all."""


@dataclass
class Counts:
    """What was done to a graph."""

    quantized: Counter[str] = field(default_factory=Counter)
    """Operator → how many were changed."""
    kept: Counter[str] = field(default_factory=Counter)
    """Operator and reason → how many nodes read a constant matrix that stayed in fp32."""
    shared_tables: int = 0
    """Embedding tables that also serve as the output layer's weight."""

    def add(self, other: Counts) -> None:
        """Count another graph's in."""
        self.quantized.update(other.quantized)
        self.kept.update(other.kept)
        self.shared_tables += other.shared_tables

    @property
    def figures(self) -> dict[str, object]:
        """As the stages' results state them."""
        return {
            "quantized_nodes": sum(self.quantized.values()),
            "kept_fp32_nodes": sum(self.kept.values()),
            "op_types": dict(sorted(self.quantized.items())),
            "kept_fp32": dict(sorted(self.kept.items())),
            "shared_tables": self.shared_tables,
        }


def array_of(value: ir.Value) -> np.ndarray:
    """Return the content of an initializer."""
    if value.const_value is None:
        raise ValueError(f"{value.name} has no value")
    return value.const_value.numpy()


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Return the sizes of an initializer; its content is not read."""
    if value.const_value is None:
        raise ValueError(f"{value.name} has no value")
    return tuple(value.const_value.shape.numpy())


def release(value: ir.Value) -> None:
    """Let go of the mapped file of a weight, which is mapped anew when it is read again: its pages count for this process no more."""
    if isinstance(value.const_value, ir.ExternalTensor):
        with contextlib.suppress(BufferError):  # someone still reads it
            value.const_value.release()


def _is_weight(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Return whether a value is a constant of fp32 with two dimensions or more."""
    if value is None or not value.is_initializer() or value.const_value is None or value.const_value.dtype != ir.DataType.FLOAT:
        return False
    return len(value.const_value.shape) > 1


def _is_matrix(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Return whether a weight is a matrix large enough to be worth it."""
    return _is_weight(value) and value.const_value is not None and _fault(value.const_value.shape.numpy()) is None


def _fault(shape: Iterable[int]) -> str | None:
    """Return why a weight of such a shape is no matrix that could be turned."""
    sizes = list(shape)
    if len(sizes) != 2:
        return f"{len(sizes)} dimensions"
    return None if min(sizes) >= MIN_SIDE else f"a side below {MIN_SIDE}"


@dataclass(frozen=True)
class Product:
    """A node that multiplies by a constant matrix."""

    node: ir.Node
    weight: ir.Value
    transposed: bool
    """The matrix is stored (outputs, inputs) instead of (inputs, outputs)."""

    @property
    def factor(self) -> ir.Value:
        """The activation, as it is now: what computed it may have been replaced since the product was found."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def bias(self) -> ir.Value | None:
        """What is added."""
        return self.node.inputs[2] if self.node.op_type == "Gemm" and len(self.node.inputs) > 2 else None


def _through_transpose(value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """Return what a Transpose turns and True, or the value itself and False."""
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "Transpose":
        return producer.inputs[0], True
    return value, False


def _is_plain(node: ir.Node) -> bool:
    """Return whether a node is MatMul, or Gemm without factors and without a turned first matrix."""
    if node.op_type == "MatMul":
        return True
    factors = (node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0))
    return node.op_type == "Gemm" and factors == (1.0, 1.0) and not node.attributes.get_int("transA", 0)


def after_pooling(model: ir.Model) -> set[ir.Node]:
    """Nodes that nothing but the vectors of texts is computed with: the modules that sentence-transformers has after its model.

    They stay in fp32. They are a small part of the model, and a library that runs the graph for its vectors of tokens computes them in
    fp32 itself, so that both give the same vectors.
    """
    outputs = [value for value in model.graph.outputs if value.name == SENTENCE_OUTPUT]
    others = [value for value in model.graph.outputs if value.name != SENTENCE_OUTPUT]
    return _ancestors(outputs) - _ancestors(others) if others else set()


def _ancestors(values: Iterable[ir.Value]) -> set[ir.Node]:
    """Return the nodes that values are computed with, outside of subgraphs."""
    ancestors: set[ir.Node] = set()
    waiting = [node for value in values if (node := value.producer()) is not None]
    while waiting:
        node = waiting.pop()
        if node not in ancestors:
            ancestors.add(node)
            waiting += [before for value in node.inputs if value is not None and (before := value.producer()) is not None]
    return ancestors


def find_products(model: ir.Model) -> list[Product]:
    """MatMul and plain Gemm nodes whose second factor is a constant matrix, seen through a Transpose; not those after the pooling."""
    products, kept = [], after_pooling(model)
    for node in model.graph.all_nodes():
        if not _is_plain(node) or node in kept:
            continue
        weight, turned = _through_transpose(node.inputs[1])
        transposed = turned != (node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0)))
        if _is_matrix(weight):
            products.append(Product(node, weight, transposed))
    return products


@dataclass(frozen=True)
class Lookup:
    """A node that looks rows up in a constant matrix."""

    node: ir.Node
    table: ir.Value
    rows: ir.Value


def _looks_up(node: ir.Node) -> bool:
    return node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0


def find_lookups(model: ir.Model) -> list[Lookup]:
    """Gather nodes along the rows of a constant matrix that holds a good share of the model."""
    total = weight_bytes(model)
    lookups = []
    for node in model.graph.all_nodes():
        if _looks_up(node):
            table, rows = node.inputs
            if _is_matrix(table) and rows is not None and array_of(table).nbytes >= MIN_TABLE_SHARE * total:
                lookups.append(Lookup(node, table, rows))
    return lookups


def left_behind(model: ir.Model, weights: set[ir.Value]) -> Counter[str]:
    """ "Operator: reason" → nodes that read one of `weights`, seen through a Transpose."""
    kept: Counter[str] = Counter()
    pooled = after_pooling(model)
    for node in model.graph.all_nodes():
        for value in node.inputs if node.op_type != "Transpose" else ():
            weight, _ = _through_transpose(value)
            if weight not in weights or weight is None or weight.const_value is None:
                continue
            reason = _fault(weight.const_value.shape.numpy())
            if reason is None and _looks_up(node):
                reason = "a table of little weight"
            if reason is None and node in pooled:
                reason = "a module after the pooling"
            kept[f"{node.op_type}: {reason or 'an operator that is not turned'}"] += 1
    return kept


class Rewriter:
    """Changes one graph in place, node by node; `counts` says what was done."""

    def __init__(self, model: ir.Model, spool: Spool | None = None) -> None:
        """`spool`: where large constants wait until the graph is written; without one, in memory."""
        self.model = model
        self._spool = spool
        self.counts = Counts()
        self._weights_before = {value for value in initializers(model) if _is_weight(value)}

    def rewrite(self) -> Counts:
        """Turn every product and table that can be turned, and forget the fp32 weights that nothing reads any more."""
        products, lookups = (
            [product for product in find_products(self.model) if self.turns(product)],
            [lookup for lookup in find_lookups(self.model) if self.looks_up(lookup)],
        )
        tied = {lookup.table for lookup in lookups} & {product.weight for product in products if product.transposed}
        self.prepare(tied)
        for lookup in lookups:
            self.turn_lookup(lookup)
            self.counts.quantized["Gather"] += 1
        for product in products:
            self.counts.quantized[product.node.op_type] += 1
            self.turn_product(product)
        self.counts.shared_tables = len(tied)
        self._forget_unused()
        self.counts.kept = left_behind(self.model, self._weights_before)
        return self.counts

    def prepare(self, tied: set[ir.Value]) -> None:
        """Called first, with the tables that serve as the output layer's weight too."""

    def turns(self, product: Product) -> bool:
        """Return whether a product is one to be turned."""
        return True

    def looks_up(self, lookup: Lookup) -> bool:
        """Return whether a lookup is one to be turned."""
        return True

    def turn_lookup(self, lookup: Lookup) -> None:
        """Put something smaller in a lookup's place."""
        raise NotImplementedError

    def turn_product(self, product: Product) -> None:
        """Put something smaller in a product's place."""
        raise NotImplementedError

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """Return an initializer of the main graph, made once: its name says which weight and which use it belongs to."""
        known = self.model.graph.initializers.get(name)
        if known is not None:
            return known
        tensor = ir.tensor(array, name=name) if self._spool is None else self._spool.tensor(array, name)
        value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
        self.model.graph.register_initializer(value)
        return value

    def add(
        self, before: ir.Node, operator: str, *inputs: ir.Value | None, name: str, outputs: int = 1, domain: str = "",
        **attributes: int | list[int],
    ) -> ir.Node:  # fmt: skip
        """Return a new node in front of another, in that one's graph; its outputs are called `name`, or `name.0`, `name.1`, …"""
        node = ir.node(operator, list(inputs), attributes, num_outputs=outputs, name=name, domain=domain)
        for index, output in enumerate(node.outputs):
            output.name = name if outputs == 1 else f"{name}.{index}"
        graph = before.graph
        assert graph is not None
        graph.insert_before(before, node)
        return node

    def replace(self, node: ir.Node, result: ir.Node) -> None:
        """Let everyone read `result` who read `node`, under the same name, and remove `node`."""
        old, new = node.outputs[0], result.outputs[0]
        new.shape, new.type = old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name, new.name = f"{old.name}.fp32", old.name
        assert node.graph is not None
        node.graph.remove(node, safe=True)

    def _forget_unused(self) -> None:
        for node in list(self.model.graph.all_nodes()):
            if node.op_type == "Transpose" and not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                assert node.graph is not None
                node.graph.remove(node, safe=True)
        for graph in (self.model.graph, *self.model.graph.subgraphs()):
            for name, value in list(graph.initializers.items()):
                if not value.uses() and not value.is_graph_output():
                    del graph.initializers[name]
