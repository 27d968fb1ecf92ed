"""The streaming merge: W + scale · B·A for blocks of rows, written into files laid out like the base's.

Called by `handlers.merge.api`. Memory is a few blocks plus one LoRA pair, whatever the model's size. Each block is computed in
fp32 and rounded once to the base's dtype, as PEFT's merge_and_unload does; the sums are taken over the rank inside
one matrix product, whose order is the math library's. Headers and untouched tensors are copied as bytes. One file is begun
when the last one is finished, so that an interruption never costs more than one.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from daemon.errors import Permanent
from handlers.merge import pipeline
from handlers.merge.adapter import Adapter
from handlers.merge.match import Delta
from handlers.merge.transfer import Copier, create, read_into, write_from
from handlers.model_files import DTYPES

BLOCK = 1 << 20
"""Elements of a block: large enough for the matrix product, small enough for the processor's caches."""
BUFFERS = 3
"""Blocks between two parts: one in use on each side and one in between."""


@dataclass(frozen=True)
class Block:
    """Rows `first` to `first + rows` of one tensor, which lie at byte `offset` of both files."""

    delta: Delta
    source: int
    target: int
    path: Path
    offset: int
    first: int
    rows: int

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the stored weights."""
        return getattr(torch, DTYPES[self.delta.info.dtype][0])  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """Bytes of the block."""
        return self.rows * self.delta.info.shape[1] * DTYPES[self.delta.info.dtype][1]


@dataclass(frozen=True)
class Filled:
    """A block and the byte buffer that holds its values."""

    block: Block
    buffer: torch.Tensor

    def values(self) -> torch.Tensor:
        """The buffer as the block's rows × columns."""
        return self.buffer[: self.block.size].view(self.block.dtype).view(self.block.rows, self.block.delta.info.shape[1])

    def bytes(self) -> memoryview:
        """The buffer as bytes for reading and writing."""
        return self.buffer.numpy().data[: self.block.size]


