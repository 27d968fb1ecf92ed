"""The integrity check of a streaming merge: the plan told in the terms of `handlers.merge.engine.readback`, which reads the written
files back.

Called by `handlers.merge.engine.execute` when the files lie there and before the merge counts as done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from handlers.merge.engine.arithmetic import Read
from handlers.merge.engine.readback import Beat, Probe, check_merge, wrong
from handlers.merge.plan.operations import Bias, Experts, LowRank, Operation, Rows, Sum
from handlers.merge.plan.output_layout import Output
from handlers.merge.weights.sources import Source, StoredSource, torch_dtype

Pair = tuple[torch.Tensor, torch.Tensor]


class Written:
    """A source for another dtype than its own; one of the adapter's is rounded to its own dtype first, as the engine does."""

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


def _low_rank(operation: LowRank, read: Read) -> Pair:
    a, b = (factor.reshape(factor.shape[0], -1) for factor in (read(operation.a), read(operation.b)))
    if operation.middle is not None:
        a = a * read(operation.middle)
    return (a.T, b.T) if operation.transposed else (b, a)


def _experts(operation: Experts, read: Read) -> Pair:
    a, b = read(operation.a), read(operation.b)
    right = a.reshape(operation.experts, -1, a.shape[-1])
    left = b.reshape(b.shape[0], -1, operation.experts).permute(2, 0, 1)
    if operation.transposed:
        left, right = right.transpose(1, 2), left.transpose(1, 2)
    if operation.expert is None:
        return left, right
    return left[operation.expert, operation.offset : operation.offset + operation.rows], right[operation.expert]


def _rows(operation: Rows, read: Read, source: Source) -> Pair:
    """New rows as a change of the old ones."""
    left = torch.zeros(source.shape[0], len(operation.indices))
    before = torch.empty(len(operation.indices), source.shape[1])
    for place, index in enumerate(operation.indices):
        left[index, place] = 1.0
        source.rows(index, 1, before[place : place + 1])
    return left, read(operation.key) - before


def _factors(operation: Operation, read: Read, source: Source) -> Pair:
    """Left and right, whose product is the change."""
    if isinstance(operation, LowRank):
        left, right = _low_rank(operation, read)
        return left * (operation.scale / operation.divisor), right
    if isinstance(operation, Experts):
        left, right = _experts(operation, read)
        return left * operation.scale, right
    if isinstance(operation, Rows):
        return _rows(operation, read, source)
    if isinstance(operation, Bias):
        return read(operation.key)[:, None] * operation.scale, torch.ones(1, 1)
    assert isinstance(operation, Sum)
    pairs = [_factors(one, read, source) for one in operation.parts]
    return torch.cat([left for left, _ in pairs], 1), torch.cat([right for _, right in pairs], 0)


def _probe(output: Output, operation: Operation, source: Source, read: Read) -> Probe:
    def factors() -> Pair:
        return _factors(operation, read, source)

    probe = Probe(output.module, output.name, source, factors)
    if not isinstance(operation, LowRank) or operation.magnitude is None:
        return probe
    key = operation.magnitude
    norms: Callable[[], torch.Tensor] = lambda: read(key).reshape(-1)  # noqa: E731
    return replace(probe, magnitude=norms, by_column=operation.transposed)


def check(
    outputs: Iterable[Output], read: Read, base: Path, output: Path, *, full: bool = False, beat: Beat | None = None, flagged: bool = True
) -> None:
    """Permanent when the files in `output` do not hold what `outputs` say; `full` looks at every value instead of samples.

    `flagged`: what config.json says about the weights is checked too.
    """
    sources: dict[str, Source] = {}
    probes = []
    for one in outputs:
        if one.source is not None:
            sources[one.name] = Written(one.source, torch_dtype(one.dtype, base), rounded=bool(one.origin))
        elif one.stored is not None:
            source = StoredSource(one.name, base / one.stored.file, one.stored)
            dtype = torch_dtype(one.dtype, base)
            sources[one.name] = source if source.dtype == dtype else Written(source, dtype, rounded=False)
        if one.operation is not None:
            probes.append(_probe(one, one.operation, sources[one.name], read))
    problems = check_merge(sources, output, probes, full=full, beat=beat, flagged=flagged)
    if problems:
        raise wrong(problems, output)
