"""The streaming engine: executes the plan of a merge in blocks of rows, file by file.

Called by `handlers.merge.engine.execute`. It needs memory for a few blocks and the factors of one tensor, whatever the model's size. Each
block is computed in fp32 and rounded once to the dtype in which it is written, as PEFT's merge_and_unload does; the sum over the rank is
one matrix product, in the order of the math library. Headers and unchanged tensors are copied as bytes. An interruption costs the files
that are begun and not finished, about two.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import DTYPES
from handlers.merge.adapters.bundle import Bundle
from handlers.merge.engine.arithmetic import CACHED, Prepared, prepare
from handlers.merge.engine.check_plan import FileCheck
from handlers.merge.engine.work_queue import FileInProgress, Piece, PieceQueue, joined, run_workers
from handlers.merge.plan.operations import Copy, Operation, Sum
from handlers.merge.plan.output_layout import FilePlan, Output
from handlers.models.folder import ModelFolder
from handlers.tensors.file_io import ByteRange, copy_range, create, read_into, write_from
from handlers.tensors.sources import as_bytes, check_overflow

if TYPE_CHECKING:
    from handlers.merge.engine.execute import Observer

BLOCK = 1 << 18
"""Elements of a block: enough for an efficient matrix product, and few enough to stay in a core's cache from reading to writing."""
SHARE = 32
"""Blocks of a tensor in one piece, so that several threads can work on a large tensor."""
COPIED = 1 << 25
"""Bytes of unchanged tensors in one piece."""
JOINED = 1 << 20
"""Bytes of small tensors in one piece: to hand out a piece costs as much as to compute a few thousand elements."""
REPORTED = 1 << 22
"""Bytes of computed rows after which progress is reported: for each report a thread waits for the others."""
SHAPES = 64
"""Shapes of blocks whose views of the buffers are kept; a model has few."""


@dataclass(frozen=True)
class Block:
    """The memory of one block, as rows × columns: as it is read, summed and written."""

    weights: torch.Tensor
    total: torch.Tensor
    result: torch.Tensor
    read: memoryview
    """The bytes of `weights`."""
    written: memoryview
    """The bytes of `result`."""


class Buffers:
    """The memory that one thread uses for all its blocks. The views for a block's shape are made once, not for each block."""

    def __init__(self, elements: int) -> None:
        # Eight bytes hold an element of every dtype; pages that no block needs are never allocated.
        self._read = torch.empty(elements * 8, dtype=torch.uint8)
        self._total = torch.empty(elements)
        self._written = torch.empty(elements * 8, dtype=torch.uint8)
        self._blocks: dict[tuple[int, int, torch.dtype, torch.dtype], Block] = {}

    def block(self, rows: int, width: int, read: torch.dtype, written: torch.dtype) -> Block:
        """Return the buffers as rows × width, read and written in these dtypes. Always the same memory."""
        key = (rows, width, read, written)
        if key not in self._blocks:
            if len(self._blocks) >= SHAPES:
                self._blocks.clear()
            weights, result = (
                buffer[: rows * width * dtype.itemsize].view(dtype).view(rows, width)
                for buffer, dtype in ((self._read, read), (self._written, written))
            )
            total = self._total[: rows * width].view(rows, width)
            self._blocks[key] = Block(weights, total, result, as_bytes(weights), as_bytes(result))
        return self._blocks[key]


@dataclass(frozen=True)
class _Target:
    """Where a tensor is written."""

    descriptor: int
    start: int


