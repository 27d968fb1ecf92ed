"""Whether stored weights are what rounding makes of the merged ones, in every row and block: one bad row does not show in a matrix's mean.

Used by the comparison with the twin. Whoever chose scale and zero point, and however: the number that is stored is the nearest one, unless
it is the smallest or the largest of all. That holds for rounding to nearest, for searched scales (k-quant) and for searched zero points
(hqq). And no block is rounded in steps that are much coarser than its own numbers ask for. numpy alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from handlers.validate.twins.weights import CUT, SLACK, Part, Stored

ELEMENTS = 1 << 20
"""Elements that are compared at once."""
COARSE = 2.3
"""Largest step, over the step that brings a block's largest magnitude to the last of all numbers of one sign: the whole range of a block
with zero points takes up to twice the first, and int8 weights whose pairs have to fit 16 bits up to twice too."""
_TINY = 1.5e-3
"""Of the matrix's largest magnitude: a block below it may be stored in any steps, as hqq has a smallest one of 0.00005."""


@dataclass(frozen=True)
class Misrounded:
    """A weight that rounding does not explain."""

    row: int
    """The worst row."""
    rows: int
    """How many are as bad."""
    share: float
    """Of the worst row's weights that are too far away, or 0 where its steps are too coarse."""
    steps: float
    """How far the worst weight is, in steps, or how much coarser the steps are."""


def misrounded(weight: Stored, source: np.ndarray, first: int = 0) -> Misrounded | None:
    """Give what of a stored weight's rows from `first` on is not their source (R, C) rounded; None where all is."""
    largest = float(np.abs(source).max(initial=0))
    worst: Misrounded | None = None
    bad = 0
    for start, part, wanted in _parts(weight, source, first):
        above = wanted - part.values
        away, steps = np.abs(above), np.maximum(part.steps, 1e-30)
        usual = np.where(part.inside, SLACK, CUT) * part.steps
        allowed = np.where(above > 0, usual if part.above is None else part.above, usual if part.below is None else part.below)
        far = away > allowed + 2e-6 * np.abs(wanted) + 1e-7 * largest
        shares = far.mean(axis=1)
        shares[shares <= part.rare] = 0.0
        coarse = _coarseness(weight, part, wanted, away, largest)
        rows = (shares > 0) | (coarse > COARSE)
        bad += int(rows.sum())
        if not rows.any():
            continue
        row = int(np.argmax(np.where(shares > 0, 1 + shares, coarse / 1e6)))
        distance = float((away[row] / steps[row])[far[row]].max()) if shares[row] > 0 else float(coarse[row])
        if worst is None or float(shares[row]) > worst.share:
            worst = Misrounded(start + row, 0, float(shares[row]), min(distance, 1e6))
    return None if worst is None else Misrounded(worst.row, bad, worst.share, worst.steps)


def _parts(weight: Stored, source: np.ndarray, first: int) -> Iterator[tuple[int, Part, np.ndarray]]:
    rows = max(1, ELEMENTS // max(1, weight.shape[1]))
    for start in range(0, len(source), rows):
        end = min(len(source), start + rows)
        yield first + start, weight.part(slice(first + start, first + end)), source[start:end].astype(np.float32)


def _coarseness(weight: Stored, part: Part, wanted: np.ndarray, away: np.ndarray, largest: float) -> np.ndarray:
    """Of each row, its coarsest block's step over the one that the block's own numbers ask for, where that costs it anything."""
    levels = weight.levels
    if not levels:
        return np.zeros(len(wanted), np.float32)
    block = weight.block or weight.shape[1]
    sizes, errors = (
        np.pad(np.abs(matrix), ((0, 0), (0, -weight.shape[1] % block))).reshape(len(matrix), -1, block).max(axis=2)
        for matrix in (wanted, away)
    )
    due = np.maximum(sizes, _TINY * largest + 1e-30) / levels
    if part.finest is not None:
        due = np.maximum(due, part.finest[:, ::block])
    counts = (sizes > _TINY * largest) & (errors > COARSE / 2 * due)
    coarsest: np.ndarray = np.where(counts, np.abs(part.steps[:, ::block]) / due, 0).max(axis=1)
    return coarsest
