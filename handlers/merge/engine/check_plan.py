"""The check of a streaming merge: translates the plan for `handlers.merge.engine.readback`, which reads the written files back.

Called by `handlers.merge.engine.execute` after all files are written and before the merge counts as done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from handlers.merge.engine.arithmetic import Read
from handlers.merge.engine.readback import ChangedTensor, Factors, OnBytes, check_merge
from handlers.merge.plan.operations import Bias, Experts, LowRank, Operation, Rows, Sum
from handlers.merge.plan.output_layout import Output
from handlers.merge.weights.sources import Source, StoredSource, torch_dtype
from handlers.models.folder import ModelFolder


class RoundedSource:
    """A source in the dtype that is written; with `rounded` its values are rounded to its own dtype first, as the engine does."""

    def __init__(self, source: Source, dtype: torch.dtype, *, rounded: bool) -> None:
        self._source, self._read = source, source.dtype if rounded else torch.float32
        self.name, self.shape, self.dtype = source.name, source.shape, dtype

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """As Source says."""
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
    """Two factors whose product is the delta."""
    if isinstance(operation, LowRank):
        return _low_rank(operation, read).scaled(operation.scale / operation.divisor)
    if isinstance(operation, Experts):
        return _experts(operation, read).scaled(operation.scale)
    if isinstance(operation, Rows):
        return _rows(operation, read, source)
    if isinstance(operation, Bias):
        return Factors(read(operation.key)[:, None] * operation.scale, torch.ones(1, 1))
    assert isinstance(operation, Sum)
    pairs = [_factors(one, read, source) for one in operation.parts]
    return Factors(torch.cat([one.left for one in pairs], 1), torch.cat([one.right for one in pairs], 0))


def _changed(output: Output, operation: Operation, source: Source, read: Read) -> ChangedTensor:
    def factors() -> Factors:
        return _factors(operation, read, source)

    changed = ChangedTensor(output.module, output.name, source, factors)
    if not isinstance(operation, LowRank) or operation.magnitude is None:
        return changed
    key = operation.magnitude
    norms: Callable[[], torch.Tensor] = lambda: read(key).reshape(-1)  # noqa: E731
    return replace(changed, magnitude=norms, by_column=operation.transposed)


def check(outputs: Iterable[Output], read: Read, model: ModelFolder, written: ModelFolder, *, full: bool, on_bytes: OnBytes) -> list[str]:
    """What is wrong with the files in `written`, which were made of `model` as `outputs` say; empty when nothing was found.

    `full` compares every value instead of samples.
    """
    sources: dict[str, Source] = {}
    changed = []
    for one in outputs:
        dtype = torch_dtype(one.dtype, model.path)
        if one.source is not None:
            sources[one.name] = RoundedSource(one.source, dtype, rounded=bool(one.origin))
        elif one.stored is not None:
            source = StoredSource(one.name, model.path_of(one.stored), one.stored)
            sources[one.name] = source if source.dtype == dtype else RoundedSource(source, dtype, rounded=False)
        if one.operation is not None:
            changed.append(_changed(one, one.operation, sources[one.name], read))
    return check_merge(sources, written, changed, full=full, on_bytes=on_bytes)