class StreamingMerge:
    """One merge: `files` of its plan, written into `output` from the weights in `model`, by `workers` threads.

    With a `check` each file is checked when it is written, and so are the files `kept`, which are there already.
    """

    def __init__(
        self, adapter: Bundle, model: ModelFolder, files: Sequence[FilePlan], output: Path, observer: Observer, workers: int,
        check: FileCheck | None = None, kept: Sequence[FilePlan] = (),
    ) -> None:  # fmt: skip
        self._adapter, self._base, self._files, self._output, self._observer = adapter, model.path, files, output, observer
        self._check, self._kept = check, {file.name: file for file in kept}
        self._read_factor = functools.lru_cache(CACHED)(adapter.tensor)
        elements = max((_rows(tensor) * tensor.matrix[1] for file in files for tensor in file.outputs if tensor.computed), default=1)
        self._buffers = [Buffers(elements) for _ in range(workers)]

    def run(self) -> None:
        """Write all files. OSError and Permanent pass through; files written so far stay for the caller to remove.

        Permanent too when the check finds that a file does not hold what it should.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the threads share the blocks, and each operation on a block runs in one thread
        queue = PieceQueue((*self._files, *(self._kept.values() if self._check else ())), self._begin)

        def do(buffers: Buffers, task: tuple[FileInProgress[Buffers], Piece[Buffers]]) -> None:
            file, piece = task
            try:
                with torch.inference_mode():  # which a thread does not inherit
                    piece.do(buffers)
                if queue.done(file) and file.name not in self._kept:
                    self._observer.finished(file.name)
            except BaseException:
                queue.stop()
                raise

        try:
            run_workers(queue.take, [functools.partial(do, buffers) for buffers in self._buffers])
        finally:
            queue.close()
            torch.set_num_threads(threads)

    def _begin(self, file: FilePlan) -> FileInProgress[Buffers]:
        """Return a new file of its full size, the pieces that fill it, and those that check it; of a file that is kept only these."""
        checks = [Piece(functools.partial(_do_check, check)) for check in self._check.pieces(file)] if self._check else []
        if file.name in self._kept:
            return FileInProgress(file.name, (), contextlib.ExitStack(), checks)
        with contextlib.ExitStack() as stack:
            names = {output.stored.file for output in file.outputs if output.stored is not None and output.source is None}
            sources: dict[str, ByteRange] = {}
            for name in sorted(names | ({file.name} if file.header is None else set())):
                path = self._base / name
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                sources[name] = ByteRange(path, descriptor, 0, os.fstat(descriptor).st_size)
            target = create(self._output / file.name, file.size)
            stack.callback(os.close, target)
            pieces = joined(self._pieces(file, sources, target), JOINED)
            return FileInProgress(file.name, pieces, stack.pop_all(), checks)

    def _pieces(self, file: FilePlan, sources: dict[str, ByteRange], target: int) -> Iterator[Piece[Buffers]]:
        """Yield the file in its order: bytes that are copied, and rows that are computed. `sources` are the base's open files by name."""
        if file.header is None:
            yield from self._pieces_in_place(file, sources, target)
            return
        yield Piece(functools.partial(_write_header, target, file.header))
        for output, start in zip(file.outputs, file.starts, strict=True):
            if output.computed:
                yield from self._parts(output, sources, target, start)
            elif output.stored is not None:
                stored = output.stored
                yield from self._copies(file.name, sources[stored.file].part(stored.start, output.size), target, start)

    def _pieces_in_place(self, file: FilePlan, sources: dict[str, ByteRange], target: int) -> Iterator[Piece[Buffers]]:
        """Yield the same for a file whose header and positions are those of the base's: all bytes between computed tensors are copied."""
        base, position = sources[file.name], 0
        for output, start in zip(file.outputs, file.starts, strict=True):
            if output.computed:
                yield from self._copies(file.name, base.part(position, start - position), target, position)
                position = start + output.size
                yield from self._parts(output, sources, target, start)
        yield from self._copies(file.name, base.part(position, file.size - position), target, position)

    def _copies(self, name: str, source: ByteRange, target: int, to: int) -> Iterator[Piece[Buffers]]:
        for done in range(0, source.size, COPIED):
            part = source.part(done, min(COPIED, source.size - done))
            yield Piece(functools.partial(self._copy, name, part, target, to + done), part)

    def _copy(self, name: str, source: ByteRange, target: int, to: int, buffers: Buffers) -> None:
        copy_range(source, target, to, lambda count: self._observer.moved(count, name))

    def _parts(self, output: Output, sources: dict[str, ByteRange], target: int, start: int) -> Iterator[Piece[Buffers]]:
        """Yield the tensor's rows, all in one piece where a source or an operation needs them in order."""
        if not output.elements:
            return
        length, stored = output.matrix[0], output.stored
        source = sources[stored.file].part(stored.start, stored.size) if output.source is None and stored is not None else None
        in_order = output.source is not None or (output.operation is not None and output.operation.twice)
        step = length if in_order else _rows(output) * SHARE
        for first in range(0, length, step):
            rows = range(first, min(first + step, length))
            part = functools.partial(self._part, output, source, _Target(target, start), rows)
            if source is None:
                yield Piece(part)
            else:
                width = source.size // length
                yield Piece(part, source.part(first * width, len(rows) * width))

    def _part(self, output: Output, source: ByteRange | None, target: _Target, part: range, buffers: Buffers) -> None:
        """Compute and write rows of one tensor, block by block."""
        operation: Operation = output.operation or Copy()
        prepared, step = prepare(operation, self._read_factor), _rows(output)
        (length, width), dtypes, name = output.matrix, _dtypes(output), output.module or output.name
        row, unreported = output.size // length, 0
        for scan in (prepared.scan, None) if prepared.scan else (None,):
            for first in range(part.start, part.stop, step):
                block = buffers.block(min(step, part.stop - first), width, *dtypes)
                self._fill(output, source, first, block)
                if scan is not None:
                    scan(first, block.weights, block.total)
                    continue
                self._round(output, first, block, prepared)
                write_from(target.descriptor, block.written, target.start + first * row)
                unreported += len(block.written)
                if unreported >= REPORTED:
                    self._observer.moved(unreported, name)
                    unreported = 0
        self._observer.moved(unreported, name)

    def _fill(self, output: Output, source: ByteRange | None, first: int, block: Block) -> None:
        """Read the rows from `first` on."""
        if output.source is not None:
            output.source.rows(first, len(block.weights), block.weights)
            return
        assert source is not None
        row = len(block.read) // len(block.weights)
        read_into(source.descriptor, block.read, source.start + first * row, source.path)

    def _round(self, output: Output, first: int, block: Block, prepared: Prepared) -> None:
        """Compute the rows from `first` on, and round them once."""
        prepared.fill(first, block.weights, block.total)
        block.result.copy_(block.total)
        # One value that is not finite makes the sum so. Finite values may add up to infinity too: then the largest one decides.
        wide = block.result.element_size() > 1  # torch adds up no fp8
        if wide and math.isfinite(block.result.sum().item()):
            return
        # NaN fails the comparison, so it is caught as well.
        if float((block.result if wide else block.result.float()).abs().max()) <= torch.finfo(block.result.dtype).max:
            return
        if output.changed:
            self._explain_non_finite(output, block.weights, float(block.total.abs().max()), block.result.dtype)
        # Infinity and NaN of the base itself may stay where nothing is added to them.
        check_overflow(block.weights, block.result, output.name, self._path(output))

    def _path(self, output: Output) -> Path:
        return self._base / (output.stored.file if output.stored else output.file)

    def _explain_non_finite(self, output: Output, weights: torch.Tensor, largest: float, dtype: torch.dtype) -> NoReturn:
        operation: Operation = output.operation or Copy()
        own = self._adapter.not_finite((output.origin,) if output.origin else operation.keys)
        where, name = own or self._path(output), str(dtype).removeprefix("torch.")
        limit = torch.finfo(dtype).max
        reaches = f"reaches {largest:.4g}, and the largest {name} value is {limit:.4g}" if math.isfinite(largest) else "is beyond float32"
        remedy = "use a base stored as bfloat16 or float32, or take an earlier checkpoint"
        if own is not None:
            cause, remedy = "the adapter's own weights hold NaN or infinity", "take an earlier checkpoint: the training has diverged"
        elif output.origin:
            cause = f"the adapter's own values for it are beyond the largest {name} value, {limit:.4g}"
        elif not torch.isfinite(weights.float()).all():
            cause, remedy = "the base's own weights hold NaN or infinity", "restore the base model from its source"
        elif isinstance(operation, Sum):
            cause = f"base and adapters are finite, but their weighted sum {reaches}"
            remedy = f"give the adapters smaller weights (merge.weight, merge.add, --add PATH=WEIGHT), or {remedy}"
        else:
            cause = f"base and adapter are finite, but the sum {reaches}"
        raise Permanent(FaultCode.NON_FINITE_WEIGHTS, f"merge {output.module or output.name}", cause, remedy, path=where)


def _do_check(check: Callable[[], None], buffers: Buffers) -> None:
    check()


def _write_header(target: int, header: bytes, buffers: Buffers) -> None:
    write_from(target, memoryview(header), 0)


def _dtypes(output: Output) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes in which a tensor's rows are read and written."""
    written: torch.dtype = getattr(torch, DTYPES[output.dtype][0])
    if output.source is not None:
        # A tensor of the adapter is rounded to the dtype of what it replaces; an unpacked one is not rounded before the sum. float64 is
        # read as it is, though the sum is fp32, so that a value beyond fp32 is noticed.
        own = output.source.dtype
        return (own if output.origin or own == torch.float64 else torch.float32), written
    assert output.stored is not None
    return getattr(torch, DTYPES[output.stored.dtype][0]), written


def _rows(output: Output) -> int:
    """Return the rows of a block of the tensor: as many as fit into BLOCK elements, at least one; the same for all blocks but the last.

    Blocks have equal sizes since math libraries sum a product of very few rows in another order, so that a single last row might differ
    from the same row in PEFT's product of the whole.
    """
    rows, width = output.matrix
    blocks = math.ceil(rows / max(1, BLOCK // max(1, width)))
    return max(1, math.ceil(rows / max(1, blocks)))
