"""How far an artifact's logits are from a reference's: agreement, divergence, error. Pure numpy.

Called by the validate stage. Figures are pooled over all positions of all prompts; errors come both in logits and in
units of the standard deviation of the reference's logits, which makes them comparable between models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from daemon.contract.jobs.figures import Figures, Likeness
from handlers.validate.engines.task_profile import Head

_ROWS = 16
SMALLEST_SPREAD = 0.05
"""Of numbers that a model gives, the smallest deviation they are measured in, as a share of their root mean square: where all texts
score alike, rounding would look like an error."""


def label_borders(thresholds: Sequence[float] | None) -> np.ndarray:
    """The logit from which on a text has a label, for each threshold (a probability); 0 for all without thresholds."""
    shares = np.clip(np.asarray(0.5 if thresholds is None else thresholds, np.float64), 1e-12, 1 - 1e-12)
    borders: np.ndarray = np.log(shares) - np.log1p(-shares)
    return borders


class PromptLikeness(Figures):
    """How near a model's outputs are to a reference's, on one prompt."""

    positions: int
    """Rows that were compared."""
    agreement: float | None
    """Share of them with the same choice; None for a task without one."""
    kl: float | None
    """Mean divergence from the reference, in nats a position; None for a task without one."""
    error_max_absolute: float
    """Largest |Δ| of an output."""
    worst_position: int
    """Row in which that is."""


class Comparison:
    """Accumulates over prompts; holds sums, never rows of outputs. What is compared, and how, depends on the head:

    - choice: agreement is the share of rows with the same largest value, kl the divergence of the softmax distributions;
    - labels: the share of rows whose every label is on the same side of its threshold (of 0 without thresholds), and the sum of the
      labels' Bernoulli divergences;
    - value: errors alone;
    - vector: the share of rows that are closer (by cosine) to their own counterpart than to the prompt's other reference vectors, or,
      where a prompt has one vector, to those of all prompts; no kl, but the smallest and the mean cosine of each with its counterpart.
    """

    def __init__(self, head: Head = "choice", thresholds: Sequence[float] | None = None) -> None:
        """`thresholds`: of labels, the probability from which on a row has each."""
        self.positions = 0
        self._head = head
        self._borders = label_borders(thresholds)
        self._agreeing = 0
        self._kl = 0.0
        self._absolute = 0.0
        self._values = 0
        self._error_max = 0.0
        self._cosines: list[float] = []
        self._single: list[tuple[np.ndarray, np.ndarray]] = []
        """Reference and other, both (1, V), of prompts that have one vector."""

    def add(self, reference: np.ndarray, other: np.ndarray) -> PromptLikeness:
        """Compare rows (P, V) of one prompt; give that prompt's summary.

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
            if self._head in _DIVERGENCES:
                divergences += _DIVERGENCES[self._head](mine, theirs).tolist()
            agreeing += self._agreeing_rows(reference, start, mine, theirs)
        self.positions += len(reference)
        self._agreeing += agreeing
        self._kl += sum(divergences)
        self._error_max = max(self._error_max, *errors)
        return PromptLikeness(
            positions=len(reference),
            agreement=self._share(agreeing, len(reference)),
            kl=self._divergence(sum(divergences), len(reference)),
            error_max_absolute=max(errors),
            worst_position=int(np.argmax(errors)),
        )

    def _agreeing_rows(self, reference: np.ndarray, start: int, mine: np.ndarray, theirs: np.ndarray) -> int:
        if self._head == "choice":
            return int((mine.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        if self._head == "labels":
            return int(((mine >= self._borders) == (theirs >= self._borders)).all(axis=1).sum())
        if self._head == "value":
            return 0
        if len(reference) == 1:
            self._single.append((mine, theirs))
        likeness = _unit(theirs) @ _unit(reference.astype(np.float64)).T
        own = likeness[np.arange(len(theirs)), start + np.arange(len(theirs))]
        self._cosines += own.tolist()
        # Equal tokens may have equal vectors: which of them is the nearest one is then left to rounding.
        return int((own >= likeness.max(axis=1) - 1e-9).sum())

    def _share(self, agreeing: int, positions: int) -> float | None:
        return None if self._head == "value" else agreeing / positions

    def _divergence(self, total: float, positions: int) -> float | None:
        return total / positions if self._head in _DIVERGENCES else None

    def figures(self, logit_std: float) -> Likeness:
        """The pooled figures; agreement and kl are None where the head has none, and only vectors have cosines."""
        if len(self._single) > 1:
            mine, theirs = (np.concatenate([pair[side] for pair in self._single]) for side in (0, 1))
            likeness = _unit(theirs) @ _unit(mine).T
            self._agreeing = int((likeness.diagonal() >= likeness.max(axis=1) - 1e-9).sum())
        cosines = {"cosine_min": min(self._cosines), "cosine_mean": sum(self._cosines) / len(self._cosines)} if self._cosines else {}
        return Likeness(
            agreement=self._share(self._agreeing, self.positions),
            kl=self._divergence(self._kl, self.positions),
            error_max=in_deviations(self._error_max, logit_std),
            error_max_absolute=self._error_max,
            error_mean_absolute=self._absolute / self._values,
            logit_std=logit_std,
            positions=self.positions,
            **cosines,
        )


def in_deviations(value: float, deviation: float) -> float:
    """A difference of logits in units of a standard deviation; infinite where the deviation is 0 and the difference isn't."""
    return value / deviation if deviation > 0 else (0.0 if value == 0 else math.inf)


def _divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference ‖ other) in nats for each row of logits (P, V) float64."""
    mine, theirs = _log_softmax(reference), _log_softmax(other)
    divergence: np.ndarray = np.maximum((np.exp(mine) * (mine - theirs)).sum(axis=1), 0.0)
    return divergence


def _label_divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Sum over the labels of KL(reference ‖ other) in nats, each label a coin of its own, for each row of logits (P, V) float64."""
    chance = 1 / (1 + np.exp(-reference))
    yes, no = _log_sigmoid(reference) - _log_sigmoid(other), _log_sigmoid(-reference) - _log_sigmoid(-other)
    divergence: np.ndarray = np.maximum((chance * yes + (1 - chance) * no).sum(axis=1), 0.0)
    return divergence


def _log_sigmoid(logits: np.ndarray) -> np.ndarray:
    value: np.ndarray = -np.logaddexp(0.0, -logits)
    return value


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    return unit


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalized: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalized


_DIVERGENCES = {"choice": _divergence, "labels": _label_divergence}


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

    def unit(self, head: Head) -> float:
        """What errors are measured in: the standard deviation, of numbers at least SMALLEST_SPREAD of their root mean square."""
        if head != "value" or not self._count:
            return self.std
        return max(self.std, SMALLEST_SPREAD * float(np.sqrt(self._squares / self._count)))
