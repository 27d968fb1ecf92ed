"""Tables of a few numbers that stand for many: k-means in one dimension, on sorted numbers.

Called by Core ML Tools for the rows of a matrix that share a table. Its own k-means takes scikit-learn, and minutes for a large model.
"""

from __future__ import annotations

import numpy as np

ENTRIES = 16
_ROUNDS = 40


def of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A table (16,) in the type of `values`, and for each of them the place of its nearest entry, flat, as uint8.

    Lloyd's algorithm, from quantiles on and from even steps on, whichever loses less: each entry becomes the mean of what is nearest to it,
    until nothing moves. In sorted numbers what is nearest to an entry lies between two places, and its sum is a difference of two sums.
    """
    flat = values.reshape(-1).astype(np.float64)
    ordered = np.sort(flat)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    quantiles = np.quantile(ordered, (np.arange(ENTRIES) + 0.5) / ENTRIES)
    candidates = [_settled(start, ordered, sums) for start in (quantiles, np.linspace(ordered[0], ordered[-1], ENTRIES))]
    table = max(candidates, key=lambda pair: pair[1])[0].astype(values.dtype)
    middle = (table[1:].astype(np.float64) + table[:-1].astype(np.float64)) / 2
    return table, np.searchsorted(middle, flat).astype(np.uint8)


def _settled(table: np.ndarray, ordered: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, float]:
    """Where the entries come to rest, and the sum of their squares over all numbers: the larger it is, the less is lost."""
    for _ in range(_ROUNDS):
        edges = np.concatenate([[0], np.searchsorted(ordered, (table[1:] + table[:-1]) / 2), [len(ordered)]])
        counts = np.diff(edges)
        moved = np.where(counts > 0, np.diff(sums[edges]) / np.maximum(counts, 1), table)
        if np.array_equal(moved, table):
            break
        table = moved
    return table, float((counts * np.square(moved)).sum())
