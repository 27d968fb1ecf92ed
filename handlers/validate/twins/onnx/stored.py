"""The weights that a graph stores in other numbers than fp32: integers with scales and zero points, and halves.

Used by the comparison with the twin. What the numbers mean follows from the specification of the operator that reads them, and from nothing
else: https://onnx.ai/onnx/operators/ (DequantizeLinear, MatMulInteger) and
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md (MatMulNBits, GatherBlockQuantized). No name is looked at.
A matrix has the form (outputs, inputs), a table (rows, columns). Imports onnx alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from handlers.validate.twins.onnx.graphs import MICROSOFT, Scope, attributes
from handlers.validate.twins.weights import Scaled, UnreadableError, Use, unpacked

_UNKNOWN = re.compile(
    r"QLinear.+|ConvInteger|QAttention|QGemm|Q.*MoE|QEmbed.*|DynamicQuantize(?!Linear$).+|MatMulIntegerToFloat|MatMul(Bnb4|FpQ4)"
)
"""Operators over integers whose weights are not read here; no stage of ckptd makes them."""
_LARGE = 256
"""Elements from which on stored integers are weights."""
_INTEGERS = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
_SMALL = 1 << 16


def read(path: Path, role: str = "") -> list[Scaled]:
    """Give the stored weights of a graph, each once for each use. Raises UnreadableError where some are not understood."""
    model = onnx.load(path, load_external_data=False)
    weights: dict[tuple[str, str], Scaled] = {}
    seen: set[str] = set()
    for scope, node in Scope(model.graph, path.parent):
        if _UNKNOWN.fullmatch(node.op_type):
            raise UnreadableError(f"its operator {node.op_type} is not known here")
        for weight, tensors in _of_node(scope, node):
            weights.setdefault((weight.name, weight.use), weight)
            seen.update(tensors)
    for scope in _scopes(Scope(model.graph, path.parent)):
        for tensor in scope.graph.initializer:
            if tensor.data_type in _INTEGERS and np.prod(tensor.dims) >= _LARGE and tensor.name not in seen:
                raise UnreadableError(f"the numbers of {tensor.name} are read by operators that are not known here")
    return [replace(weight, role=role) for weight in weights.values()]


def halves(path: Path) -> set[bytes]:
    """Give the bytes of each small tensor in halves: norms, biases."""
    contents = set()
    for scope in _scopes(Scope(onnx.load(path, load_external_data=False).graph, path.parent)):
        for tensor in scope.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT16 and 1 < np.prod(tensor.dims) <= _SMALL:
                array = scope.constant(tensor.name)
                contents.add(b"" if array is None else array.tobytes())
    return contents


def _scopes(scope: Scope) -> Iterator[Scope]:
    yield scope
    for node in scope.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _scopes(Scope(attribute.g, scope.folder, scope))


def _of_node(scope: Scope, node: onnx.NodeProto) -> Iterator[tuple[Scaled, list[str]]]:
    """Yield the weight that a node reads, with the names of all tensors that it is made of."""
    if node.domain == MICROSOFT and node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
        yield _blocks(scope, node)
    elif node.op_type == "MatMulInteger":
        yield from filter(None, [_integer_product(scope, node)])
    elif node.op_type in ("MatMul", "Gemm"):
        turned = not (node.op_type == "Gemm" and attributes(node).get("transB", 0))
        yield from filter(None, [_dequantized(scope, node.input[1], "product", turned=turned)])
    elif node.op_type == "Gather" and attributes(node).get("axis", 0) == 0:
        yield from filter(None, [_integer_table(scope, node) or _dequantized(scope, node.input[0], "table", turned=False)])


def _needed(scope: Scope, name: str, what: str) -> np.ndarray:
    array = scope.constant(name)
    if array is None:
        raise UnreadableError(f"{what} {name or 'of a product'} is computed, not stored")
    return array


def _blocks(scope: Scope, node: onnx.NodeProto) -> tuple[Scaled, list[str]]:
    """MatMulNBits (A, B, scales, zero points, group index, bias) and GatherBlockQuantized (data, indices, scales, zero points)."""
    settings = attributes(node)
    inputs = [*node.input, "", "", ""]
    product = node.op_type == "MatMulNBits"
    if product and inputs[4]:
        raise UnreadableError("the columns of its MatMulNBits are in groups of their own")
    if not product and (settings.get("gather_axis", 0), settings.get("quantize_axis", 1)) not in ((0, 1), (0, -1)):
        raise UnreadableError("its GatherBlockQuantized takes other axes")
    place = 1 if product else 0
    data, scales = _needed(scope, inputs[place], "the weight"), _needed(scope, inputs[2], "the scale")
    bits, block = int(settings.get("bits", 4)), int(settings["block_size"])
    rows = int(settings["N"]) if product else len(data)
    whole = data.dtype not in (np.uint8, np.int8)  # int4 as a type of its own: an element each
    codes, scales = data.reshape(rows, -1), scales.reshape(rows, -1)
    signed = whole and data.dtype.name.startswith("int")
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    zeros = scope.constant(inputs[3])
    if zeros is None:
        zeros = np.full((1, 1), 0 if whole else 1 << (bits - 1))
    elif zeros.dtype == np.uint8:
        zeros = unpacked(zeros.reshape(rows, -1), bits)[:, : scales.shape[1]]
    else:
        zeros = zeros.reshape(rows, -1)
    if zeros.shape != (1, 1) and zeros.shape != scales.shape:
        raise UnreadableError(f"the zero points of {inputs[place]} are of another shape than its scales")
    zeros = np.broadcast_to(zeros, scales.shape)
    columns = int(settings["K"]) if product else _cut(scope, node.output[0]) or codes.shape[1] * (1 if whole else 8 // bits)
    stored = Scaled(
        scope.root(inputs[place]) or inputs[place], "product" if product else "table", codes.astype(np.int8) if whole else codes, columns,
        scales, zeros, block, 8 if whole else bits, (low, high),
    )  # fmt: skip
    return stored, [name for value in (inputs[place], inputs[3]) if (name := scope.root(value))]


def _cut(scope: Scope, name: str) -> int | None:
    """Give how many columns of a table's rows are used, where the last block holds more than the row; None where all are."""
    for node in scope.readers(name):
        if node.op_type == "Slice":
            starts, ends = (scope.constant(value) for value in node.input[1:3])
            if starts is not None and ends is not None and starts.size == ends.size == 1 and int(starts.reshape(-1)[0]) == 0:
                return int(ends.reshape(-1)[0])
    return None


