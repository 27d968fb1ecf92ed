"""The parts of a model whose weights come from its files when a pass reaches them, and go again.

A decoder layer is held whole in fp32 while all tasks pass through it. Of an embedding only the rows that are asked for are read. A linear
head is read in blocks of rows, each of which serves all tasks. The bytes are read and not mapped, as the merge does, so that nothing but
the part at hand counts as memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from handlers.layerwise.lockstep import Door, Task, task_here
from handlers.models import products
from handlers.tensors.sources import Source

BLOCK = 16 << 20
"""Elements that are read at once: 64 MiB in fp32."""

Find = Callable[[str], Source]
"""The source of a stored tensor by its name."""
Wanted = Callable[[int], Any]
"""Of so many positions, the index of those whose outputs are wanted."""


@dataclass(frozen=True)
class Slot:
    """A parameter of a module whose values lie in a file under `stored`."""

    module: torch.nn.Module
    name: str
    stored: str
    shape: tuple[int, ...]

    def put(self, values: torch.Tensor) -> None:
        """Give the module these values."""
        self.module._parameters[self.name] = torch.nn.Parameter(values, requires_grad=False)

    def clear(self) -> None:
        """Leave the module with a shape alone: to compute with it raises."""
        self.put(torch.empty(self.shape, device="meta"))


class Pool:
    """Buffers of the layer before, which the next one, most often of the same shapes, takes over."""

    def __init__(self, *, keeps: bool = True) -> None:
        self._keeps = keeps
        self._free: list[torch.Tensor] = []

    def take(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a contiguous fp32 tensor of this shape, with any values."""
        for number, buffer in enumerate(self._free):
            if tuple(buffer.shape) == shape:
                return self._free.pop(number)
        return torch.empty(shape)

    def give(self, buffers: Sequence[torch.Tensor]) -> None:
        """Keep these for the next part, and none but these."""
        self._free = list(buffers) if self._keeps else []


class PartDoor(Door):
    """A part that is held whole while tasks pass through it."""

    def __init__(self, number: int, slots: Sequence[Slot], find: Find, pool: Pool) -> None:
        super().__init__(number)
        self._slots, self._find, self._pool = slots, find, pool

    def guard(self, module: torch.nn.Module) -> None:
        """Make every call of the module wait at this door."""
        inside = module.forward

        def forward(*args: Any, **named: Any) -> Any:
            task_here().wait_at(self, None)
            return inside(*args, **named)

        module.forward = forward

    def serve(self, visits: Sequence[Task]) -> None:
        with self._loaded():
            super().serve(visits)

    @contextlib.contextmanager
    def _loaded(self) -> Iterator[None]:
        buffers = []
        for slot in self._slots:
            buffer = self._pool.take(slot.shape)
            read(self._find(slot.stored), buffer)
            slot.put(buffer)
            buffers.append(buffer)
        try:
            yield
        finally:
            for slot in self._slots:
                slot.clear()
            self._pool.give(buffers)


class HeadDoor(Door):
    """A linear layer of many outputs, which is read once for all tasks and never held whole."""

    def __init__(self, number: int, slot: Slot, find: Find) -> None:
        super().__init__(number)
        self._slot, self._find = slot, find

    def serve(self, visits: Sequence[Task]) -> None:
        """Give each task, which brings (input, bias), outputs (B, S, V) for the positions that its tag's `wanted` names, and zeros for
        all others."""
        rows, width = self._slot.shape
        source = self._find(self._slot.stored)
        # numpy takes no memory for pages of zeros that nobody writes to.
        answers = [np.zeros((*visit.payload[0].shape[:-1], rows), np.float32) for visit in visits]
        places = [visit.tag.wanted(visit.payload[0].shape[-2]) for visit in visits]
        count = max(1, BLOCK // width)
        buffer = torch.empty(min(count, rows), width)
        with torch.inference_mode(), products.faster():
            for first in range(0, rows, count):
                block = buffer[: min(count, rows - first)]
                source.rows(first, len(block), block)
                for visit, answer, place in zip(visits, answers, places, strict=True):
                    hidden, bias = visit.payload
                    # All positions, as the model itself would: of fewer rows the kernels give other last bits.
                    outputs = torch.nn.functional.linear(hidden, block, None if bias is None else bias[first : first + len(block)])
                    answer[..., place, first : first + len(block)] = outputs[..., place, :].numpy()
        for visit, answer in zip(visits, answers, strict=True):
            visit.enter(torch.from_numpy(answer))


_HARMLESS = frozenset({"__get__", "__set__", "requires_grad_"})
"""Functions that look at a tensor, or set what belongs to it, without its values."""


class StreamedWeight(torch.Tensor):
    """The weight of an embedding or of a head, of which only rows are ever read. It has a shape and no values; to use it for anything
    else than these two raises."""

    slot: Slot
    find: Find
    head: HeadDoor | None

    @staticmethod
    def of(slot: Slot, find: Find, head: HeadDoor | None) -> StreamedWeight:
        """Return the weight of a slot; without `head` it can only be looked up."""
        weight: StreamedWeight = torch.Tensor._make_subclass(StreamedWeight, torch.empty(slot.shape, device="meta"))
        weight.slot, weight.find, weight.head = slot, find, head
        return weight

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """torch asks here whenever a function is called with such a weight."""
        if function is torch.nn.functional.embedding:
            return _look_up(*args[:2])
        if function is torch.nn.functional.linear and isinstance(args[1], StreamedWeight) and args[1].head is not None:
            bias = args[2] if len(args) > 2 else (kwargs or {}).get("bias")
            return task_here().wait_at(args[1].head, (args[0], bias))
        answer = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(answer, torch.Tensor) and function.__name__ not in _HARMLESS:
            raise RuntimeError(f"{function.__name__} was called with a weight whose values are read row by row alone")
        return answer


def _look_up(ids: torch.Tensor, weight: StreamedWeight) -> torch.Tensor:
    """Return the rows of these ids; only they are read."""
    source = weight.find(weight.slot.stored)
    chosen, places = torch.unique(ids, return_inverse=True)
    rows = torch.empty(len(chosen), weight.slot.shape[1])
    for number, row in enumerate(chosen.tolist()):
        source.rows(row, 1, rows[number : number + 1])
    return torch.nn.functional.embedding(places, rows)


def read(source: Source, out: torch.Tensor) -> None:
    """Fill `out`, contiguous fp32 of the source's shape, block by block."""
    if out.dim() == 0:
        source.rows(0, 1, out.view(1))
        return
    step = max(1, BLOCK // max(1, math.prod(out.shape[1:])))
    for first in range(0, len(out), step):
        block = out[first : first + step]
        source.rows(first, len(block), block)
