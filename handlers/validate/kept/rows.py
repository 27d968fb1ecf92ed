"""Outputs in 16 bits an entry: a row's smallest value, a step, and how many steps each entry lies above it. Pure numpy.

An entry is off by at most half a step, which is the row's range over 131,070: of logits that are 40 apart 0.0003, where a half-precision
number of 20 is off by up to 0.008. The largest entry of a row stays its only largest one, so that what is chosen there stays what it was.
"""

from __future__ import annotations

import numpy as np

STEPS = 65535


def packed(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Give the steps (P, V) uint16 of rows (P, V), and (P, 2) float64, smallest value and step of each; None where a value is not finite,
    or rows are none of numbers side by side."""
    if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
        return None
    values = rows.astype(np.float64)
    low = values.min(axis=1)
    step = (values.max(axis=1) - low) / STEPS
    steps = np.rint((values - low[:, None]) / np.where(step > 0, step, 1.0)[:, None]).astype(np.uint16)
    chosen = rows.argmax(axis=1)
    tied = steps == STEPS
    tied[np.arange(len(rows)), chosen] = False
    steps[tied] = STEPS - 1
    return steps, np.stack([low, step], axis=1)


def unpacked(steps: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Give the rows (P, V) float32. Raises ValueError for what `packed` does not give."""
    if steps.dtype != np.uint16 or steps.ndim != 2 or scale.shape != (len(steps), 2):
        raise ValueError("its outputs are not in the form in which they are kept")
    rows: np.ndarray = (scale[:, :1] + scale[:, 1:] * steps).astype(np.float32)
    return rows
