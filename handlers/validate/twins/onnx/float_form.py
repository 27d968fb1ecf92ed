"""A graph with its weights as they are stored, and all arithmetic in fp32: what it computes without the rounding of activations.

Used by the comparison with the twin. Nothing is done to the weights themselves: the graph multiplies integers, cast to fp32, and goes on
with its own scales, so that what is wrong in the graph stays wrong here. It has to be run without onnxruntime's optimizations, which would
make integer products again, and unpack the weights. Imports onnx alone.

Operators: https://onnx.ai/onnx/operators/ and https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from handlers.validate.twins.onnx.graphs import HALVES, MICROSOFT, Scope, attributes
from handlers.validate.twins.weights import UnreadableError

FLOAT = 1
"""Accuracy level of MatMulNBits that multiplies in fp32."""
_SMALL = 1 << 16
_DYNAMIC = "DynamicQuantizeLinear"


def float_form(path: Path) -> bytes:
    """Give the float form of a graph, to be opened with the folder of its weights. Raises UnreadableError where there is none."""
    model = onnx.load(path, load_external_data=False)
    if any(
        attributes(node).get("kv_cache_bit_width", 0) or attributes(node).get("k_quant_type", b"NONE") != b"NONE"
        for node in _nodes(model.graph)
    ):
        raise UnreadableError("its KV cache is rounded to int8")
    del model.graph.value_info[:]
    _change(Scope(model.graph, path.parent))
    written: bytes = model.SerializeToString()
    return written


def rounds_as_it_runs(model: onnx.ModelProto) -> bool:
    """Tell whether it rounds activations with one scale for a whole tensor, taken of that tensor."""
    return any(node.op_type == _DYNAMIC for node in _nodes(model.graph))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _change(scope: Scope) -> None:
    graph, nodes = scope.graph, list[onnx.NodeProto]()
    halves = _widen_tensors(scope)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                del attribute.g.value_info[:]
                _change(Scope(attribute.g, scope.folder, scope))
        _widen(node)
        nodes += _floats(scope, node)
    del graph.node[:]
    graph.node.extend([*halves, *nodes])
    for value in (*graph.input, *graph.output):
        kind = value.type.tensor_type
        if kind.elem_type in HALVES:
            kind.elem_type = TensorProto.FLOAT


def _widen_tensors(scope: Scope) -> list[onnx.NodeProto]:
    """Small halves become fp32, large ones are cast when they are read; the casts."""
    casts = []
    for tensor in scope.graph.initializer:
        if tensor.data_type not in HALVES:
            continue
        if np.prod(tensor.dims) <= _SMALL:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor, str(scope.folder)).astype(np.float32), tensor.name))
        else:
            name, tensor.name = tensor.name, f"{tensor.name}.half"
            casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    return casts


def _widen(node: onnx.NodeProto) -> None:
    """Of what a node says itself of types."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in HALVES:
            attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float32), attribute.t.name))
        elif attribute.type == onnx.AttributeProto.INT and attribute.name in ("to", "dtype") and attribute.i in HALVES:
            attribute.i = TensorProto.FLOAT


def _floats(scope: Scope, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Give what stands in a node's place."""
    kind, stem = node.op_type, node.output[0] if node.output else ""
    if kind == "MatMulNBits" and node.domain == MICROSOFT:
        kept = [attribute for attribute in node.attribute if attribute.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("accuracy_level", FLOAT)])
    elif kind == _DYNAMIC:
        unit, nothing = (numpy_helper.from_array(np.array(number, np.float32)) for number in (1, 0))
        return [
            helper.make_node("Identity", [node.input[0]], [node.output[0]]),
            *(
                helper.make_node("Constant", [], [name], value=value)
                for name, value in zip(node.output[1:], (unit, nothing), strict=True)
                if name
            ),
        ]
    elif kind == "MatMulInteger":
        made, factors = list[onnx.NodeProto](), list[str]()
        for place, name in enumerate(node.input[:2]):
            wide = f"{stem}.factor.{place}"
            made.append(helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT))
            if len(node.input) > place + 2 and (zero := node.input[place + 2]):
                made.append(helper.make_node("Cast", [zero], [f"{wide}.zero"], to=TensorProto.FLOAT))
                made.append(helper.make_node("Sub", [wide, f"{wide}.zero"], [f"{wide}.from_zero"]))
                wide = f"{wide}.from_zero"
            factors.append(wide)
        return [*made, helper.make_node("MatMul", factors, list(node.output))]
    elif kind in ("QuantizeLinear", "DequantizeLinear") and scope.root(node.input[0]) is None:
        return [helper.make_node("Identity", [node.input[0]], list(node.output))]
    return [node]