def _dequantized(scope: Scope, name: str, use: Use, *, turned: bool) -> tuple[Scaled, list[str]] | None:
    """Give a matrix in halves, or one of DequantizeLinear (x, scale, zero point), through a Transpose or a Cast; None for others."""
    array = scope.constant(name)
    if array is not None:
        root = scope.root(name) or name
        origin = scope.find(root)
        tensor = origin[1] if origin else None
        if array.ndim != 2 or not isinstance(tensor, onnx.TensorProto) or tensor.data_type != onnx.TensorProto.FLOAT16:
            return None
        halves = (array.T if turned else array).astype(np.float16, copy=False)
        return Scaled(root, use, halves, halves.shape[1]), [root]
    node = scope.maker(name)
    flips = 0
    while node is not None and node.op_type in ("Transpose", "Cast", "Identity"):
        flips += node.op_type == "Transpose"
        node = scope.maker(node.input[0])
    if node is None or node.op_type != "DequantizeLinear" or (codes := scope.constant(node.input[0])) is None:
        return None
    if codes.ndim != 2:
        raise UnreadableError(f"the weight {node.input[0]} is no matrix")
    settings, root = attributes(node), scope.root(node.input[0]) or node.input[0]
    block, axis = int(settings.get("block_size", 0)), int(settings.get("axis", 1)) % 2
    scales = _along(_needed(scope, node.input[1], "the scale"), axis)
    zeros = _along(_needed(scope, node.input[2], "the zero point"), axis) if len(node.input) > 2 and node.input[2] else None
    if (flips + turned) % 2:
        codes, scales, zeros, axis = codes.T, scales.T, None if zeros is None else zeros.T, 1 - axis
    if block and axis == 0:
        raise UnreadableError(f"the weight {root} is in blocks of outputs")
    return _whole(root, use, codes, scales, zeros, block), _names(scope, node.input[0], *node.input[2:3])


def _along(numbers: np.ndarray, axis: int) -> np.ndarray:
    """Give scales or zero points as a matrix beside one whose `axis` they are of."""
    return numbers if numbers.ndim == 2 else numbers.reshape(-1, 1) if axis == 0 else numbers.reshape(1, -1)


def _whole(name: str, use: Use, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, block: int) -> Scaled:
    """Of codes with an element each, and scales (R or 1, B)."""
    bits = 4 if codes.dtype.name in ("int4", "uint4") else 8
    signed = codes.dtype.name.startswith("int")
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    plain = codes.astype(np.int8) if bits == 4 else codes
    return Scaled(name, use, plain, codes.shape[1], scales, None if zeros is None else zeros.astype(np.float32), block, 8, (low, high))


def _names(scope: Scope, *names: str) -> list[str]:
    return [root for name in names if name and (root := scope.root(name))]


