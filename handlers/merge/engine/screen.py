"""The quick part of the check: many tensors of one shape at once, since for small ones a call costs more than its arithmetic.

Called by `handlers.merge.engine.check_plan`. It accepts a tensor only where `handlers.merge.engine.readback` would accept its samples too:
it computes the same differences in float64, and its limits are those of that module without the summands that only widen them. Whatever
it does not accept, for whatever reason, is decided there.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from handlers.merge.engine.readback import FAR, Factors, OnBytes, WrittenTensor, samples_of, tiny_of, unit_of
from handlers.tensors.file_io import OpenFiles
from handlers.tensors.sources import StoredSource, as_bytes, row_elements

MARGIN = 1.005
"""Times half the distance of two numbers beside the one that was written: within readback's 1.01 times that beside the exact sum."""
SMALLEST = 0.9
"""Times the distance of the smallest numbers, of which one rounding loses half: likewise."""
FACTORS = 1 << 18
"""Elements of the factors that are in memory for one batch; those of one tensor may be more."""
NARROW = (torch.bfloat16, torch.float16)
"""Where one rounding is far larger than what fp32 loses; in other dtypes sound sums exceed the limits of this module."""


class Held:
    """How much of the adapters' changes the written numbers hold: Σ (W' − W) · Δ over Σ Δ², of the samples in dtypes that are NARROW.

    One that is small beside the distance of two numbers is lost when the sum is rounded. May be added to by several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written = self._wanted = 0.0

    def add(self, written: float, wanted: float) -> None:
        """Sums over further samples: of change times delta, and of squared deltas."""
        if math.isfinite(written) and math.isfinite(wanted):
            with self._lock:
                self._written, self._wanted = self._written + written, self._wanted + wanted

    @property
    def share(self) -> float | None:
        """1 where nothing is lost but for rounding that evens out; None where nothing was added, or no delta was other than 0."""
        return self._written / self._wanted if self._wanted > 0 else None


def not_accepted(tensors: Sequence[WrittenTensor], on_bytes: OnBytes, held: Held | None = None) -> list[WrittenTensor]:
    """Those of the tensors, which have one shape and dtype, whose samples are not found to be right here. Adds what they hold to `held`."""
    held = held or Held()
    fit = [tensor for tensor in tensors if _can_be_screened(tensor)]
    unchanged = [tensor for tensor in fit if tensor.changed is None]
    left = [tensor for tensor in tensors if not _can_be_screened(tensor)]
    with OpenFiles() as files:
        if unchanged:
            before, after = _samples(unchanged, files, on_bytes)
            left += [] if torch.equal(before.view(torch.uint8), after.view(torch.uint8)) else unchanged
        for batch in _batches([tensor for tensor in fit if tensor.changed is not None]):
            stacked = batch[0].factors.left.ndim == 3
            sound = (
                [False] * len(batch) if stacked else _sound(batch, *_samples([member.tensor for member in batch], files, on_bytes), held)
            )
            left += [member.tensor for member, passed in zip(batch, sound, strict=True) if not passed]
    return left


class _Changed(NamedTuple):
    """A tensor whose factors have been read."""

    tensor: WrittenTensor
    factors: Factors


def _batches(tensors: Sequence[WrittenTensor]) -> Iterator[list[_Changed]]:
    """Yield the tensors with their factors, those that follow each other and have the same rank together, as far as memory allows it."""
    batch: list[_Changed] = []
    size = 0
    for tensor in tensors:
        assert tensor.changed is not None
        factors = tensor.changed.factors()
        own = factors.left.numel() + factors.right.numel()
        if batch and (size + own > FACTORS or factors.right.shape != batch[0].factors.right.shape):
            yield batch
            batch, size = [], 0
        batch.append(_Changed(tensor, factors))
        size += own
    if batch:
        yield batch


def _can_be_screened(tensor: WrittenTensor) -> bool:
    plain = (
        isinstance(tensor.base, StoredSource) and tensor.base.dtype == tensor.written.dtype and tensor.base.shape == tensor.written.shape
    )
    return plain and (tensor.changed is None or (tensor.changed.magnitude is None and tensor.written.dtype in NARROW))


def _samples(tensors: Sequence[WrittenTensor], files: OpenFiles, on_bytes: OnBytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sampled rows before and after the merge, as tensors × rows × columns, in the stored dtype."""
    written = tensors[0].written
    rows = sum(count for _, count in samples_of(written.name, written.shape))
    before, after = (torch.empty(len(tensors), rows, row_elements(written.shape), dtype=written.dtype) for _ in range(2))
    row = before[0, 0].nbytes if before.numel() else 0
    for buffer, sources in ((before, [tensor.base for tensor in tensors]), (after, [tensor.written for tensor in tensors])):
        view, at = as_bytes(buffer), 0
        for source in sources:
            assert isinstance(source, StoredSource)
            for first, count in samples_of(source.name, source.shape):
                path, offset = source.place(first)
                files.read(path, view[at : at + count * row], offset)
                at += count * row
        on_bytes(at)
    return before, after


def _sound(batch: Sequence[_Changed], before: torch.Tensor, after: torch.Tensor, held: Held) -> list[bool]:
    """For each tensor of the batch, whether its rows are base + delta by both of readback's measures."""
    name, dtype = batch[0].tensor.written.name, before.dtype
    (count, rows, columns), rank = before.shape, batch[0].factors.right.shape[0]
    left, right = torch.empty(count, rows, rank, dtype=torch.float64), torch.empty(count, rank, columns, dtype=torch.float64)
    for place, (tensor, factors) in enumerate(batch):
        right[place] = factors.right
        at = 0
        for first, number in samples_of(tensor.written.name, tensor.written.shape):
            left[place, at : at + number] = factors.left[first : first + number]
            at += number
    seed = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    x = torch.randint(0, 2, (columns,), generator=seed).double().mul_(2).sub_(1)
    exact, base = after.double(), before.double()
    change = exact - base
    summed = (change @ x - (left @ (right @ x)[:, :, None])[:, :, 0]).abs_()
    may_sum = torch.linalg.vector_norm(exact, dim=2).mul_(unit_of(dtype)).add_(tiny_of(dtype) * math.sqrt(columns)).mul_(FAR)
    delta = torch.bmm(left, right)
    held.add(float(torch.dot(change.view(-1), delta.view(-1))), float(torch.dot(delta.view(-1), delta.view(-1))))
    off = delta.sub_(change).abs_()
    may = exact.abs_().mul_(MARGIN * unit_of(dtype)).add_(SMALLEST * tiny_of(dtype))
    may.add_(base.abs_(), alpha=unit_of(torch.float32) * (rank + 8))
    # What is not a number is within no limit.
    sound: list[bool] = ((off <= may).flatten(1).all(dim=1) & (summed <= may_sum).all(dim=1)).tolist()
    return sound
