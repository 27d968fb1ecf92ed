"""The arithmetic of a merge: how rows of a merged tensor are computed from the same rows of the base and the adapter's factors.

`prepare` is called by the streaming engine, one tensor at a time. All sums are fp32; the engine rounds, once.
Formulas: LoRA (Hu et al. 2021), DoRA (Liu et al. 2024), AdaLoRA (Zhang et al. 2023).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from handlers.merge.plan.operations import Bias, Copy, Experts, LowRank, Operation, Rows, Sum

Read = Callable[[str], torch.Tensor]
"""Gives a tensor of the adapter, in fp32, by its key."""
CACHED = 4
"""Tensors of the adapter that are kept in memory for the next tensor of the base: separate experts share the same factors."""


class Prepared:
    """An operation with its factors in memory."""

    def scan(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        """Receive rows of the base in a first pass, for operations with `twice`. `out` is scratch memory of the same shape."""

    def fill(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        """Write the merged values of the rows from `first` on into `out` (fp32), given those of the base."""
        raise NotImplementedError


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


class PreparedLowRank(Prepared):
    """LowRank with its factors."""

    def __init__(self, operation: LowRank, a: torch.Tensor, b: torch.Tensor, magnitude: torch.Tensor | None) -> None:
        # A power of two scales without rounding, so it may as well be applied once to the small factor.
        exact = math.frexp(operation.scale)[0] == 0.5
        self._a, self._b, self._factor = (a, b * operation.scale, 1.0) if exact else (a, b, operation.scale)
        self._operation, self._magnitude = operation, magnitude
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
        """As Prepared says."""
        self._add(first, weights, out)
        self._squares += out.double().square_().sum(0)

    def fill(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        """As Prepared says."""
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


class PreparedExperts(Prepared):
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
        """As Prepared says."""
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


class PreparedBias(Prepared):
    """Bias with its factors."""

    def __init__(self, delta: torch.Tensor) -> None:
        self._delta = delta

    def fill(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        """As Prepared says."""
        out.copy_(weights)
        out.view(-1).add_(self._delta[first : first + weights.shape[0]])


class PreparedRows(Prepared):
    """Rows with its factors."""

    def __init__(self, values: torch.Tensor, indices: tuple[int, ...]) -> None:
        self._values, self._indices = values, torch.tensor(indices)

    def fill(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        """As Prepared says."""
        out.copy_(weights)
        here = (self._indices >= first) & (self._indices < first + weights.shape[0])
        out[self._indices[here] - first] = self._values[here]


class PreparedSum(Prepared):
    """Sum with its factors."""

    def __init__(self, parts: list[Prepared]) -> None:
        self._parts = parts

    def fill(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        """As Prepared says."""
        self._parts[0].fill(first, weights, out)
        for part in self._parts[1:]:
            other = torch.empty_like(out)
            part.fill(first, out, other)
            out.copy_(other)


class PreparedCopy(Prepared):
    """Copy with its factors."""

    def fill(self, first: int, weights: torch.Tensor, out: torch.Tensor) -> None:
        """As Prepared says."""
        out.copy_(weights)


@functools.singledispatch
def prepare(operation: Operation, read: Read) -> Prepared:
    """Read the factors of an operation. Raises TypeError for one that has no arithmetic here."""
    raise TypeError(f"{type(operation).__name__} has no arithmetic")


@prepare.register
def _(operation: LowRank, read: Read) -> Prepared:
    a, b = (factor.reshape(factor.shape[0], -1) for factor in (read(operation.a), read(operation.b)))
    if operation.middle is not None:
        a = a * read(operation.middle)
    return PreparedLowRank(operation, a, b, None if operation.magnitude is None else read(operation.magnitude).reshape(-1))


@prepare.register
def _(operation: Experts, read: Read) -> Prepared:
    return PreparedExperts(operation, read(operation.a), read(operation.b))


@prepare.register
def _(operation: Bias, read: Read) -> Prepared:
    return PreparedBias(read(operation.key) * operation.scale)


@prepare.register
def _(operation: Rows, read: Read) -> Prepared:
    return PreparedRows(read(operation.key), operation.indices)


@prepare.register
def _(operation: Sum, read: Read) -> Prepared:
    return PreparedSum([prepare(part, read) for part in operation.parts])


@prepare.register
def _(operation: Copy, read: Read) -> Prepared:
    return PreparedCopy()
