"""Inputs and outputs of an ONNX graph, read out of its file's structure: no weight is read, whatever the file's size.

The numbers are those of onnx.proto3 (ModelProto.graph 7; GraphProto.input 11, .output 12; ValueInfoProto.name 1, .type 2;
TypeProto.tensor_type 1; Tensor.elem_type 1, .shape 2; TensorShapeProto.dim 1; Dimension.dim_value 1), the encoding is that of protocol
buffers.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Slice = tuple[int, int]


@dataclass(frozen=True)
class Port:
    """An input or an output."""

    name: str
    type: int
    """`TensorProto.DataType`."""
    dims: tuple[int, ...]
    """-1 where it differs from call to call."""


def ports(file: Path) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs and outputs. Raises OSError; ValueError for what is no graph."""
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        graph = _only(data, (0, len(data)), 7)
        return tuple(tuple(_port(data, place) for place in _all(data, graph, number)) for number in (11, 12))  # type: ignore[return-value]


def _port(data: mmap.mmap, place: Slice) -> Port:
    start, end = _only(data, place, 1)
    tensor = _only(data, _only(data, place, 2), 1)
    numbers = [value for number, value in _fields(data, tensor) if number == 1 and isinstance(value, int)]
    shapes = list(_all(data, tensor, 2))
    dims = []
    for dim in _all(data, shapes[0], 1) if shapes else ():
        sizes = [value for number, value in _fields(data, dim) if number == 1 and isinstance(value, int)]
        dims.append(sizes[0] if sizes else -1)
    return Port(data[start:end].decode(), numbers[0] if numbers else 0, tuple(dims))


def _all(data: mmap.mmap, place: Slice, wanted: int) -> Iterator[Slice]:
    return (value for number, value in _fields(data, place) if number == wanted and isinstance(value, tuple))


def _only(data: mmap.mmap, place: Slice, wanted: int) -> Slice:
    for value in _all(data, place, wanted):
        return value
    raise ValueError(f"it has no field {wanted} where a graph has one")


def _fields(data: mmap.mmap, place: Slice) -> Iterator[tuple[int, int | Slice]]:
    """Number and value of each field of a message: a number, or where the bytes lie."""
    at, end = place
    while at < end:
        key, at = _number(data, at, end)
        match key & 7:
            case 0:
                value, at = _number(data, at, end)
                yield key >> 3, value
            case 2:
                size, at = _number(data, at, end)
                if at + size > end:
                    raise ValueError("a field ends behind its message")
                yield key >> 3, (at, at + size)
                at += size
            case 1 | 5:
                at += 8 if key & 7 == 1 else 4
            case other:
                raise ValueError(f"no field is of the kind {other}")


def _number(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number has no end")