def _integer_product(scope: Scope, node: onnx.NodeProto) -> tuple[Scaled, list[str]] | None:
    """MatMulInteger (A, B, zero point of A, zero point of B), whose result is cast and multiplied by B's scales further on."""
    codes = scope.constant(node.input[1])
    if codes is None:
        return None  # a product of two activations
    if codes.ndim != 2:
        raise UnreadableError(f"the weight {node.input[1]} is no matrix")
    zeros = _needed(scope, node.input[3], "the zero point").reshape(-1, 1) if len(node.input) > 3 and node.input[3] else None
    scales = _scales_after(scope, node)
    if scales is None or scales.size not in (1, codes.shape[1]):
        raise UnreadableError(f"nothing multiplies the product with {node.input[1]} by the scales of its columns")
    root = scope.root(node.input[1]) or node.input[1]
    return _whole(root, "product", codes.T, scales.reshape(-1, 1), zeros, 0), _names(scope, node.input[1], *node.input[3:4])


def _scales_after(scope: Scope, node: onnx.NodeProto) -> np.ndarray | None:
    """Give the constant that a product of integers is multiplied by, alone or together with the activation's scale."""
    value = node.output[0]
    for _ in range(4):
        readers = scope.readers(value)
        if len(readers) != 1:
            return None
        (reader,) = readers
        if reader.op_type == "Mul":
            other = next((name for name in reader.input if name != value), value)
            if (array := scope.constant(other)) is not None:
                return array
            maker = scope.maker(other)
            if maker is not None and maker.op_type == "Mul":
                return next((array for name in maker.input if (array := scope.constant(name)) is not None), None)
        elif reader.op_type not in ("Cast", "Identity"):
            return None
        value = reader.output[0]
    return None


def _integer_table(scope: Scope, node: onnx.NodeProto) -> tuple[Scaled, list[str]] | None:
    """Gather of integers that are cast and multiplied by what the same indices gather of scales; None for other tables."""
    root = scope.root(node.input[0])
    if root is None:
        return None
    codes = scope.constant(node.input[0])
    if codes is None or codes.ndim != 2 or codes.dtype.name not in ("int8", "uint8"):
        return None
    for cast in scope.readers(node.output[0]):
        for times in scope.readers(cast.output[0]) if cast.op_type == "Cast" else ():
            other = next((name for name in times.input if name != cast.output[0]), "") if times.op_type == "Mul" else ""
            scales, maker = scope.constant(other), scope.maker(other)
            if scales is None and maker is not None and maker.op_type == "Gather" and maker.input[1] == node.input[1]:
                scales = scope.constant(maker.input[0])
            if scales is not None:
                return _whole(root, "table", codes, scales.reshape(-1, 1), None, 0), [root]
    return _block_table(scope, node, root, codes)


_TAKEN_APART = frozenset({"Cast", "Concat", "Div", "Floor", "Mod", "Mul", "Reshape", "Sub"})
"""Operators by which looked-up rows of blocks become numbers."""


def _block_table(scope: Scope, node: onnx.NodeProto, root: str, codes: np.ndarray) -> tuple[Scaled, list[str]] | None:
    """A table in blocks that standard operators take apart: scales and zero points are gathered by the same indices. None for the latter.

    The numbers are those of GatherBlockQuantized: of two in a byte the lower half goes first. A graph that means others is not its twin.
    """
    beside = {
        other.input[0]: array
        for other in scope.graph.node
        if other.op_type == "Gather" and other.input[1] == node.input[1] and (array := scope.constant(other.input[0])) is not None
    }
    scales = next((array for array in beside.values() if array.dtype.kind == "f" and array.ndim == 2), None)
    integers = [name for name, array in beside.items() if array.dtype == codes.dtype and array.ndim == 2]
    if scales is None or len(scales) != len(codes) or len(integers) > 2:
        raise UnreadableError(f"nothing multiplies the rows of {root} by scales")
    if any(beside[name].shape[1] > codes.shape[1] for name in integers):
        return None
    names, last = _taken_apart(scope, node.output[0])
    bits = 4 if names & {"Floor", "Mod"} else 8
    columns, (rows, blocks) = codes.shape[1] * 8 // bits, scales.shape
    others = [name for name in integers if name != node.input[0]]
    zeros = unpacked(beside[others[0]], bits)[:, :blocks] if others else np.full((rows, blocks), 1 << (bits - 1))
    table = Scaled(root, "table", codes, _cut(scope, last) or columns, scales, zeros, columns // blocks, bits, (0, (1 << bits) - 1))
    return table, _names(scope, node.input[0], *others)


def _taken_apart(scope: Scope, name: str) -> tuple[set[str], str]:
    """Give the operators through which a value becomes rows of numbers, and the name of these."""
    names, last, rest = set[str](), name, [name]
    for value in rest:
        readers = [reader for reader in scope.readers(value) if reader.op_type in _TAKEN_APART]
        names |= {reader.op_type for reader in readers}
        rest += [output for reader in readers for output in reader.output if output not in rest]
        last = value if not readers else last
    return names, last
