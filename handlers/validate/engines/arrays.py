"""Differences of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


def largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Give max |first − second|; infinity when either holds something that is not a number."""
    difference: Any = np.abs(first - second).max() if first.size else 0.0
    return float(difference) if np.isfinite(difference) else float("inf")


def row_differences(first: np.ndarray, second: np.ndarray) -> list[float]:
    """Give max |first − second| of each row (N, V); infinity where either holds something that is not a number."""
    return [largest_difference(*pair) for pair in zip(first, second, strict=True)]
