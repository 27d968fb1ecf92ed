"""Whether a difference grows over a sequence. What does so comes from positions or from the cache, rounding does not. Pure numpy.

Called by `examination` with the mean |Δ| of each position of each prompt. Compared are the last and the first third of each prompt's
positions, as the mean over prompts of the ratio's logarithm, so that one odd prompt does not decide it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from handlers.validate.arithmetic import intervals

LEAST = 9
"""Positions below which a prompt is too short to have thirds."""
MARGIN = 1.5
"""A difference is said to grow where the whole interval of the ratio is above it. Sound artifacts have 0.5 to 1.4; one with 4-bit weights
had 1.7, with an interval from 1.26."""


def of(curves: Sequence[np.ndarray]) -> tuple[float, intervals.Interval | None] | None:
    """Give (ratio of late to early, its 95 % interval over prompts) of curves (P,); None where none is long enough or nothing differs."""
    logs = [math.log(ratio) for curve in curves if (ratio := _ratio(curve)) is not None]
    if not logs:
        return None
    interval = intervals.of_ratio(logs, [1.0] * len(logs))
    return math.exp(sum(logs) / len(logs)), interval and (math.exp(interval[0]), math.exp(interval[1]))


def _ratio(curve: np.ndarray) -> float | None:
    third = len(curve) // 3
    if len(curve) < LEAST or not np.isfinite(curve).all():
        return None
    early, late = float(np.median(curve[:third])), float(np.median(curve[-third:]))
    floor = 1e-3 * float(curve.max())
    return max(late, floor) / max(early, floor) if floor > 0 else None
