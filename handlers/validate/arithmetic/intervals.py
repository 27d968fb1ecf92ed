"""95 % intervals of figures that are ratios of sums over prompts, by the percentile bootstrap. Pure numpy.

Called by `comparison`, `fine_tuning` and `growth`. What is drawn again are whole prompts: the positions of one text are not independent, so
that intervals from positions would be too narrow. From a few prompts an interval is rough, and with two it is little more than both values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000
_SEED = 18
_ENDS = (2.5, 97.5)

Interval = tuple[float, float]


def drawn(sums: np.ndarray) -> np.ndarray:
    """Give sums (N, K) of N prompts, added up for RESAMPLES samples of N with replacement: (RESAMPLES, K). The same at every call."""
    count = len(sums)
    weights = np.random.default_rng(_SEED).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    totals: np.ndarray = weights.astype(np.float64) @ sums
    return totals


def middle(values: np.ndarray) -> Interval | None:
    """Give the 95 % in the middle; None where not all values are finite."""
    if not np.isfinite(values).all():
        return None
    low, high = np.percentile(values, _ENDS)
    return float(low), float(high)


def of_ratio(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Give the interval of sum(above) / sum(below), one value of each for each prompt; None from fewer than two prompts."""
    if len(above) < 2 or not np.isfinite(above).all():
        return None
    totals = drawn(np.stack([np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)], axis=1))
    totals = totals[totals[:, 1] > 0]
    return middle(totals[:, 0] / totals[:, 1]) if len(totals) else None
