"""What a value of a quantized graph is: its integer type, the DequantizeLinear that it comes from, the integers of a constant.

Called by `integer_products`. Imports neither torch nor onnxruntime.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

SIGNED, UNSIGNED, OTHER, UNKNOWN = "int8", "uint8", "other", "unknown"
_TYPES = {ir.DataType.INT8: SIGNED, ir.DataType.UINT8: UNSIGNED}
_MOVES = {"Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Expand", "Dropout"}
"""Operators that leave elements as they are, and their type."""
_COMPUTES = {
    "MatMul", "Gemm", "Conv", "ConvTranspose", "MatMulInteger", "ConvInteger", "MatMulNBits", "Einsum", "FusedMatMul", "FusedGemm",
    "FusedConv", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QuantizeLinear", "DynamicQuantizeLinear", "Softmax", "LogSoftmax",
    "LayerNormalization", "SkipLayerNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization",
    "BatchNormalization", "InstanceNormalization", "GroupNormalization", "EmbedLayerNormalization", "LpNormalization", "Erf", "Tanh",
    "Sigmoid", "Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Swish", "Exp", "Log", "Sqrt", "Pow", "Reciprocal", "Sin", "Cos", "Neg", "Abs",
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding", "ReduceMean", "ReduceSum", "LSTM", "GRU", "RNN", "Gather",
    "GatherBlockQuantized", "Softplus",
}  # fmt: skip
"""Operators behind which values are new ones. Through any other, known or not, a runtime might carry a DequantizeLinear."""
_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Add": 0.0, "Sub": 0.0}
"""Operators that do nothing where one input is this constant."""
_SAME_SHAPE = {"DequantizeLinear", "Identity", "Cast", "Dropout"}
_LONGEST_WAY = 1000


def input_of(node: ir.Node, place: int | None) -> ir.Value | None:
    """Return an input, None where the node has not so many."""
    return node.inputs[place] if place is not None and place < len(node.inputs) else None


def type_of(value: ir.Value | None, zero: ir.Value | None) -> str:
    """Return the type of a quantized value: its own where the graph says it, else that of its zero point, which is the same."""
    return next((kind for kind in map(_stated_type, (value, zero)) if kind != UNKNOWN), UNKNOWN)


def _stated_type(value: ir.Value | None) -> str:
    while value is not None:
        dtype = value.const_value.dtype if value.const_value is not None else value.dtype
        if dtype is not None:
            return _TYPES.get(dtype, OTHER)
        node = value.producer()
        kind = node.op_type if node is not None else ""
        if node is None:
            break
        if kind == "DynamicQuantizeLinear":
            return UNSIGNED
        if kind == "Constant":
            array = _content(value)
            return UNKNOWN if array is None else _TYPES.get(ir.DataType.from_numpy(array.dtype), OTHER)
        if kind == "QuantizeLinear" and input_of(node, 2) is None:
            return _TYPES.get(ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8), OTHER)
        places = {"QuantizeLinear": 2, "QLinearMatMul": 7, "QLinearConv": 7} | dict.fromkeys(_MOVES, 0)
        if kind not in places:
            break
        value = input_of(node, places[kind])
    return UNKNOWN


def dequantizer(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear that a runtime may take a value to come from; None where it comes from anything else."""
    for _ in range(_LONGEST_WAY):
        node = value.producer() if value is not None else None
        if node is None or node.op_type in _COMPUTES or not node.inputs:
            return None
        if node.op_type == "DequantizeLinear":
            return node
        value = _carried(node) if node.op_type in _NEUTRAL else node.inputs[0]
    return None


def _carried(node: ir.Node) -> ir.Value | None:
    """Return what an operator of `_NEUTRAL` hands on as it is; None where it computes."""
    for place, other in ((0, 1), (1, 0)):
        constant = _content(node.inputs[other])
        if constant is not None and bool((constant == _NEUTRAL[node.op_type]).all()):
            return node.inputs[place]
    return None


def integers(value: ir.Value | None) -> np.ndarray | None:
    """The content of a constant, or the integers of a weight: seen through what quantizes, dequantizes, turns it or leaves it as it is.

    None of what is computed, or of another shape by then.
    """
    content = _content(value)
    node = value.producer() if value is not None else None
    if content is not None or node is None:
        return content
    if node.op_type == "QuantizeLinear":
        return _quantized(node)
    if node.op_type in _NEUTRAL:
        return integers(_carried(node))
    if node.op_type in _SAME_SHAPE:
        return integers(node.inputs[0])
    before = integers(node.inputs[0]) if node.op_type == "Transpose" else None
    return None if before is None else before.transpose(node.attributes.get_ints("perm", list(reversed(range(before.ndim)))))


def _content(value: ir.Value | None) -> np.ndarray | None:
    """Return what an initializer or a Constant holds; None of anything else."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    tensor = node.attributes.get("value") if node is not None and node.op_type == "Constant" else None
    return None if tensor is None else tensor.as_tensor().numpy()


def _quantized(node: ir.Node) -> np.ndarray | None:
    """Return what a QuantizeLinear to int8 makes of a constant, by columns or as a whole; None of anything else."""
    weight, scale, zero = (_content(input_of(node, place)) for place in range(3))
    if weight is None or scale is None or zero is None or zero.dtype != np.int8 or "block_size" in node.attributes:
        return None
    shape = [1] * weight.ndim
    if scale.ndim:
        shape[node.attributes.get_int("axis", 1)] = -1
    values: np.ndarray = np.rint(weight / scale.reshape(shape)) + zero.astype(np.float32).reshape(shape if zero.ndim else [1] * weight.ndim)
    return values.clip(-128, 127).astype(np.int8)
