"""The integrity check of a streaming merge: the plan told in the terms of `handlers.merge.probe`, which reads the written files back.

Called by `handlers.merge.writing` when the files lie there and before the merge counts as done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from handlers.merge.arithmetic import Read
from handlers.merge.kernels import Bias, Experts, Kernel, LowRank, Rows, Sum
from handlers.merge.layout import Output
from handlers.merge.probe import Beat, Probe, check_merge, wrong
from handlers.merge.sources import Source, StoredSource, torch_dtype

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


def _low_rank(kernel: LowRank, read: Read) -> Pair:
    a, b = (factor.reshape(factor.shape[0], -1) for factor in (read(kernel.a), read(kernel.b)))
    if kernel.middle is not None:
        a = a * read(kernel.middle)
    return (a.T, b.T) if kernel.transposed else (b, a)


def _experts(kernel: Experts, read: Read) -> Pair:
    a, b = read(kernel.a), read(kernel.b)
    right = a.reshape(kernel.experts, -1, a.shape[-1])
    left = b.reshape(b.shape[0], -1, kernel.experts).permute(2, 0, 1)
    if kernel.transposed:
        left, right = right.transpose(1, 2), left.transpose(1, 2)
    if kernel.expert is None:
        return left, right
    return left[kernel.expert, kernel.offset : kernel.offset + kernel.rows], right[kernel.expert]


def _rows(kernel: Rows, read: Read, source: Source) -> Pair:
    """New rows as a change of the old ones."""
    left = torch.zeros(source.shape[0], len(kernel.indices))
    before = torch.empty(len(kernel.indices), source.shape[1])
    for place, index in enumerate(kernel.indices):
        left[index, place] = 1.0
        source.rows(index, 1, before[place : place + 1])
    return left, read(kernel.key) - before


def _factors(kernel: Kernel, read: Read, source: Source) -> Pair:
    """Left and right, whose product is the change."""
    if isinstance(kernel, LowRank):
        left, right = _low_rank(kernel, read)
        return left * (kernel.scale / kernel.divisor), right
    if isinstance(kernel, Experts):
        left, right = _experts(kernel, read)
        return left * kernel.scale, right
    if isinstance(kernel, Rows):
        return _rows(kernel, read, source)
    if isinstance(kernel, Bias):
        return read(kernel.key)[:, None] * kernel.scale, torch.ones(1, 1)
    assert isinstance(kernel, Sum)
    pairs = [_factors(one, read, source) for one in kernel.kernels]
    return torch.cat([left for left, _ in pairs], 1), torch.cat([right for _, right in pairs], 0)


def _probe(output: Output, kernel: Kernel, source: Source, read: Read) -> Probe:
    def factors() -> Pair:
        return _factors(kernel, read, source)

    probe = Probe(output.module, output.name, source, factors)
    if not isinstance(kernel, LowRank) or kernel.magnitude is None:
        return probe
    key = kernel.magnitude
    norms: Callable[[], torch.Tensor] = lambda: read(key).reshape(-1)  # noqa: E731
    return replace(probe, magnitude=norms, by_column=kernel.transposed)


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
        if one.kernel is not None:
            probes.append(_probe(one, one.kernel, sources[one.name], read))
    problems = check_merge(sources, output, probes, full=full, beat=beat, flagged=flagged)
    if problems:
        raise wrong(problems, output)
