"""A graph in half precision: weights and most nodes in fp16, what would overflow or lose its meaning in fp32.

Called by the stage `onnx-fp16`. onnxruntime's own converter inserts casts under names that repeat where a value feeds two nodes
that stay in fp32, which norms do; here each cast is made once. Nodes stay in fp32 that square, sum and take roots (norms), that
work on angles and positions (rotary embeddings), and that read a weight beyond fp16's range. Free of torch and onnxruntime.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

LARGEST = 65504.0
MASK = 32752.0
"""Takes the place of larger constants of one element, which masks are made of: half the range, so that a score can be added."""
WIDE_OPERATORS = frozenset({
    "Pow", "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "Sqrt", "Reciprocal", "Sin", "Cos", "Range", "CumSum", "Exp", "Log",
    "Resize", "NonMaxSuppression", "RandomNormalLike", "RandomUniformLike", "DynamicQuantizeLinear", "QuantizeLinear",
})  # fmt: skip
"""Operators whose results or sums leave fp16's range or resolution, and those that take fp32 alone."""
_BETWEEN = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Clip"})
_SHAPING = frozenset({
    "Cast", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Concat", "Slice", "Identity", "MatMul", "Gather",
})  # fmt: skip
_ANGLES = frozenset({"Sin", "Cos"})
_ENDS = frozenset({"Sqrt", "Reciprocal"})


@dataclass
class Converted:
    """What was done to a graph."""

    weights: int = 0
    """Tensors that are fp16 now."""
    kept_nodes: Counter[str] = field(default_factory=Counter)
    """Operator → nodes left in fp32."""
    too_large: list[str] = field(default_factory=list)
    """Weights beyond the range of fp16, which stay fp32."""
    flushed: int = 0
    """Elements that are not zero and became zero."""
    elements: int = 0
    casts: int = 0


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT


def _too_large(value: ir.Value) -> bool:
    """Whether a weight has finite elements beyond fp16; single elements are masks' and are limited instead."""
    if not value.is_initializer() or value.const_value is None or not _is_float(value) or value.const_value.size <= 1:
        return False
    array = value.const_value.numpy()
    return bool((np.abs(array[np.isfinite(array)]) > LARGEST).any())


