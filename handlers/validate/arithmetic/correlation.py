"""How far two models order, or scale, the same values alike: correlations of two series. Pure numpy."""

from __future__ import annotations

import numpy as np


def pearson(first: np.ndarray, second: np.ndarray) -> float | None:
    """Give Pearson's correlation of two series (N,); None where one is constant."""
    if not len(first) or first.min() == first.max() or second.min() == second.max():
        return None
    mine, theirs = (series - series.mean() for series in (first, second))
    length = float(np.sqrt((mine**2).sum() * (theirs**2).sum()))
    return float((mine * theirs).sum() / length) if length > 0 else None


def spearman(first: np.ndarray, second: np.ndarray) -> float | None:
    """Give Spearman's rank correlation of two series (N,); equal values share the mean of their ranks. None where one is constant."""
    return pearson(_ranks(first), _ranks(second))


def _ranks(series: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(series, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(counts) - (counts + 1) / 2)[places]
    return ranks
