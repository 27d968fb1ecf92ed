"""The streaming engine: carries out the plan of a merge in blocks of rows, file by file.

Called by `handlers.merge.api`. Memory is a few blocks plus one tensor's factors, whatever the model's size. Each block is computed in
fp32 and rounded once to the dtype it is written in, as PEFT's merge_and_unload does; the sums are taken over the rank inside
one matrix product, whose order is the math library's. Headers and untouched tensors are copied as bytes. One file is begun
when the last one is finished, so that an interruption never costs more than one.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from daemon.errors import Permanent
from handlers.merge import pipeline
from handlers.merge.arithmetic import Prepared
from handlers.merge.kernels import Copy, Kernel
from handlers.merge.layout import FilePlan, Output, Plan
from handlers.merge.ranges import copy_shifted
from handlers.merge.several import Bundle
from handlers.merge.transfer import Copier, create, read_into, write_from
from handlers.model_files import DTYPES

BLOCK = 1 << 20
"""Elements of a block: large enough for the matrix product, small enough for the processor's caches."""
BUFFERS = 3
"""Blocks between two parts: one in use on each side and one in between."""
CACHED = 4
"""Tensors of the adapter that are kept for the next tensor of the base: experts that lie apart share theirs."""


@dataclass(frozen=True)
class Block:
    """Rows `first` to `first + rows` of one output, whose bytes go to `offset` of the file `target`."""

    output: Output
    target: int
    source: int
    path: Path
    offset: int
    first: int
    rows: int
    final: bool
    """False in the pass in which a kernel only looks at the base."""

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.output.matrix[1]

    def dtype(self, *, read: bool) -> torch.dtype:
        """Dtype of the rows that are read, or of those that are written."""
        if read and self.output.source is not None:
            # A tensor of the adapter is first what it replaces; what had to be unpacked is not rounded before the sum.
            return self.output.source.dtype if self.output.origin else torch.float32
        assert self.output.stored is not None or not read
        name = self.output.stored.dtype if read and self.output.stored is not None else self.output.dtype
        return getattr(torch, DTYPES[name][0])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Filled:
    """A block, and the byte buffer that holds its rows as `dtype`."""

    block: Block
    buffer: torch.Tensor
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self.block.rows * self.block.width * self.dtype.itemsize

    def values(self) -> torch.Tensor:
        """The buffer as the block's rows × columns."""
        return self.buffer[: self.size].view(self.dtype).view(self.block.rows, self.block.width)

    def bytes(self) -> memoryview:
        """The buffer as bytes for reading and writing."""
        return self.buffer.numpy().data[: self.size]