class HalfRewriter:
    """Converts one graph in place.

    Outputs named in `wide_outputs` stay fp32; all other inputs and outputs become fp16. Nodes that give or take a value named
    in `overflowing` stay fp32.
    """

    def __init__(self, model: ir.Model, wide_outputs: frozenset[str] = frozenset(), overflowing: frozenset[str] = frozenset()) -> None:
        self.model = model
        self._overflowing = overflowing
        self.done = Converted()
        self._wide_outputs = wide_outputs
        self._casts: dict[tuple[ir.Value, ir.DataType, int], ir.Value] = {}
        self._graphs = (model.graph, *model.graph.subgraphs())

    def rewrite(self) -> Converted:
        """Convert; gives what was done. Everything in the graph must have a known type."""
        nodes = list(self.model.graph.all_nodes())
        kept = self._kept(nodes)
        self.done.kept_nodes = Counter(node.op_type for node in kept)
        initializers = [value for graph in self._graphs for value in graph.initializers.values() if _is_float(value)]
        computed = {value for node in nodes for value in node.outputs if _is_float(value)}
        narrow = {value for node in nodes if node not in kept for value in node.outputs if value in computed}
        inputs = {value for graph in self._graphs for value in graph.inputs if _is_float(value)}
        for value in initializers:
            if any(user not in kept for user, _ in value.uses()) or value.is_graph_output():
                self._narrow_weight(value)
                narrow.add(value)
        narrow |= inputs
        for node in nodes:
            if node not in kept:
                self._narrow_attributes(node)
        for value in narrow:
            value.type = ir.TensorType(ir.DataType.FLOAT16)
        for node in nodes:
            self._cast_inputs(node, ir.DataType.FLOAT if node in kept else ir.DataType.FLOAT16)
        self._cast_outputs()
        return self.done

    def _kept(self, nodes: list[ir.Node]) -> set[ir.Node]:
        """Nodes that stay in fp32."""
        too_large = {value for node in nodes for value in node.inputs if value is not None and _too_large(value)}
        self.done.too_large = sorted(value.name or "" for value in too_large)
        kept = {node for node in nodes if any(map(_is_float, (*node.inputs, *node.outputs))) and node.op_type in WIDE_OPERATORS}
        kept |= {node for node in nodes if too_large & set(node.inputs)}
        kept |= {node for node in nodes if any(value.name in self._overflowing for value in (*node.inputs, *node.outputs) if value)}
        for node in list(kept):
            if node.op_type in _ANGLES:
                self._keep_before(node, kept)
            elif node.op_type in _ENDS:
                self._keep_between(node, kept)
        return kept

    @staticmethod
    def _keep_before(node: ir.Node, kept: set[ir.Node]) -> None:
        """Angles: everything that an angle is computed with, back to the positions."""
        stack = [value for value in node.inputs if _is_float(value)]
        while stack:
            value = stack.pop()
            producer = value.producer() if value is not None else None
            if producer is None or producer in kept or producer.op_type not in _SHAPING | _BETWEEN:
                continue
            kept.add(producer)
            stack += [value for value in producer.inputs if _is_float(value)]

    @staticmethod
    def _keep_between(node: ir.Node, kept: set[ir.Node]) -> None:
        """Norms: the addition of epsilon between the mean of squares and the root."""
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.op_type in _BETWEEN:
                kept.add(producer)

    def _narrow(self, array: np.ndarray) -> np.ndarray:
        if array.size <= 1:
            finite = np.isfinite(array) & (np.abs(array) > MASK)
            array = np.where(finite, np.sign(array) * np.float32(MASK), array)
        half: np.ndarray = array.astype(np.float16)
        self.done.flushed += int(((half == 0) & (array != 0)).sum())
        self.done.elements += int(array.size)
        return half

    def _narrow_weight(self, value: ir.Value) -> None:
        assert value.const_value is not None
        value.const_value = ir.tensor(self._narrow(value.const_value.numpy()), name=value.name)
        self.done.weights += 1

    def _narrow_attributes(self, node: ir.Node) -> None:
        """Constants in attributes, and types that a node is told to give."""
        if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1, np.float16)))
        for name, attribute in list(node.attributes.items()):
            value: Any = attribute.value
            if attribute.type == ir.AttributeType.TENSOR and value.dtype == ir.DataType.FLOAT:
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(self._narrow(value.numpy())))
            elif name in ("to", "dtype") and value == int(ir.DataType.FLOAT):
                node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT16))
        if node.op_type == "Constant" and {"value_float", "value_floats"} & node.attributes.keys():
            name = "value_float" if "value_float" in node.attributes else "value_floats"
            array = np.asarray(node.attributes.pop(name).value, np.float32)
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(self._narrow(array)))

    def _cast_inputs(self, node: ir.Node, wanted: ir.DataType) -> None:
        if node.op_type == "Cast":  # takes any type
            return
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16) and value.dtype != wanted:
                node.replace_input_with(index, self._cast(value, wanted, node))

    def _cast(self, value: ir.Value, wanted: ir.DataType, before: ir.Node) -> ir.Value:
        """The value in another type, converted once in a graph."""
        graph = before.graph
        assert graph is not None
        place = (value, wanted, id(graph))
        if place not in self._casts:
            name = f"{value.name}.{wanted.name.lower()}" if graph is self.model.graph else f"{before.outputs[0].name}.{value.name}.cast"
            cast = ir.node("Cast", [value], {"to": int(wanted)}, name=name)
            cast.outputs[0].name, cast.outputs[0].shape, cast.outputs[0].type = name, value.shape, ir.TensorType(wanted)
            producer = value.producer()
            if producer is not None and producer.graph is graph:
                graph.insert_after(producer, cast)
            else:
                graph.insert_before(graph[0], cast)
            self._casts[place] = cast.outputs[0]
            self.done.casts += 1
        return self._casts[place]

    def _cast_outputs(self) -> None:
        """Bring the graphs' outputs to the types that they shall have, under their names."""
        for graph in self._graphs:
            for index, value in enumerate(graph.outputs):
                wide = graph is self.model.graph and value.name in self._wide_outputs
                wanted = ir.DataType.FLOAT if wide else ir.DataType.FLOAT16
                if value.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16) or value.dtype == wanted:
                    continue
                name = value.name
                value.name = f"{name}.{'float16' if wide else 'float'}"
                cast = ir.node("Cast", [value], {"to": int(wanted)}, name=f"{name}.cast")
                cast.outputs[0].name, cast.outputs[0].shape, cast.outputs[0].type = name, value.shape, ir.TensorType(wanted)
                graph.append(cast)
                graph.outputs[index] = cast.outputs[0]
                self.done.casts += 1
