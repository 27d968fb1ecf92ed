"""Weights that an artifact stores in fewer bits, as the comparison with the twin sees them, whatever file they lie in. numpy alone.

`Stored` is what a form gives; `Scaled` is one for integers with scales and zero points, and for halves. A matrix has the form (outputs,
inputs), a table (rows, columns).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

Use = Literal["product", "table"]
SLACK = 0.51
"""Share of a step that a weight may be away from its stored number, where that is the nearest one."""
CUT = 2.5
"""Largest distance, in steps, of a weight that is stored as the smallest or the largest number."""


class UnreadableError(Exception):
    """Stored numbers whose meaning is not known here, as a clause."""


@dataclass(frozen=True)
class Part:
    """Some rows of a stored weight."""

    values: np.ndarray
    """fp32 (R, C), as they are computed with."""
    steps: np.ndarray
    """(R, C): the distance to the next number that could be stored."""
    inside: np.ndarray
    """(R, C): it is not the smallest or the largest number that can be stored."""
    below: np.ndarray | None = None
    """(R, C): how far the weight may be below its stored number; None for SLACK steps inside, and CUT elsewhere."""
    above: np.ndarray | None = None
    """The same above it."""
    rare: float = 0.0
    """Share of a row's weights that may be farther away."""
    finest: np.ndarray | None = None
    """(R, C): the finest steps that a block can be stored in, where its scale is itself rounded; None for any."""


class Stored(Protocol):
    """One weight of an artifact."""

    @property
    def name(self) -> str:
        """Of the tensor with the numbers."""

    @property
    def use(self) -> Use:
        """What reads it."""

    @property
    def role(self) -> str:
        """Of the graph that it lies in, see `handlers.graphs.graphset`; "" where there is one."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def block(self) -> int:
        """Columns of a block with a scale of its own; 0 where there is one."""

    @property
    def levels(self) -> int:
        """Numbers of one sign that its codes can tell apart; 0 where steps don't go by the numbers of a block."""

    def part(self, rows: slice | np.ndarray) -> Part:
        """Give what some rows stand for."""


@dataclass(frozen=True)
class Scaled:
    """Integers with scales and zero points, or halves."""

    name: str
    use: Use
    codes: np.ndarray
    """(R, C) integers or halves; packed bytes (R, n) where `bits` is below 8."""
    columns: int
    scales: np.ndarray | None = None
    """(R or 1, B), each for a block of columns; None of halves."""
    zeros: np.ndarray | None = None
    """Of the same form; None for 0."""
    block: int = 0
    bits: int = 8
    range: tuple[int, int] = (0, 255)
    """The smallest and the largest code."""
    role: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.columns

    @property
    def levels(self) -> int:
        if self.scales is None or len(self.scales) == 1:
            return 0  # halves have no steps of their own; one step for all rows goes by the largest of them
        return (self.range[1] - self.range[0]) // 2

    def part(self, rows: slice | np.ndarray) -> Part:
        """See `Stored.part`."""
        if self.scales is None:
            values = self.codes[rows].astype(np.float32)
            steps = np.spacing(np.abs(self.codes[rows])).astype(np.float32)
            return Part(values, steps, np.ones(values.shape, bool))
        codes = unpacked(self.codes[rows], self.bits)[:, : self.columns].astype(np.float32)
        steps = self._wide(self.scales, rows)
        zeros = 0.0 if self.zeros is None else self._wide(self.zeros, rows)
        return Part((codes - zeros) * steps, np.abs(steps), (codes > self.range[0]) & (codes < self.range[1]))

    def _wide(self, of_blocks: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        """Give (R, C) of one number for each block."""
        chosen = (of_blocks if len(of_blocks) == 1 else of_blocks[rows]).astype(np.float32)
        wide = np.repeat(chosen, self.block, axis=1)[:, : self.columns] if self.block else chosen
        count = len(self.codes[rows]) if len(of_blocks) == 1 else len(wide)
        return np.broadcast_to(wide, (count, self.columns))


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Give the numbers of `bits` bits in rows of bytes, the lowest bits first."""
    if bits == 8:
        return packed
    mask = (1 << bits) - 1
    parts = [(packed >> shift) & mask for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(len(packed), -1)
