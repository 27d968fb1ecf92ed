"""The streaming engine: carries out the plan of a merge in blocks of rows, file by file.

Called by `handlers.merge.engine.execute`. Memory is a few blocks plus one tensor's factors, whatever the model's size. Each block is
computed in fp32 and rounded once to the dtype it is written in, as PEFT's merge_and_unload does; the sums are taken over the rank
inside one matrix product, whose order is the math library's. Headers and untouched tensors are copied as bytes. An interruption costs
the files that are begun and not finished, about two.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.adapters.bundle import Bundle
from handlers.merge.engine.arithmetic import Prepared, prepare
from handlers.merge.engine.work_queue import Begun, Fronts, Piece, hand_out
from handlers.merge.plan.operations import Copy, Operation
from handlers.merge.plan.output_layout import FilePlan, Output, Plan
from handlers.merge.weights.file_io import copy_range, create, read_into, write_from
from handlers.merge.weights.sources import as_bytes, check_overflow
from handlers.models.files import DTYPES

BLOCK = 1 << 18
"""Elements of a block: large enough for the matrix product, small enough to stay in a core's own cache from reading to writing."""
SHARE = 32
"""Blocks of a tensor that one thread does in a row, so that several can work on a large one."""
PIECE = 1 << 25
"""Bytes of what stays that are copied at once."""
TOLD = 1 << 22
"""Bytes of computed rows that are told at once: each telling takes turns with the other threads."""
CACHED = 4
"""Tensors of the adapter that are kept for the next tensor of the base: experts that lie apart share theirs."""
SHAPES = 64
"""Shapes of blocks whose buffers are kept cut; a model has few."""


@dataclass(frozen=True)
class Room:
    """What a block takes place in: its rows × columns as they are read, as they are summed and as they are written."""

    weights: torch.Tensor
    total: torch.Tensor
    result: torch.Tensor
    read: memoryview
    """The bytes of `weights`."""
    written: memoryview
    """The bytes of `result`."""


class Desk:
    """What one thread works with: buffers for a block. They are cut to its shape once, not anew for each block."""

    def __init__(self, elements: int) -> None:
        # Eight bytes hold an element of every dtype; pages that no block reaches are never touched.
        self._read = torch.empty(elements * 8, dtype=torch.uint8)
        self._total = torch.empty(elements)
        self._written = torch.empty(elements * 8, dtype=torch.uint8)
        self._rooms: dict[tuple[int, int, torch.dtype, torch.dtype], Room] = {}

    def room(self, rows: int, width: int, read: torch.dtype, written: torch.dtype) -> Room:
        """The buffers as rows × width, read and written in these dtypes; the same memory each time."""
        key = (rows, width, read, written)
        if key not in self._rooms:
            if len(self._rooms) >= SHAPES:
                self._rooms.clear()
            weights, result = (
                buffer[: rows * width * dtype.itemsize].view(dtype).view(rows, width)
                for buffer, dtype in ((self._read, read), (self._written, written))
            )
            total = self._total[: rows * width].view(rows, width)
            self._rooms[key] = Room(weights, total, result, as_bytes(weights), as_bytes(result))
        return self._rooms[key]


