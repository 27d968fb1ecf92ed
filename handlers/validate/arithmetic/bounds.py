"""Confidence bounds of what an artifact is judged by: how far the figures of all texts like these may be from those of the texts read.

Called by `handlers.validate.deciding`. Pure numpy. A figure is given text by text as (sum, weight), in the order in which the texts were
read; what is drawn are texts, since the positions of a text are not independent. Each bound is one-sided and holds with the probability
1 - error.

- The standard error is the jackknife's over whole texts, and Student's t has n' - 1 degrees of freedom, n' = (Σw)² / Σw²
  (`daemon.contract.advice.paired` names the sources).
- Divergences and shares are never negative, and skewed: t is taken on the scale of the logarithm (delta method; Wolter, Introduction to
  Variance Estimation, 2007, section 6.4), which makes the upper bound wider and the lower one narrower.
- No standard error knows of texts that were not met. Of texts that make up a share q of all, n' texts hold none with the probability
  (1 - q)^n'. So a share q = 1 - error^(1/n') is taken to be UNSEEN times as far off as the worst text that was read. For a bound to hold
  for whatever texts there would have to be a largest value (Bahadur and Savage, Annals of Mathematical Statistics 27, 1956); the tests
  say for which it holds.
- Of a share that was not seen once, as of an error beyond its limit, N positions count as N / (1 + (m - 1) WITHIN) independent ones, with
  m as those of a text (Kish, Survey Sampling, 1965, section 5.4).

The error of all looks together is what was asked for: the first look may spend a half of it, each further one a half of what is left, and
the last one the rest (alpha spending: Lan and DeMets, Biometrika 70, 1983). Their sum bounds it however the looks depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from daemon.contract.advice.paired import student

Texts = Sequence[tuple[float, float]]
"""(sum, weight) of each text; a weight of 0 says nothing."""
ERROR = 0.01
"""Of a bound, over all looks: how often it may be wrong."""
UNSEEN = 3.0
"""How many times farther off than the worst text that was read others may be. Chosen by simulation (tests/validate/test_bounds.py): with 2,
of texts of which one in ten is ten times as bad as the others 12 % of the upper bounds are too low."""
WITHIN = 0.5
"""Correlation that the positions of a text are taken to have where nothing was seen at any of them."""
_FAR = 600.0
"""Largest exponent: exp of it is a number."""


def looks(first: int, most: int) -> tuple[int, ...]:
    """Give the numbers of texts at which is looked: `first`, then doubled, up to `most`."""
    numbers = [first]
    while numbers[-1] < most:
        numbers.append(min(2 * numbers[-1], most))
    return tuple(numbers)


def spent(error: float, look: int, count: int) -> float:
    """Give what of `error` the look may spend, the first being 0, of `count` that there may be."""
    return float(error / 2 ** min(look + 1, count - 1))


class Mean:
    """Σ sum / Σ weight over texts, with its bounds; None where too few texts weigh anything."""

    def __init__(self, texts: Texts) -> None:
        sums, weights = np.array([text for text in texts if text[1] > 0], dtype=np.float64).reshape(-1, 2).T
        self._weights, self.value = weights, float(sums.sum() / weights.sum()) if len(weights) else math.nan
        self.texts = len(weights)
        self._counted = float(weights.sum() ** 2 / np.square(weights).sum()) if len(weights) else 0.0
        self._freedom = math.floor(self._counted - 1 + 1e-9)
        if self._freedom < 1 or not np.isfinite(sums).all():
            self._freedom = 0
            return
        count, without = len(weights), (sums.sum() - sums) / (weights.sum() - weights)
        self._error = math.sqrt((count - 1) / count * float(np.square(without - without.mean()).sum()))
        moved = (sums - self.value * weights) / weights.mean()
        self._worst = float(moved.max()), float(-moved.min())

    def highest(self, error: float, *, positive: bool = False) -> float | None:
        """Give the upper bound. `positive`: no sum can be below 0."""
        if not self._freedom:
            return None
        far = student(self._freedom, 2 * error) * self._error
        if not positive:
            return self._with_unseen(self.value + far, self.value + UNSEEN * self._worst[0], error)
        near = self.value * math.exp(min(far / self.value, _FAR)) if self.value > 0 else 0.0
        return self._with_unseen(near, UNSEEN * (self.value + self._worst[0]), error)

    def lowest(self, error: float, *, positive: bool = False) -> float | None:
        """Give the lower bound. `positive`: no sum can be below 0, and those of texts that were not met neither."""
        if not self._freedom:
            return None
        far = student(self._freedom, 2 * error) * self._error
        if positive:
            return self.value * math.exp(-min(far / self.value, _FAR)) if self.value > 0 else 0.0
        return -self._with_unseen(far - self.value, UNSEEN * self._worst[1] - self.value, error)

    def highest_share(self, error: float) -> float | None:
        """Give the upper bound of a share, which may be 0 of the texts that were read."""
        high = self.highest(error, positive=True)
        return None if high is None else min(1.0, max(high, self._never(error)))

    def _with_unseen(self, near: float, far: float, error: float) -> float:
        """Give the bound `near` of texts like those that were read, with a share of others, `far` off, that may have been missed."""
        share = float(1 - error ** (1 / self._counted))
        return (1 - share) * near + share * max(near, far)

    def _never(self, error: float) -> float:
        positions = float(self._weights.sum())
        each = float(np.square(self._weights).sum()) / positions
        return float(1 - error ** (max(1.0, 1 + (each - 1) * WITHIN) / positions))


def never(weights: Sequence[float], error: float) -> float | None:
    """Give the largest share of positions at which something may be that was at none of these; `weights`: those of each text."""
    return Mean([(0.0, weight) for weight in weights]).highest_share(error)