class StreamingMerge:
    """One merge of `deltas` into the weight `files` of `base`, written under the same names into `output`.

    `moved` is told the bytes of each step and what they belong to, from several threads; `finished` each file, as written.
    """

    def __init__(
        self, adapter: Adapter, deltas: list[Delta], base: Path, files: tuple[str, ...], output: Path,
        moved: Callable[[int, str], None], finished: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._adapter, self._base, self._output, self._files = adapter, base, output, files
        self._moved, self._finished = moved, finished
        self._by_file: dict[str, list[Delta]] = {name: [] for name in files}
        deltas = [delta for delta in deltas if delta.info.file in self._by_file]
        for delta in sorted(deltas, key=lambda delta: delta.info.start):
            self._by_file[delta.info.file].append(delta)
        self._gate = pipeline.Gate()
        self._free_in: pipeline.Channel[torch.Tensor] = pipeline.Channel(self._gate, BUFFERS)
        self._free_out: pipeline.Channel[torch.Tensor] = pipeline.Channel(self._gate, BUFFERS)
        elements = max((_rows(delta) * delta.info.shape[1] for delta in deltas), default=1)
        width = max((DTYPES[delta.info.dtype][1] for delta in deltas), default=4)
        for _ in range(BUFFERS):
            self._free_in.put(torch.empty(elements * width, dtype=torch.uint8))
            self._free_out.put(torch.empty(elements * width, dtype=torch.uint8))
        self._sum = torch.empty(elements)

    def run(self) -> None:
        """Write all files. OSError and Permanent pass through; files written so far stay for the caller to remove."""
        with torch.inference_mode():
            for name in self._files:
                self._write(name)
                self._finished(name)

    def _write(self, name: str) -> None:
        """One file, by the three parts of the pipeline."""
        self._read: pipeline.Channel[Filled] = pipeline.Channel(self._gate, BUFFERS)
        self._done: pipeline.Channel[Filled] = pipeline.Channel(self._gate, BUFFERS)
        with contextlib.ExitStack() as stack:
            source = os.open(self._base / name, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, source)
            target = create(self._output / name, os.fstat(source).st_size)
            stack.callback(os.close, target)
            blocks = self._blocks(name, source, target)
            pipeline.run(self._gate, functools.partial(self._reader, blocks), self._compute, self._writer)

    def _reader(self, blocks: Iterator[Block]) -> None:
        for block in blocks:
            buffer = self._free_in.get()
            assert buffer is not None
            filled = Filled(block, buffer)
            read_into(block.source, filled.bytes(), block.offset, block.path)
            self._read.put(filled)
        self._read.close()

    def _blocks(self, name: str, source: int, target: int) -> Iterator[Block]:
        """Copy what stays and give the blocks of what changes, in file order."""
        path = self._base / name
        copier = Copier(lambda count: self._moved(count, name))
        position = 0
        for delta in self._by_file[name]:
            copier.copy(source, target, position, delta.info.start, path)
            rows, row_bytes = _rows(delta), delta.info.size // delta.info.shape[0]
            for first in range(0, delta.info.shape[0], rows):
                count = min(rows, delta.info.shape[0] - first)
                yield Block(delta, source, target, path, delta.info.start + first * row_bytes, first, count)
            position = delta.info.end
        copier.copy(source, target, position, os.fstat(source).st_size, path)

    def _compute(self) -> None:
        current: Delta | None = None
        while (filled := self._read.get()) is not None:
            delta = filled.block.delta
            if delta is not current:
                a, b = self._adapter.tensor(delta.a), self._adapter.tensor(delta.b)
                # A power of two scales without rounding, so it may as well be applied once to the small factor.
                exact = math.frexp(delta.scale)[0] == 0.5
                b, factor, current = (b * delta.scale, 1.0, delta) if exact else (b, delta.scale, delta)
            buffer = self._free_out.get()
            assert buffer is not None
            result = Filled(filled.block, buffer)
            self._merge(filled, result, a, b, factor)
            self._free_in.put(filled.buffer)
            self._done.put(result)
        self._done.close()

    def _merge(self, filled: Filled, result: Filled, a: torch.Tensor, b: torch.Tensor, factor: float) -> None:
        block, weights = filled.block, filled.values()
        rows = slice(block.first, block.first + block.rows)
        total = self._sum[: weights.numel()].view(weights.shape)
        if block.delta.transposed:
            total.copy_((b @ a[:, rows]).T)
        else:
            torch.mm(b[rows], a, out=total)
        if factor != 1.0:
            total.mul_(factor)
        total.add_(weights)
        result.values().copy_(total)
        lowest, highest = (float(edge) for edge in torch.aminmax(total))
        # NaN fails both comparisons, so it is caught as well.
        if not (lowest >= -torch.finfo(block.dtype).max and highest <= torch.finfo(block.dtype).max):
            self._explain_non_finite(block.delta, weights, a, b, max(abs(lowest), abs(highest)), block.dtype)

    def _explain_non_finite(
        self, delta: Delta, weights: torch.Tensor, a: torch.Tensor, b: torch.Tensor, largest: float, dtype: torch.dtype
    ) -> None:
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            cause, remedy = "the adapter's own weights hold NaN or infinity", "take an earlier checkpoint: the training has diverged"
        elif not torch.isfinite(weights).all():
            cause, remedy = "the base's own weights hold NaN or infinity", "restore the base model from its source"
        else:
            name = str(dtype).removeprefix("torch.")
            limit = torch.finfo(dtype).max
            cause = f"base and adapter are finite, but the sum reaches {largest:.4g} and {name} ends at {limit:.4g}"
            remedy = "use a base stored as bfloat16 or float32, or take an earlier checkpoint"
        where = self._adapter.file if cause.startswith("the adapter") else self._base / delta.info.file
        raise Permanent("non-finite-weights", f"merge {delta.module}", cause, remedy, path=where)

    def _writer(self) -> None:
        while (filled := self._done.get()) is not None:
            write_from(filled.block.target, filled.bytes(), filled.block.offset)
            self._moved(filled.block.size, filled.block.delta.module)
            self._free_out.put(filled.buffer)


def _rows(delta: Delta) -> int:
    """Rows of a block of the tensor: as many as fit into BLOCK elements, at least one."""
    return min(delta.info.shape[0], max(1, BLOCK // delta.info.shape[1]))