class StreamingMerge:
    """One merge after a plan: `files` of it, written into `output` from the base's files in `base`, by `workers` threads.

    `moved` is told the bytes of each step and what they belong to, `finished` each file, as written; both by several threads.
    """

    def __init__(
        self, adapter: Bundle, plan: Plan, base: Path, files: tuple[str, ...], output: Path,
        moved: Callable[[int, str], None], finished: Callable[[str], None], workers: int = 2,
    ) -> None:  # fmt: skip
        self._adapter, self._base, self._output = adapter, base, output
        self._moved, self._finished = moved, finished
        self._plans = [one for one in plan.files if one.name in files]
        self._read_factor = functools.lru_cache(CACHED)(adapter.tensor)
        elements = max((_rows(one) * one.matrix[1] for file in self._plans for one in file.outputs if one.computed), default=1)
        self._desks = [Desk(elements) for _ in range(workers)]

    def run(self) -> None:
        """Write all files. OSError and Permanent pass through; files written so far stay for the caller to remove."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # threads share the blocks, not the operations on one
        fronts = Fronts(self._plans, self._begin)

        def do(desk: Desk, task: tuple[Begun[Desk], Piece[Desk]]) -> None:
            file, piece = task
            with torch.inference_mode():  # which a thread does not inherit
                piece.do(desk)
            if fronts.done(file):
                self._finished(file.name)

        try:
            hand_out(fronts.take, [functools.partial(do, desk) for desk in self._desks])
        finally:
            fronts.close()
            torch.set_num_threads(threads)

    def _begin(self, file: FilePlan) -> Begun[Desk]:
        """A new file of its full size, and what has to be done to fill it."""
        with contextlib.ExitStack() as stack:
            names = {one.stored.file for one in file.outputs if one.stored is not None and one.source is None}
            sources: dict[str, int] = {}
            for name in sorted(names | ({file.name} if file.header is None else set())):
                sources[name] = os.open(self._base / name, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, sources[name])
            target = create(self._output / file.name, file.size)
            stack.callback(os.close, target)
            pieces = list(self._pieces(file, sources, target))
            return Begun(file.name, pieces, stack.pop_all())

    def _pieces(self, file: FilePlan, sources: dict[str, int], target: int) -> Iterator[Piece[Desk]]:
        """The file in its order: what stays, and the rows of what is computed."""
        position = 0
        if file.header is not None:
            yield Piece(functools.partial(_write_header, target, file.header))
        for output, start in zip(file.outputs, file.starts, strict=True):
            if file.header is not None and not output.computed and output.stored is not None:
                stored = output.stored
                yield from self._copies(file, stored.file, sources, target, stored.start, start, output.size)
            elif output.computed:
                if file.header is None:
                    yield from self._copies(file, file.name, sources, target, position, position, start - position)
                    position = start + output.size
                yield from self._parts(output, sources, target, start)
        if file.header is None:
            yield from self._copies(file, file.name, sources, target, position, position, file.size - position)

    def _copies(
        self, file: FilePlan, name: str, sources: dict[str, int], target: int, start: int, to: int, size: int
    ) -> Iterator[Piece[Desk]]:
        for done in range(0, size, PIECE):
            length = min(PIECE, size - done)
            copy = functools.partial(self._copy, file.name, self._base / name, sources[name], target, start + done, to + done, length)
            yield Piece(copy, sources[name], start + done, length)

    def _copy(self, told: str, path: Path, source: int, target: int, start: int, to: int, size: int, desk: Desk) -> None:
        copy_range(source, target, start, to, size, path, lambda count: self._moved(count, told))

    def _parts(self, output: Output, sources: dict[str, int], target: int, start: int) -> Iterator[Piece[Desk]]:
        """The tensor's rows, together where a source or an operation goes through them in order."""
        if not output.elements:
            return
        length, stored = output.matrix[0], output.stored
        source = sources[stored.file] if output.source is None and stored is not None else -1
        together = output.source is not None or (output.operation is not None and output.operation.twice)
        step = length if together else _rows(output) * SHARE
        for first in range(0, length, step):
            rows = range(first, min(first + step, length))
            part = functools.partial(self._part, output, source, target, start, rows)
            if source < 0 or stored is None:
                yield Piece(part)
                continue
            width = stored.size // length
            yield Piece(part, source, stored.start + first * width, len(rows) * width)

    def _part(self, output: Output, source: int, target: int, start: int, part: range, desk: Desk) -> None:
        """Rows of one tensor, block by block."""
        operation: Operation = output.operation or Copy()
        prepared, step, path = prepare(operation, self._read_factor), _rows(output), self._path(output)
        (length, width), dtypes, told = output.matrix, _dtypes(output), output.module or output.name
        row, untold = output.size // length, 0
        for final in (False, True) if operation.twice else (True,):
            for first in range(part.start, part.stop, step):
                room = desk.room(min(step, part.stop - first), width, *dtypes)
                self._fill(output, source, path, first, room)
                if not final:
                    prepared.look(first, room.weights, room.total)
                    continue
                self._round(output, first, room, prepared)
                write_from(target, room.written, start + first * row)
                untold += len(room.written)
                if untold >= TOLD:
                    self._moved(untold, told)
                    untold = 0
        self._moved(untold, told)

    def _fill(self, output: Output, source: int, path: Path, first: int, room: Room) -> None:
        """Read the rows from `first` on."""
        if output.source is not None:
            output.source.rows(first, len(room.weights), room.weights)
            return
        assert output.stored is not None
        row = len(room.read) // len(room.weights)
        read_into(source, room.read, output.stored.start + first * row, path)

    def _round(self, output: Output, first: int, room: Room, prepared: Prepared) -> None:
        """Compute the rows from `first` on, and round them once."""
        prepared.fill(first, room.weights, room.total)
        room.result.copy_(room.total)
        # One value that is not finite makes the sum so. Where that is in doubt, the largest is looked for.
        wide = room.result.element_size() > 1  # torch adds up no fp8
        if wide and math.isfinite(room.result.sum().item()):
            return
        # NaN fails the comparison, so it is caught as well.
        if float((room.result if wide else room.result.float()).abs().max()) <= torch.finfo(room.result.dtype).max:
            return
        if output.changed:
            self._explain_non_finite(output, room.weights, prepared, float(room.total.abs().max()), room.result.dtype)
        # What the base itself holds may stay where nothing is added to it.
        check_overflow(room.weights, room.result, output.name, self._path(output))

    def _path(self, output: Output) -> Path:
        return self._base / (output.stored.file if output.stored else output.file)

    def _explain_non_finite(
        self, output: Output, weights: torch.Tensor, prepared: Prepared, largest: float, dtype: torch.dtype
    ) -> NoReturn:
        if output.origin or not all(bool(torch.isfinite(factor).all()) for factor in prepared.factors):
            cause, remedy = "the adapter's own weights hold NaN or infinity", "take an earlier checkpoint: the training has diverged"
        elif not torch.isfinite(weights.float()).all():
            cause, remedy = "the base's own weights hold NaN or infinity", "restore the base model from its source"
        else:
            name = str(dtype).removeprefix("torch.")
            limit = torch.finfo(dtype).max
            cause = f"base and adapter are finite, but the sum reaches {largest:.4g} and {name} ends at {limit:.4g}"
            remedy = "use a base stored as bfloat16 or float32, or take an earlier checkpoint"
        where = self._adapter.file if cause.startswith("the adapter") else self._path(output)
        raise Permanent(FaultCode.NON_FINITE_WEIGHTS, f"merge {output.module or output.name}", cause, remedy, path=where)


def _write_header(target: int, header: bytes, desk: Desk) -> None:
    write_from(target, memoryview(header), 0)


def _dtypes(output: Output) -> tuple[torch.dtype, torch.dtype]:
    """In which a tensor's rows are read and written."""
    written: torch.dtype = getattr(torch, DTYPES[output.dtype][0])
    if output.source is not None:
        # A tensor of the adapter is first what it replaces; what had to be unpacked is not rounded before the sum. Of float64 more
        # is read than is summed, so that a value beyond fp32 is seen.
        own = output.source.dtype
        return (own if output.origin or own == torch.float64 else torch.float32), written
    assert output.stored is not None
    return getattr(torch, DTYPES[output.stored.dtype][0]), written


def _rows(output: Output) -> int:
    """Rows of a block of the tensor: as many as fit into BLOCK elements, at least one, the same for all but for the last one's rest.

    Blocks are alike since a product of very few rows is summed in another order by the math libraries, so that a last row by itself
    might differ from the same row in PEFT's product of the whole.
    """
    rows, width = output.matrix
    blocks = math.ceil(rows / max(1, BLOCK // max(1, width)))
    return max(1, math.ceil(rows / max(1, blocks)))
