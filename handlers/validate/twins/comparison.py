"""How far outputs over the same tokens are apart, row by row, and whether the difference is a rounding's. Pure numpy.

Used by the comparison with the twin. The unit is the standard deviation of the twin's own outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from handlers.validate.twins.messages import Rounding

REGIONS = 16
"""Parts of a vocabulary, in the order of its tokens, whose differences should have nothing in common."""


@dataclass(frozen=True)
class Apart:
    """The difference of two models over some texts."""

    error: float
    """Largest |Δ|."""
    first: int
    """The first row in which it is at least half of that."""
    text: int
    """Number of the text in which the largest is."""
    way: str = ""


def apart(wanted: Sequence[np.ndarray], rows: Sequence[np.ndarray], unit: float, way: str = "") -> Apart:
    """Of rows (P, V) for each text. Rows of another number of outputs, or that are not finite, are infinitely far."""
    worst = Apart(0.0, 0, 0, way)
    for number, (mine, theirs) in enumerate(zip(wanted, rows, strict=True)):
        if mine.shape != theirs.shape or not np.isfinite(theirs).all():
            return Apart(float("inf"), 0, number, way)
        errors = np.abs(mine - theirs).max(axis=1) / unit
        if errors.max() > worst.error:
            worst = Apart(float(errors.max()), int(np.argmax(errors >= errors.max() / 2)), number, way)
    return worst


def rounding(wanted: Sequence[np.ndarray], rows: Sequence[np.ndarray]) -> Rounding:
    """Of rows (P, V) for each text, whose outputs may differ in number from text to text."""
    power = product = away = 0.0
    count = values = 0
    shifts = list[list[float]]()
    for mine, theirs in zip(wanted, rows, strict=True):
        mine, theirs = (rows.astype(np.float64) for rows in (mine, theirs))
        if mine.shape[1] > 1:
            mine, theirs = (rows - rows.mean(axis=1, keepdims=True) for rows in (mine, theirs))
        difference = theirs - mine
        power, product, away = power + (mine**2).sum(), product + (mine * theirs).sum(), away + (difference**2).sum()
        count, values = count + len(mine), values + mine.size
        parts = np.array_split(difference, min(REGIONS, mine.shape[1]), axis=1)
        shifts.append([float(part.mean(axis=1).sum()) for part in parts])
    power = float(power) or 1e-30
    same = [row for row in shifts if len(row) == len(shifts[0])]
    shift = max(abs(sum(column)) for column in zip(*same, strict=True)) / count / float(np.sqrt(power / values))
    return Rounding(
        share=float(np.sqrt(away / power)),
        slope=float(product / power),
        shift=float(shift),
        rows=count,
        outputs=min(REGIONS, values // count - 1),
    )


def spread(rows: Sequence[np.ndarray]) -> float:
    """Give the standard deviation of outputs, at least 5 % of their root mean square."""
    outputs = np.concatenate([row.reshape(-1) for row in rows]).astype(np.float64)
    return max(float(outputs.std()), 0.05 * float(np.sqrt((outputs**2).mean()))) or 1.0
