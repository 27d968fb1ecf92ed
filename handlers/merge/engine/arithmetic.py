"""The arithmetic of a merge: how rows of a merged tensor are computed from the same rows of the base and the adapter's factors.

`prepare` is called by the streaming engine, one tensor at a time. All sums are fp32; the engine rounds, once.
Formulas: LoRA (Hu et al. 2021), DoRA (Liu et al. 2024), AdaLoRA (Zhang et al. 2023).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from handlers.merge.plan.operations import Bias, Copy, Experts, LowRank, Operation, Rows, Sum

Read = Callable[[str], torch.Tensor]
"""Gives a tensor of the adapter, in fp32, by its key."""
CACHED = 4
"""Tensors of the adapter that are kept in memory for the next tensor of the base: separate experts share the same factors."""
Fill = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Called with the number of a first row, with rows of the base from it on, and with memory (fp32) of the same shape."""


@dataclass(frozen=True)
class Prepared:
    """An operation with its factors in memory."""

    fill: Fill
    """Writes the merged values of the rows into the memory."""
    scan: Fill | None = None
    """Receives all rows in a first pass, of operations with `twice`; the memory is scratch."""


FUSED_RANK = 128
"""Up to this rank the math libraries sum over the rank in one pass, so that delta and base may be added in the same operation."""


@functools.lru_cache(maxsize=4096)
def _fuses(rows: int, rank: int, columns: int) -> bool:
    """Return whether W + B·A gives the same bits in one operation as in two: for some shapes the order of the sum differs.

    The order depends on the shapes and the processor, not on the values, so that it is tested once for each shape.
    """
    generator = torch.Generator().manual_seed(rows * 31 + columns)
    b, a = (torch.randn(*shape, generator=generator) for shape in ((rows, rank), (rank, columns)))
    w = torch.mm(b.flip(0), a.flip(1))
    return torch.equal(torch.addmm(w, b, a), torch.mm(b, a).add_(w))


class _LowRank:
    """LowRank with its factors."""

    def __init__(self, operation: LowRank, read: Read) -> None:
        a, b = (factor.reshape(factor.shape[0], -1) for factor in (read(operation.a), read(operation.b)))
        if operation.middle is not None:
            a = a * read(operation.middle)
        # A power of two scales without rounding, so it may as well be applied once to the small factor.
        exact = math.frexp(operation.scale)[0] == 0.5
        self._a, self._b, self._factor = (a, b * operation.scale, 1.0) if exact else (a, b, operation.scale)
        self._operation = operation
        self._magnitude = None if operation.magnitude is None else read(operation.magnitude).reshape(-1)
        self._squares = torch.zeros(b.shape[0] if operation.twice else 0, dtype=torch.float64)
        self._columns: torch.Tensor | None = None
        plain = not operation.transposed and self._factor == 1.0 and operation.divisor == 1.0 and not operation.rounded
        self._fused = plain and a.shape[0] <= FUSED_RANK

    def _add(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        rows = slice(first, first + weights.shape[0])
        if self._fused and _fuses(weights.shape[0], *self._a.shape):
            torch.addmm(out.copy_(weights), self._b[rows], self._a, out=out)
            return
        if self._operation.transposed:
            out.copy_((self._b @ self._a[:, rows]).T)
        else:
            torch.mm(self._b[rows], self._a, out=out)
        if self._factor != 1.0:
            out.mul_(self._factor)
        if self._operation.divisor != 1.0:
            out.div_(self._operation.divisor)
        if self._operation.rounded:
            out.copy_(out.to(weights.dtype))
        out.add_(weights)

    def scan(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        self._add(first, weights, out)
        self._squares += out.double().square_().sum(0)

    def fill(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        self._add(first, weights, out)
        if self._magnitude is None:
            return
        if self._operation.transposed:
            if self._columns is None:
                self._columns = self._magnitude / self._squares.sqrt_().float()
            out.mul_(self._columns)
        else:
            rows = slice(first, first + weights.shape[0])
            out.mul_((self._magnitude[rows] / torch.linalg.norm(out, dim=1))[:, None])


class _Experts:
    """Experts with its factors."""

    def __init__(self, operation: Experts, a: torch.Tensor, b: torch.Tensor) -> None:
        self._operation = operation
        self._a = a.reshape(operation.experts, -1, a.shape[-1])
        self._b = b.reshape(b.shape[0], -1, operation.experts)
        self._current: tuple[int, torch.Tensor, torch.Tensor] | None = None

    def _pair(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factors of one expert: rows of its tensor × rank, rank × columns."""
        if self._current is None or self._current[0] != expert:
            left, right = self._b[:, :, expert].contiguous(), self._a[expert]
            if self._operation.transposed:
                left, right = right.T.contiguous(), left.T.contiguous()
            self._current = (expert, left, right)
        return self._current[1], self._current[2]

    def fill(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        operation, done = self._operation, 0
        columns = (self._b.shape[0] if operation.transposed else self._a.shape[-1]) or 1
        # Rows of the stacked tensor may be whole experts: each is then treated as a matrix.
        first *= weights.shape[1] // columns
        weights, out = weights.view(-1, columns), out.view(-1, columns)
        while done < weights.shape[0]:
            expert, row = divmod(first + done, operation.rows) if operation.expert is None else (operation.expert, first + done)
            count = min(weights.shape[0] - done, operation.rows - row)
            left, right = self._pair(expert)
            torch.mm(left[operation.offset + row : operation.offset + row + count], right, out=out[done : done + count])
            done += count
        out.mul_(operation.scale).add_(weights)


def _copy(first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(weights)


def _adding(delta: torch.Tensor) -> Fill:
    """Return what adds a value to each row."""

    def fill(first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(weights)
        out.view(-1).add_(delta[first : first + weights.shape[0]])

    return fill


def _replacing(values: torch.Tensor, indices: torch.Tensor) -> Fill:
    """Return what puts `values` into the place of the rows with these numbers."""

    def fill(first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(weights)
        here = (indices >= first) & (indices < first + weights.shape[0])
        out[indices[here] - first] = values[here]

    return fill


def _summing(parts: Sequence[Fill]) -> Fill:
    """Return what does one part after the other, without rounding in between."""

    def fill(first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        parts[0](first, weights, out)
        for part in parts[1:]:
            other = torch.empty_like(out)
            part(first, out, other)
            out.copy_(other)

    return fill


def prepare(operation: Operation, read: Read) -> Prepared:
    """Read the factors of an operation. Raises TypeError for one that has no arithmetic here."""
    match operation:
        case LowRank():
            low_rank = _LowRank(operation, read)
            return Prepared(low_rank.fill, low_rank.scan if operation.twice else None)
        case Experts():
            return Prepared(_Experts(operation, read(operation.a), read(operation.b)).fill)
        case Bias():
            return Prepared(_adding(read(operation.key) * operation.scale))
        case Rows():
            return Prepared(_replacing(read(operation.key), torch.tensor(operation.indices)))
        case Sum():
            return Prepared(_summing([prepare(part, read).fill for part in operation.parts]))
        case Copy():
            return Prepared(_copy)
    raise TypeError(f"{type(operation).__name__} has no arithmetic")
