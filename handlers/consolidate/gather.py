"""Copies pieces that are stored as strided views (transposed, sliced, expanded) into the order in which safetensors files have them.

Called by `assemble`. A piece is read and written in boxes of a bounded size, chosen so that few reads and few writes are needed. Values are
moved as bytes; numpy only puts them in order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from daemon.contract.sharded.pieces import Piece, ShardedTensor
from handlers.tensors.file_io import ByteRange, read_into, write_from

CALL = 1 << 12
"""Bytes that can be moved in the time of one read or write."""
_Shape = tuple[int, ...]


def copy_strided(
    source: ByteRange, strides: _Shape, tensor: ShardedTensor, piece: Piece, target: int, at: int, moved: Callable[[int], None], most: int
) -> None:
    """Copy a piece whose first element lies at the beginning of `source` to byte `at` of the open file `target`.

    `strides`: elements from one index to the next; `most`: bytes that a box, and a read, may have. `moved` is called with bytes done.
    """
    box = _box(tensor, piece, strides, most)
    kind = np.dtype(f"V{tensor.width}")
    for first in itertools.product(*(range(0, size, step) for size, step in zip(piece.sizes, box, strict=True))):
        sizes = tuple(min(step, size - begin) for step, size, begin in zip(box, piece.sizes, first, strict=True))
        start = sum(begin * stride for begin, stride in zip(first, strides, strict=True)) * tensor.width
        block = _read(source.part(start, source.size - start), strides, sizes, kind, most)
        held = block.reshape(-1).view(np.uint8).data
        part = _part(piece, first, sizes)
        for begin, place, length in tensor.runs(part):
            write_from(target, held[begin : begin + length], at + place)
        moved(len(held))
        del held, block  # before the next one is made


def _part(piece: Piece, first: Sequence[int], sizes: _Shape) -> Piece:
    """Return a box of a piece, as a piece of its own."""
    offsets = tuple(offset + begin for offset, begin in zip(piece.offsets, first, strict=True))
    return Piece(piece.file, 0, 0, offsets, sizes)


def _read(source: ByteRange, strides: _Shape, sizes: _Shape, kind: np.dtype[np.void], most: int) -> np.ndarray:
    """Return the elements of a box, the last dimension innermost."""
    inner, outer = _axes(strides, sizes, kind.itemsize, most)
    held = np.empty(_span(inner, strides, sizes), kind)
    steps = [strides[axis] * kind.itemsize for axis in inner]
    view = np.lib.stride_tricks.as_strided(held, [sizes[axis] for axis in inner], steps, writeable=False)
    block = np.empty(sizes, kind)
    bytes_of_held = held.view(np.uint8).data
    for place in itertools.product(*(range(sizes[axis]) for axis in outer)):
        start = sum(index * strides[axis] for index, axis in zip(place, outer, strict=True)) * kind.itemsize
        read_into(source.descriptor, bytes_of_held, source.start + start, source.path)
        at: list[int | slice] = [slice(None)] * len(sizes)
        for axis, index in zip(outer, place, strict=True):
            at[axis] = index
        block[tuple(at)] = view
    return block


def _span(axes: Sequence[int], strides: _Shape, sizes: _Shape) -> int:
    """Elements of the file from the first to the last one of a box in these dimensions."""
    return 1 + sum((sizes[axis] - 1) * strides[axis] for axis in axes)


def _axes(strides: _Shape, sizes: _Shape, width: int, most: int) -> tuple[list[int], list[int]]:
    """Return the dimensions that one read takes, and those over which it is repeated, so that reading costs least."""
    order = sorted(range(len(sizes)), key=lambda axis: strides[axis] if sizes[axis] > 1 else 0)
    count = min(range(len(order) + 1), key=lambda count: _reading(order[:count], order[count:], strides, sizes, width, most))
    return sorted(order[:count]), order[count:][::-1]


def _reading(inner: Sequence[int], outer: Sequence[int], strides: _Shape, sizes: _Shape, width: int, most: int) -> float:
    """Cost, in bytes, of reading a box so."""
    span = _span(inner, strides, sizes) * width
    return math.inf if span > max(most, width) else math.prod(sizes[axis] for axis in outer) * (CALL + span)


def _box(tensor: ShardedTensor, piece: Piece, strides: _Shape, most: int) -> _Shape:
    """Return the size of the boxes in which a piece is copied: at most `most` bytes, halved where that makes reads and writes cheapest."""
    box = piece.sizes
    while math.prod(box) * tensor.width > most:
        halves = [(*box[:axis], -(-size // 2), *box[axis + 1 :]) for axis, size in enumerate(box) if size > 1]
        box = min(halves, key=lambda half: _cost(tensor, piece, strides, half, most))
    return box


def _cost(tensor: ShardedTensor, piece: Piece, strides: _Shape, box: _Shape, most: int) -> float:
    """Cost, in bytes for each element, of copying a piece in such boxes."""
    order = sorted(range(len(box)), key=lambda axis: strides[axis] if box[axis] > 1 else 0)
    reading = min(_reading(order[:count], order[count:], strides, box, tensor.width, most) for count in range(len(order) + 1))
    _, _, run = next(tensor.runs(_part(piece, [0] * len(box), box)))
    elements = math.prod(box)
    return reading / elements + CALL * tensor.width / run
