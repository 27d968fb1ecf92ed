"""Differences of arrays and of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Give max |first − second|; infinity when either holds something that is not a number."""
    difference: Any = np.abs(first - second).max() if first.size else 0.0
    return float(difference) if np.isfinite(difference) else float("inf")


def row_differences(first: np.ndarray, second: np.ndarray) -> list[float]:
    """Give max |first − second| of each row (N, V); infinity where either holds something that is not a number."""
    return [largest_difference(*pair) for pair in zip(first, second, strict=True)]


def same_start(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Give how many elements both begin with: the place of the first difference, or the length of the shorter one."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (mine, theirs) in pairs if mine != theirs), min(len(first), len(second)))