class StreamingMerge:
    """One merge after a plan: `files` of it, written into `output` from the base's files in `base`.

    `moved` is told the bytes of each step and what they belong to, from several threads; `finished` each file, as written.
    """

    def __init__(
        self, adapter: Bundle, plan: Plan, base: Path, files: tuple[str, ...], output: Path,
        moved: Callable[[int, str], None], finished: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._adapter, self._base, self._output = adapter, base, output
        self._moved, self._finished = moved, finished
        self._plans = [one for one in plan.files if one.name in files]
        self._read_factor = functools.lru_cache(CACHED)(adapter.tensor)
        self._gate = pipeline.Gate()
        self._free_in: pipeline.Channel[torch.Tensor] = pipeline.Channel(self._gate, BUFFERS)
        self._free_out: pipeline.Channel[torch.Tensor] = pipeline.Channel(self._gate, BUFFERS)
        elements = max((_rows(one) * one.matrix[1] for file in self._plans for one in file.outputs if one.computed), default=1)
        for _ in range(BUFFERS):
            # Eight bytes hold an element of every dtype; pages that no block reaches are never touched.
            self._free_in.put(torch.empty(elements * 8, dtype=torch.uint8))
            self._free_out.put(torch.empty(elements * 8, dtype=torch.uint8))
        self._sum = torch.empty(elements)

    def run(self) -> None:
        """Write all files. OSError and Permanent pass through; files written so far stay for the caller to remove."""
        with torch.inference_mode():
            for file in self._plans:
                self._write(file)
                self._finished(file.name)

    def _write(self, file: FilePlan) -> None:
        """One file, by the three parts of the pipeline."""
        self._read: pipeline.Channel[Filled] = pipeline.Channel(self._gate, BUFFERS)
        self._done: pipeline.Channel[Filled] = pipeline.Channel(self._gate, BUFFERS)
        with contextlib.ExitStack() as stack:
            sources: dict[str, int] = {}
            for name in sorted({one.stored.file for one in file.outputs if one.stored is not None and one.source is None}):
                sources[name] = os.open(self._base / name, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, sources[name])
            target = create(self._output / file.name, file.size)
            stack.callback(os.close, target)
            blocks = self._blocks(file, sources, target)
            pipeline.run(self._gate, functools.partial(self._reader, blocks), self._compute, self._writer)

    def _reader(self, blocks: Iterator[Block]) -> None:
        for block in blocks:
            buffer = self._free_in.get()
            assert buffer is not None
            filled = Filled(block, buffer, block.dtype(read=True))
            if block.output.source is not None:
                block.output.source.rows(block.first, block.rows, filled.values())
            else:
                assert block.output.stored is not None
                start = block.output.stored.start + block.first * block.width * filled.dtype.itemsize
                read_into(block.source, filled.bytes(), start, block.path)
            self._read.put(filled)
        self._read.close()

    def _blocks(self, file: FilePlan, sources: dict[str, int], target: int) -> Iterator[Block]:
        """Copy what stays and give the blocks of what is computed, in file order."""
        if file.header is None:
            yield from self._like_the_base(file, sources, target)
            return
        write_from(target, memoryview(file.header), 0)
        for output, start in zip(file.outputs, file.starts, strict=True):
            if output.computed:
                yield from self._tensor(output, sources, target, start)
            elif output.stored is not None:
                stored = output.stored
                path = self._base / stored.file
                copy_shifted(sources[stored.file], target, stored.start, start, output.size, path, lambda n: self._moved(n, file.name))

    def _like_the_base(self, file: FilePlan, sources: dict[str, int], target: int) -> Iterator[Block]:
        """A file that keeps the base's header: everything but what is computed lies where it lay."""
        path = self._base / file.name
        with contextlib.ExitStack() as stack:
            source = sources.get(file.name)
            if source is None:
                source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, source)
            copier = Copier(lambda count: self._moved(count, file.name))
            position = 0
            for output, start in zip(file.outputs, file.starts, strict=True):
                if output.computed:
                    copier.copy(source, target, position, start, path)
                    position = start + output.size
                    yield from self._tensor(output, sources, target, start)
            copier.copy(source, target, position, file.size, path)

    def _tensor(self, output: Output, sources: dict[str, int], target: int, start: int) -> Iterator[Block]:
        if not output.elements:
            return
        step, length = _rows(output), output.matrix[0]
        row_bytes = output.size // length
        file = output.stored.file if output.stored is not None else output.file
        source = sources.get(file, -1) if output.source is None else -1
        passes = (False, True) if output.kernel is not None and output.kernel.twice else (True,)
        for final in passes:
            for first in range(0, length, step):
                rows = min(step, length - first)
                yield Block(output, target, source, self._base / file, start + first * row_bytes, first, rows, final)

    def _compute(self) -> None:
        current: Output | None = None
        while (filled := self._read.get()) is not None:
            block = filled.block
            if block.output is not current:
                kernel: Kernel = block.output.kernel or Copy()
                prepared, current = kernel.prepare(self._read_factor), block.output
            total = self._sum[: block.rows * block.width].view(block.rows, block.width)
            if not block.final:
                prepared.look(block.first, filled.values(), total)
                self._free_in.put(filled.buffer)
                continue
            buffer = self._free_out.get()
            assert buffer is not None
            result = Filled(block, buffer, block.dtype(read=False))
            self._round(filled, result, total, prepared)
            self._free_in.put(filled.buffer)
            self._done.put(result)
        self._done.close()

    def _round(self, filled: Filled, result: Filled, total: torch.Tensor, prepared: Prepared) -> None:
        weights = filled.values()
        prepared.fill(filled.block.first, weights, total)
        result.values().copy_(total)
        lowest, highest = (float(edge) for edge in torch.aminmax(total))
        limit = torch.finfo(result.dtype).max
        # NaN fails both comparisons, so it is caught as well. What the base itself holds may stay where nothing is added to it.
        if not (lowest >= -limit and highest <= limit) and (filled.block.output.changed or bool(torch.isfinite(weights.float()).all())):
            self._explain_non_finite(filled.block.output, weights, prepared, max(abs(lowest), abs(highest)), result.dtype)

    def _explain_non_finite(self, output: Output, weights: torch.Tensor, prepared: Prepared, largest: float, dtype: torch.dtype) -> None:
        if output.origin or not all(bool(torch.isfinite(factor).all()) for factor in prepared.factors):
            cause, remedy = "the adapter's own weights hold NaN or infinity", "take an earlier checkpoint: the training has diverged"
        elif not torch.isfinite(weights.float()).all():
            cause, remedy = "the base's own weights hold NaN or infinity", "restore the base model from its source"
        else:
            name = str(dtype).removeprefix("torch.")
            limit = torch.finfo(dtype).max
            cause = f"base and adapter are finite, but the sum reaches {largest:.4g} and {name} ends at {limit:.4g}"
            remedy = "use a base stored as bfloat16 or float32, or take an earlier checkpoint"
        where = (
            self._adapter.file if cause.startswith("the adapter") else self._base / (output.stored.file if output.stored else output.file)
        )
        raise Permanent("non-finite-weights", f"merge {output.module or output.name}", cause, remedy, path=where)

    def _writer(self) -> None:
        while (filled := self._done.get()) is not None:
            write_from(filled.block.target, filled.bytes(), filled.block.offset)
            self._moved(filled.size, filled.block.output.module or filled.block.output.name)
            self._free_out.put(filled.buffer)


def _rows(output: Output) -> int:
    """Rows of a block of the tensor: as many as fit into BLOCK elements, at least one."""
    rows, width = output.matrix
    return min(rows, max(1, BLOCK // max(1, width)))
