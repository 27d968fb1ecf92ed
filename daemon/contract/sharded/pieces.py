"""Tensors in pieces: which bytes of which file hold which part of each, and whether the parts make the whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from daemon.contract.models.safetensors import DTYPES
from daemon.contract.sharded.pickles import Unreadable, shown

MOST_DIMENSIONS = 16
_LONGEST_NAME = 1000
_MOST_IRREGULAR = 1024
"""Pieces of one tensor that are compared pair by pair, where they are no regular grid."""

TORCH_DTYPES = {torch: name for name, (torch, _) in DTYPES.items()}
"""Torch's name of a dtype → its name in a safetensors header."""


class Unsupported(Unreadable):
    """The pieces are whole, and of a kind that is not put together here; the text says which."""


def tensor_name(name: Any) -> str:
    """The name, as a file says it. Unreadable for what a safetensors file could not have or a sentence not say."""
    if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable():
        return name
    raise Unreadable(f"it has a tensor with the invalid name {shown(name)}")


@dataclass(frozen=True)
class Piece:
    """A box of a tensor: `offsets` and `sizes` in elements, `file` relative to the checkpoint's folder."""

    file: str
    start: int
    """Byte at which it begins in the file."""
    length: int
    """Bytes of it in the file."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    archived: bool = False
    """These bytes are an archive of torch.save that holds the piece; else they are the piece itself."""
    strides: tuple[int, ...] | None = None
    """Elements of the file from one index to the next, in each dimension; None: it is stored contiguously."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class ShardedTensor:
    """One tensor. `dtype` as a safetensors header names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    flat: bool = False
    """The pieces are ranges of the flattened tensor."""

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape in which the pieces are boxes."""
        return (self.elements,) if self.flat else self.shape

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype][1]

    @property
    def size(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * self.width

    def runs(self, piece: Piece) -> Iterator[tuple[int, int, int]]:
        """(first byte in the piece, first byte in the tensor, bytes) of each contiguous part of a piece, in order."""
        grid, sizes, offsets = self.grid, piece.sizes, piece.offsets
        whole = len(grid)  # dimensions from here on are in the piece as a whole
        while whole and sizes[whole - 1] == grid[whole - 1]:
            whole -= 1
        inner = max(whole - 1, 0)
        run = math.prod(sizes[inner:])
        strides = [math.prod(grid[axis + 1 :]) for axis in range(len(grid))]
        start = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
        for number, place in enumerate(itertools.product(*(range(size) for size in sizes[:inner]))):
            at = start + sum(index * stride for index, stride in zip(place, strides, strict=False))
            yield number * run * self.width, at * self.width, run * self.width

    def problem(self) -> str | None:
        """Why the pieces don't make the tensor, in words; None when they cover it exactly."""
        if len(self.grid) > MOST_DIMENSIONS:
            return f"{self.name} has {len(self.grid)} dimensions"
        boxes = []
        for piece in self.pieces:
            bounds = zip(piece.offsets, piece.sizes, self.grid, strict=False)
            if len(piece.offsets) != len(self.grid) or len(piece.sizes) != len(self.grid):
                return f"a piece of {self.name} has {len(piece.sizes)} dimensions, but the tensor has {len(self.grid)}"
            if any(offset < 0 or size < 0 or offset + size > limit for offset, size, limit in bounds):
                return f"a piece of {self.name} is outside the tensor"
            boxes += [piece] if piece.elements else []
        held = sum(piece.elements for piece in boxes)
        if held < self.elements:
            return f"the pieces of {self.name} leave a gap: they hold {held:,} of its {self.elements:,} elements"
        if held > self.elements or not (_is_grid(boxes, self.grid) or _are_apart(boxes)):
            return f"the pieces of {self.name} overlap"
        return None


def _is_grid(boxes: list[Piece], grid: tuple[int, ...]) -> bool:
    """Whether the boxes are all cells of one grid, each once."""
    cuts = [sorted({box.offsets[axis] for box in boxes} | {limit}) for axis, limit in enumerate(grid)]
    ends = [dict(itertools.pairwise(cut)) for cut in cuts]
    if any(ends[axis].get(box.offsets[axis]) != box.offsets[axis] + box.sizes[axis] for box in boxes for axis in range(len(grid))):
        return False
    return len({box.offsets for box in boxes}) == len(boxes) == math.prod(len(cut) - 1 for cut in cuts)


def _are_apart(boxes: list[Piece]) -> bool:
    if len(boxes) > _MOST_IRREGULAR:
        return False
    return not any(
        all(a < b + m and b < a + n for a, n, b, m in zip(box.offsets, box.sizes, other.offsets, other.sizes, strict=True))
        for box, other in itertools.combinations(boxes, 2)
    )
