"""Whether the errors of a sequence are of another size from some position on. Pure numpy.

Called by `measuring` with the mean |Δ| of each position that was compared of a long text. Rounding makes errors that differ from
position to position, and that may grow slowly. A position that is counted wrongly, an entry of the cache that is lost, a mask that ends:
what depends on the length makes a step, behind which nearly all errors are larger than nearly all before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BEFORE, BEHIND = 6, 4
"""Fewest positions on each side of a step."""
_HIGH, _LOW = 0.9, 0.25
"""Quantile of the errors before a step that it is measured from, and of those behind it that it is measured to."""


@dataclass(frozen=True)
class Step:
    """Where errors become larger."""

    place: int
    """Index of the first of the larger errors."""
    ratio: float
    """The smallest quarter of the errors from there on over the largest tenth of those before it."""
    before: float
    """Median of the errors before it."""
    behind: float
    """Median of those from there on."""


def largest_step(errors: Sequence[float] | np.ndarray, floor: float) -> Step | None:
    """Give the clearest step of the errors (P,), of which none counts as smaller than `floor`; None where there are too few."""
    values = np.maximum(np.asarray(errors, np.float64), floor)
    steps = [_step(values, place) for place in range(BEFORE, len(values) - BEHIND + 1)]
    return max(steps, key=lambda step: step.ratio, default=None)


def _step(values: np.ndarray, place: int) -> Step:
    before, behind = values[:place], values[place:]
    ratio = float(np.quantile(behind, _LOW) / np.quantile(before, _HIGH))
    return Step(place, ratio, float(np.median(before)), float(np.median(behind)))
