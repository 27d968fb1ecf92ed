"""How far an artifact's logits are from a reference's: agreement, divergence, error. Pure numpy.

Called by the validate stage. Figures are pooled over all positions of all prompts; errors come both in logits and in
units of the standard deviation of the reference's logits, which makes them comparable between models.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_ROWS = 16


class Comparison:
    """Accumulates over prompts; holds sums, never logits."""

    def __init__(self) -> None:
        self.positions = 0
        self._agreeing = 0
        self._kl = 0.0
        self._absolute = 0.0
        self._values = 0
        self._error_max = 0.0

    def add(self, reference: np.ndarray, other: np.ndarray) -> dict[str, Any]:
        """Compare logits (P, V) of one prompt; give that prompt's summary.

        Raises ValueError when the shapes differ or `other` holds values that are not finite.
        """
        if reference.shape != other.shape:
            raise ValueError(f"its logits have the shape {other.shape}, the reference's {reference.shape}")
        errors, divergences, agreeing = [], [], 0
        for start in range(0, len(reference), _ROWS):
            mine = reference[start : start + _ROWS].astype(np.float64)
            theirs = other[start : start + _ROWS].astype(np.float64)
            if not np.isfinite(theirs).all():
                raise ValueError("its logits hold values that are not finite")
            difference = np.abs(mine - theirs)
            self._absolute += float(difference.sum())
            self._values += difference.size
            errors += difference.max(axis=1).tolist()
            divergences += _divergence(mine, theirs).tolist()
            agreeing += int((mine.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        self.positions += len(reference)
        self._agreeing += agreeing
        self._kl += sum(divergences)
        self._error_max = max(self._error_max, *errors)
        return {
            "positions": len(reference),
            "agreement": agreeing / len(reference),
            "kl": sum(divergences) / len(reference),
            "error_max_absolute": max(errors),
            "worst_position": int(np.argmax(errors)),
        }

    def figures(self, logit_std: float) -> dict[str, Any]:
        """The pooled figures under the names that reports read."""
        return {
            "agreement": self._agreeing / self.positions,
            "kl": self._kl / self.positions,
            "error_max": in_deviations(self._error_max, logit_std),
            "error_max_absolute": self._error_max,
            "error_mean_absolute": self._absolute / self._values,
            "logit_std": logit_std,
            "positions": self.positions,
        }


def in_deviations(value: float, deviation: float) -> float:
    """A difference of logits in units of a standard deviation; infinite where the deviation is 0 and the difference isn't."""
    return value / deviation if deviation > 0 else (0.0 if value == 0 else math.inf)


def _divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference ‖ other) in nats for each row of logits (P, V) float64."""
    mine, theirs = _log_softmax(reference), _log_softmax(other)
    divergence: np.ndarray = np.maximum((np.exp(mine) * (mine - theirs)).sum(axis=1), 0.0)
    return divergence


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalized: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalized


class Spread:
    """Standard deviation over all logits seen, by sums in float64."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, logits: np.ndarray) -> None:
        """Take in an array of any shape."""
        values = logits.astype(np.float64)
        self._count += values.size
        self._sum += float(values.sum())
        self._squares += float(np.square(values).sum())

    @property
    def std(self) -> float:
        """The standard deviation; 0.0 of nothing."""
        if not self._count:
            return 0.0
        mean = self._sum / self._count
        return float(np.sqrt(max(self._squares / self._count - mean * mean, 0.0)))
