"""Which tensor of a model's files each weight of its graph is: found by content, never by name, so that it can be filled from other files.

Called when a template is made, of a model whose weights were drawn at random: there no two tensors are alike, and what a tool computed of
a weight is like none of them. A weight may be stored as it is, turned, in another shape, or put together from several tensors (the
projections of attention side by side, the experts of a layer above each other).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from handlers.graphs.weights.turning import turned

MOST_PARTS = 4096
"""Tensors that one weight may be put together from."""
COMPARED = 1 << 18
"""Elements that are widened and compared at once, so that no tensor is widened as a whole."""


@dataclass(frozen=True)
class Source:
    """Where a weight comes from: one tensor, or parts that are joined along `axis` (None: stacked along a new first axis)."""

    shape: tuple[int, ...]
    tensor: str = ""
    turned: bool = False
    """The tensor's two axes are exchanged."""
    added: float = 0.0
    """What is added to all values: some norms multiply by 1 + weight, which tools compute beforehand."""
    parts: tuple[Source, ...] = ()
    axis: int | None = None

    def __post_init__(self) -> None:
        if bool(self.tensor) == bool(self.parts):
            raise ValueError("a source has parts or a tensor")

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors in it."""
        return (self.tensor,) if self.tensor else tuple(name for part in self.parts for name in part.tensors)

    def renamed(self, rename: Callable[[str], str]) -> Source:
        """The same of other tensors."""
        parts = tuple(part.renamed(rename) for part in self.parts)
        return replace(self, tensor=rename(self.tensor) if self.tensor else "", parts=parts)

    def resized(self, size: Callable[[int], int]) -> Source:
        """The same of tensors with other sizes; `size` gives the new one of each."""
        return replace(self, shape=tuple(map(size, self.shape)), parts=tuple(part.resized(size) for part in self.parts))

    def read(self, tensor: Callable[[str], np.ndarray]) -> np.ndarray:
        """The weight in fp32, contiguous; `tensor` gives a tensor by its name, in any type. ValueError where the sizes don't fit."""
        if self.parts:
            parts = [part.read(tensor) for part in self.parts]
            array = np.stack(parts) if self.axis is None else np.concatenate(parts, self.axis)
        else:
            array = self._computed(tensor(self.tensor))
        if math.prod(array.shape) != math.prod(self.shape):
            raise ValueError(f"{self.tensor or self.parts[0].tensor} has the sizes {array.shape}, not {self.shape}")
        return np.ascontiguousarray(array).reshape(self.shape)

    def blocks(self, tensor: Callable[[str], np.ndarray], elements: int) -> Iterator[np.ndarray]:
        """What `read` gives, in order, in contiguous pieces of about so many elements where that is possible; other shapes, same values."""
        if self.parts and self.axis != 1:
            for part in self.parts:
                yield from part.blocks(tensor, elements)
            return
        stored = None if self.parts else tensor(self.tensor)
        if stored is None or stored.size <= elements or stored.size != math.prod(self.shape):
            yield self.read(tensor)
            return
        lines = stored if self.turned else stored.reshape(-1)
        step = max(1, elements // len(lines)) if self.turned else elements
        for first in range(0, lines.shape[-1], step):
            yield np.ascontiguousarray(self._computed(lines[..., first : first + step]))

    def _computed(self, stored: np.ndarray) -> np.ndarray:
        """A tensor, or a piece of it, as the weight has it: in fp32, turned, with what is added."""
        weight = turned(stored) if self.turned else stored.astype(np.float32, copy=False)
        return weight + np.float32(self.added) if self.added else weight


Ends = tuple[int, float, float]
"""Number of elements, the first and the last one: what two tensors that are equal, or turned, have in common."""


@dataclass
class Finder:
    """Finds arrays, which are fp32, as a graph has them, among the tensors of a model, which may be of any floating type."""

    tensors: Mapping[str, np.ndarray]
    _by_ends: dict[Ends, list[str]] = field(default_factory=dict)
    _by_first: dict[float, list[str]] = field(default_factory=dict)
    _by_size: dict[int, list[str]] = field(default_factory=dict)
    """Of vectors."""

    def __post_init__(self) -> None:
        for name, tensor in self.tensors.items():
            if tensor.size:
                self._by_ends.setdefault(_ends(tensor), []).append(name)
                self._by_first.setdefault(float(tensor.flat[0]), []).append(name)
            if tensor.ndim == 1:
                self._by_size.setdefault(tensor.size, []).append(name)

    def find(self, array: np.ndarray) -> Source | None:
        """Where a weight comes from; None if it is made of no tensors of the model."""
        if array.dtype != np.float32 or array.size == 0:
            return None
        return self._whole(array) or self._raised(array) or self._stacked(array) or self._joined(array, 0) or self._joined(array, 1)

    def _whole(self, array: np.ndarray) -> Source | None:
        for name in self._by_ends.get(_ends(array), ()):
            tensor = self.tensors[name]
            if tensor.shape == array.shape and _equal(tensor, array):
                return Source(array.shape, name)
            if tensor.ndim == array.ndim == 2 and tensor.shape[::-1] == array.shape and _equal_turned(tensor, array):
                return Source(array.shape, name, turned=True)
            if _equal(tensor.reshape(-1), array.reshape(-1)):
                return Source(array.shape, name)
        return None

    def _raised(self, array: np.ndarray) -> Source | None:
        """A vector and 1, as it is in norms that multiply by 1 + weight."""
        if array.ndim == 0 or array.size != max(array.shape):
            return None
        for name in self._by_size.get(array.size, ()):
            if np.array_equal(self.tensors[name].astype(np.float32) + np.float32(1), array.reshape(-1)):
                return Source(array.shape, name, added=1.0)
        return None

    def _stacked(self, array: np.ndarray) -> Source | None:
        if array.ndim < 3 or len(array) > MOST_PARTS:
            return None
        parts = _all(self.find(part) for part in array)
        return Source(array.shape, parts=parts) if parts else None

    def _joined(self, array: np.ndarray, axis: int) -> Source | None:
        """Two tensors or more side by side, each of them as it is or turned."""
        if array.ndim <= axis or array.ndim > 2:
            return None
        parts: list[Source] = []
        done, length = 0, array.shape[axis]
        while done < length and len(parts) < MOST_PARTS:
            rest = array[done:] if axis == 0 else array[:, done:]
            part = next(filter(None, (self._beginning(rest, axis, name) for name in self._by_first.get(float(rest.flat[0]), ()))), None)
            if part is None:
                return None
            parts.append(part)
            done += part.shape[axis]
        return Source(array.shape, parts=tuple(parts), axis=axis) if done == length and len(parts) > 1 else None

    def _beginning(self, rest: np.ndarray, axis: int, name: str) -> Source | None:
        tensor = self.tensors[name]
        for is_turned in (False, True) if tensor.ndim == 2 else (False,):
            shape = tensor.shape[::-1] if is_turned else tensor.shape
            if len(shape) == rest.ndim and shape[axis] <= rest.shape[axis]:
                head = rest[: shape[0]] if axis == 0 else rest[:, : shape[1]]
                if head.shape == shape and (_equal_turned(tensor, head) if is_turned else _equal(tensor, head)):
                    return Source(shape, name, is_turned)
        return None


def _equal(tensor: np.ndarray, array: np.ndarray) -> bool:
    """Whether an array (fp32) has a tensor's values; both have the same shape."""
    if tensor.ndim == 0:
        return bool(tensor.astype(np.float32) == array)
    step = max(1, COMPARED // max(1, tensor[:1].size))
    firsts = range(0, len(tensor), step)
    return all(np.array_equal(tensor[first : first + step].astype(np.float32, copy=False), array[first : first + step]) for first in firsts)


def _equal_turned(tensor: np.ndarray, array: np.ndarray) -> bool:
    """The same of a matrix with exchanged axes."""
    step = max(1, COMPARED // max(1, tensor.shape[1]))
    return all(
        np.array_equal(turned(tensor[first : first + step]), array[:, first : first + step]) for first in range(0, len(tensor), step)
    )


def _all(sources: Iterable[Source | None]) -> tuple[Source, ...]:
    """All of them, or nothing where one is missing."""
    parts = []
    for source in sources:
        if source is None:
            return ()
        parts.append(source)
    return tuple(parts)


def _ends(array: np.ndarray) -> Ends:
    return array.size, float(array.flat[0]), float(array.flat[-1])
