"""The check of a streaming merge: translates the plan for `handlers.merge.engine.readback`, which reads the written files back.

The streaming engine does the pieces of a file as soon as it has written all of it, and before the file counts as finished; a file that an
interrupted attempt finished is checked likewise. What was written a moment ago is read from the kernel's page cache, so that the check
finds what this process and the kernel did wrong, but not what the disk loses later: for that there are the digests that are taken of the
same bytes. `handlers.merge.engine.execute` compares the headers when all files are there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from daemon.contract.models.safetensors import DTYPES, TensorInfo
from handlers.merge.engine.arithmetic import CACHED, Read
from handlers.merge.engine.readback import ChangedTensor, Factors, OnBytes, WrittenTensor, samples_of, wrong
from handlers.merge.engine.screen import Held, not_accepted
from handlers.merge.plan.operations import Bias, Experts, LowRank, Operation, Rows, Sum
from handlers.merge.plan.output_layout import FilePlan, Output, Plan
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import Source, StoredSource, row_elements, torch_dtype

PIECE = 1 << 16
"""Elements that are compared in one piece: so few that their values in float64 stay near the core, and enough for the calls to pay."""


class RoundedSource:
    """A source in the dtype that is written; with `rounded` its values are rounded to its own dtype first, as the engine does."""

    def __init__(self, source: Source, dtype: torch.dtype, *, rounded: bool) -> None:
        self._source, self._read = source, source.dtype if rounded else torch.float32
        self.name, self.shape, self.dtype = source.name, source.shape, dtype

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """Do as Source says."""
        if out.dtype == self._read:
            self._source.rows(first, count, out)
            return
        exact = torch.empty(out.shape, dtype=self._read)
        self._source.rows(first, count, exact)
        out.copy_(exact)


def _low_rank(operation: LowRank, read: Read) -> Factors:
    a, b = (factor.reshape(factor.shape[0], -1) for factor in (read(operation.a), read(operation.b)))
    if operation.middle is not None:
        a = a * read(operation.middle)
    return Factors(a.T, b.T) if operation.transposed else Factors(b, a)


def _experts(operation: Experts, read: Read) -> Factors:
    a, b = read(operation.a), read(operation.b)
    right = a.reshape(operation.experts, -1, a.shape[-1])
    left = b.reshape(b.shape[0], -1, operation.experts).permute(2, 0, 1)
    if operation.transposed:
        left, right = right.transpose(1, 2), left.transpose(1, 2)
    if operation.expert is None:
        return Factors(left, right)
    rows = slice(operation.offset, operation.offset + operation.rows)
    return Factors(left[operation.expert, rows], right[operation.expert])


def _rows(operation: Rows, read: Read, source: Source) -> Factors:
    """New rows as a delta to the old ones."""
    left = torch.zeros(source.shape[0], len(operation.indices))
    before = torch.empty(len(operation.indices), source.shape[1])
    for place, index in enumerate(operation.indices):
        left[index, place] = 1.0
        source.rows(index, 1, before[place : place + 1])
    return Factors(left, read(operation.key) - before)


def _factors(operation: Operation, read: Read, source: Source) -> Factors:
    """Return two factors whose product is the delta."""
    if isinstance(operation, LowRank):
        return _low_rank(operation, read).scaled(operation.scale / operation.divisor)
    if isinstance(operation, Experts):
        return _experts(operation, read).scaled(operation.scale)
    if isinstance(operation, Rows):
        return _rows(operation, read, source)
    if isinstance(operation, Bias):
        return Factors(read(operation.key)[:, None] * operation.scale, torch.ones(1, 1))
    assert isinstance(operation, Sum)
    pairs = [_factors(part, read, source) for part in operation.parts]
    return Factors(torch.cat([pair.left for pair in pairs], 1), torch.cat([pair.right for pair in pairs], 0))


def _changed(output: Output, operation: Operation, source: Source, read: Read) -> ChangedTensor:
    def factors() -> Factors:
        return _factors(operation, read, source)

    changed = ChangedTensor(output.module, output.name, source, factors)
    if not isinstance(operation, LowRank) or operation.magnitude is None:
        return changed
    key = operation.magnitude
    norms: Callable[[], torch.Tensor] = lambda: read(key).reshape(-1)  # noqa: E731
    return replace(changed, magnitude=norms, by_column=operation.transposed)


class FileCheck:
    """The check of written files, in pieces that are independent of each other, so that threads can share them."""

    def __init__(self, read: Read, model: ModelFolder, output: Path, on_bytes: OnBytes, *, full: bool) -> None:
        """Files in `output` that were made of `model`. `full` compares every value instead of samples."""
        self._read = functools.lru_cache(CACHED)(read)
        self._model, self._output, self._on_bytes, self._full = model, output, on_bytes, full
        self.held = Held()
        """What was found of the adapters' changes."""

    def pieces(self, file: FilePlan) -> list[Callable[[], None]]:
        """Calls that raise Permanent where the file, once it holds all its bytes, does not hold what it should."""
        alike: dict[tuple[object, ...], list[tuple[Output, int]]] = {}
        for output, start in zip(file.outputs, file.starts, strict=True):
            alike.setdefault((output.shape, output.dtype, type(output.operation)), []).append((output, start))
        checks: list[Callable[[], None]] = []
        for group in alike.values():
            first = group[0][0]
            sampled = sum(count for _, count in samples_of(first.name, first.shape)) * row_elements(first.shape)
            step = max(1, PIECE // max(1, sampled))
            checks += [functools.partial(self._check, group[at : at + step]) for at in range(0, len(group), step)]
        return checks

    def _check(self, group: Sequence[tuple[Output, int]]) -> None:
        tensors = [self._tensor(output, start) for output, start in group]
        left = tensors if self._full else not_accepted(tensors, self._on_bytes, self.held)
        problems = [problem for tensor in left if (problem := tensor.problem(self._full, self._on_bytes))]
        if problems:
            raise wrong(problems, self._output)

    def _tensor(self, output: Output, start: int) -> WrittenTensor:
        dtype, source = torch_dtype(output.dtype, self._model.path), output.source
        base: Source
        if source is not None:
            base = RoundedSource(source, dtype, rounded=bool(output.origin))
        else:
            assert output.stored is not None
            base = StoredSource(output.name, self._model.path_of(output.stored), output.stored)
            base = base if base.dtype == dtype else RoundedSource(base, dtype, rounded=False)
        info = TensorInfo(output.file, output.dtype, output.shape, start, start + output.size)
        written = StoredSource(output.name, self._output / output.file, info)
        return WrittenTensor(base, written, None if output.operation is None else _changed(output, output.operation, base, self._read))


def misplaced(plan: Plan, written: ModelFolder) -> list[str]:
    """Return how the headers in `written` differ from the plan, one clause each: by them others find what `FileCheck` has compared."""
    planned = {
        output.name: TensorInfo(output.file, output.dtype, output.shape, start, start + output.size)
        for file in plan.files for output, start in zip(file.outputs, file.starts, strict=True)
    }  # fmt: skip
    headers = written.headers
    problems = [f"{name} is missing" for name in sorted(planned.keys() - headers.keys())]
    problems += [f"{name} belongs to neither base nor adapter" for name in sorted(headers.keys() - planned.keys())]
    for name, info in headers.items():
        if name in planned and info != planned[name]:
            problems.append(f"{name} {_difference(planned[name], info)}")
    return problems


def _difference(planned: TensorInfo, written: TensorInfo) -> str:
    if planned.shape != written.shape:
        return f"has the shape {list(written.shape)}, where {list(planned.shape)} was expected"
    if planned.dtype != written.dtype:
        return f"is {_name(written.dtype)}, where {_name(planned.dtype)} was expected"
    return f"begins at byte {written.start:,} of {written.file}, where byte {planned.start:,} of {planned.file} was expected"


def _name(dtype: str) -> str:
    return DTYPES[dtype][0] if dtype in DTYPES else dtype
