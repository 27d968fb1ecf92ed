"""How far an artifact's logits are from a reference's: agreement, divergence, error, perplexity. Pure numpy.

Called by all stages that compare. Figures are pooled over all positions of all prompts, with intervals from the prompts' own sums; errors
come both in logits and in units of the standard deviation of the reference's logits, which makes them comparable between models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daemon.contract.advice import paired
from daemon.contract.jobs.figures import Figures, Likeness
from handlers.models.probabilities import divergence, log_softmax
from handlers.validate.arithmetic import distribution, intervals
from handlers.validate.arithmetic.correlation import spearman
from handlers.validate.arithmetic.distribution import Positions
from handlers.validate.engines.task_profile import Head

_ROWS, _VALUES = 16, 1 << 16
"""Rows that are compared at once, and values of them up to which there may be more rows: each step has its own cost."""
SMALLEST_SPREAD = 0.05
"""Of numbers that a model gives, the smallest deviation they are measured in, as a share of their root mean square: where all texts
score alike, rounding would look like an error."""


def label_borders(thresholds: Sequence[float] | None) -> np.ndarray:
    """Give the logit from which on a text has a label, for each threshold (a probability); 0 for all without thresholds."""
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


class NotFiniteError(ValueError):
    """An artifact's outputs hold NaN or infinity, as half precision gives where it overflows."""


@dataclass(frozen=True)
class Rows:
    """What `Comparison.add` found in the rows of one prompt."""

    summary: PromptLikeness
    divergences: np.ndarray
    """Divergence of each row (P,) in nats; of a head without one, empty."""
    means: np.ndarray
    """Mean |Δ| of each row (P,), in units of the outputs."""
    errors: np.ndarray
    """Largest |Δ| of each row (P,), in units of the outputs."""
    positions: Positions
    """What `distribution` makes its figures of."""


@dataclass
class _Sums:
    """Sums over one text, which may have been compared in pieces."""

    positions: int = 0
    agreeing: int = 0
    mistakable: float = 0.0
    """Of vectors: sum of what `_mistakable` gives."""
    kl: float = 0.0
    tokens: int = 0
    """Tokens of the text that have a probability."""
    surprise: float = 0.0
    """Their negative log-likelihood under the reference, in nats."""
    surprise_other: float = 0.0
    error: float = 0.0
    """Sum of the mean |Δ| of its rows."""
    largest: float = 0.0
    """Largest |Δ| of an output."""


class Comparison:
    """An accumulator over prompts; holds sums, never rows of outputs. What is compared, and how, depends on the head:

    - choice: agreement is the share of rows with the same largest value, kl the divergence of the softmax distributions;
    - labels: the share of rows whose every label is on the same side of its threshold (of 0 without thresholds), and the sum of the
      labels' Bernoulli divergences;
    - value: errors alone;
    - vector: the share of rows that are closer (by cosine) to their own counterpart than to the prompt's other reference vectors, or,
      where a prompt has one vector, to those of all prompts; no kl, but the smallest and the mean cosine of each with its counterpart, and
      how alike both models rank the similarities of the prompts' (mean) vectors.
    """

    def __init__(self, head: Head = "choice", thresholds: Sequence[float] | None = None) -> None:
        """`thresholds`: of labels, the probability from which on a row has each."""
        self.positions = 0
        self._head = head
        self._borders = label_borders(thresholds)
        self._absolute = 0.0
        self._values = 0
        self._error_max = 0.0
        self._texts: list[_Sums] = []
        self._cosines: list[float] = []
        self._vectors: list[tuple[np.ndarray, np.ndarray]] = []
        """Mean vector of each prompt (V,), the reference's and the other's."""
        self._single: list[_Sums] = []
        """Of the prompts that have one vector, in their order, the text that each belongs to."""

    def add(self, reference: np.ndarray, other: np.ndarray, following: Sequence[tuple[int, int]] = (), *, same_text: bool = False) -> Rows:
        """Compare rows (P, V) of one prompt.

        `following`: (row, token that the prompt has next) of each row whose next token is scored. `same_text`: it is a piece of the text
        that the prompt before it is of too. Raises ValueError when the shapes differ, NotFiniteError when `other`
        holds values that are not finite.
        """
        if reference.shape != other.shape:
            raise ValueError(f"its logits have the shape {other.shape}, the reference's {reference.shape}")
        if not (same_text and self._texts):
            self._texts.append(_Sums())
        text, errors, means, agreeing, parts = self._texts[-1], list[float](), list[float](), 0, list[Positions]()
        if self._head == "vector":
            self._keep_vectors(reference, other, text)
        many = max(_ROWS, _VALUES // reference.shape[1])
        for start in range(0, len(reference), many):
            mine = reference[start : start + many].astype(np.float64)
            theirs = other[start : start + many].astype(np.float64)
            if not np.isfinite(theirs).all():
                raise NotFiniteError("its logits hold values that are not finite")
            difference = np.abs(mine - theirs)
            self._values += difference.size
            errors += difference.max(axis=1).tolist()
            means += difference.mean(axis=1).tolist()
            if self._head == "vector":
                near, mistakable = self._near_rows(reference, start, theirs)
                agreeing += near
                text.mistakable += mistakable
            elif self._head == "choice":
                inside = [(row - start, token) for row, token in following if start <= row < start + len(mine)]
                parts.append(distribution.of_choices(mine, theirs, inside))
            elif self._head == "labels":
                parts.append(self._of_labels(mine, theirs))
        positions = distribution.joined(parts) if parts else self._of_numbers(reference, other, errors)
        divergences = positions.divergences.tolist()
        agreeing += int((positions.choices[:, 0] == positions.choices[:, 1]).sum())
        self.positions += len(reference)
        text.positions += len(reference)
        text.agreeing += agreeing
        text.kl += sum(divergences)
        text.tokens += len(positions.losses)
        text.surprise += float(positions.losses[:, 0].sum())
        text.surprise_other += float(positions.losses[:, 1].sum())
        text.error += sum(means)
        self._absolute += sum(means) * reference.shape[-1]
        self._error_max = max(self._error_max, *errors)
        text.largest = max(text.largest, *errors)
        summary = PromptLikeness(
            positions=len(reference),
            agreement=self._share(agreeing, len(reference)),
            kl=self._divergence(sum(divergences), len(reference)),
            error_max_absolute=max(errors),
        )
        return Rows(summary, positions.divergences, np.array(means), np.array(errors), positions)

    def _of_labels(self, mine: np.ndarray, theirs: np.ndarray) -> Positions:
        other = ((mine >= self._borders) != (theirs >= self._borders)).any(axis=1).astype(np.int64)
        choices = np.stack([np.zeros_like(other), other], axis=1)
        return Positions(divergences=_label_divergence(mine, theirs), backwards=_label_divergence(theirs, mine), choices=choices)

    def _of_numbers(self, reference: np.ndarray, other: np.ndarray, errors: list[float]) -> Positions:
        if self._head == "vector":
            return Positions(cosines=np.array(self._cosines[-len(reference) :]))
        single = reference.shape[1] == 1
        return Positions(errors=np.array(errors), values=np.hstack([reference, other]).astype(np.float64) if single else np.zeros((0, 2)))

    def _near_rows(self, reference: np.ndarray, start: int, theirs: np.ndarray) -> tuple[int, float]:
        """Count the vectors that are closer to their own counterpart than to any other; the sum of what `_mistakable` gives."""
        mine = _unit(reference.astype(np.float64))
        likeness, places = _unit(theirs) @ mine.T, start + np.arange(len(theirs))
        self._cosines += likeness[np.arange(len(theirs)), places].tolist()
        mistakable = _mistakable(likeness, places, mine)
        return int((mistakable < 1).sum()), float(mistakable.sum())

    def _keep_vectors(self, reference: np.ndarray, other: np.ndarray, text: _Sums) -> None:
        mine, theirs = reference.mean(axis=0, dtype=np.float64), other.mean(axis=0, dtype=np.float64)
        self._vectors.append((mine, theirs))
        if len(reference) == 1:
            self._single.append(text)

    def _share(self, agreeing: int, positions: int) -> float | None:
        return None if self._head == "value" else agreeing / positions

    def _divergence(self, total: float, positions: int) -> float | None:
        return total / positions if self._head in ("choice", "labels") else None

    @property
    def perplexity(self) -> float | None:
        """The reference's, over the tokens that were given as following; None where there were none."""
        tokens = sum(text.tokens for text in self._texts)
        return _exponential(sum(text.surprise for text in self._texts) / tokens) if tokens else None

    def figures(self, logit_std: float) -> Likeness:
        """Give the pooled figures; agreement and kl are None where the head has none, and only vectors have cosines."""
        texts = self._texts
        if self._one_vector_each():
            self._judge_among_prompts()
        figures = Likeness(
            agreement=self._share(sum(text.agreeing for text in texts), self.positions),
            kl=self._divergence(sum(text.kl for text in texts), self.positions),
            error_max=in_deviations(self._error_max, logit_std),
            error_max_absolute=self._error_max,
            error_mean_absolute=self._absolute / self._values,
            logit_std=logit_std,
            positions=self.positions,
            texts=len(texts),
        )
        if self._cosines:
            figures = figures.plus(cosine_min=min(self._cosines), cosine_mean=sum(self._cosines) / len(self._cosines))
        if (ranks := self._rank_correlation()) is not None:
            figures = figures.plus(rank_correlation=ranks)
        below = [text.positions for text in texts]
        if figures.agreement is not None:
            figures = figures.plus(agreement_interval=intervals.of_ratio([text.agreeing for text in texts], below))
        if figures.kl is not None:
            figures = figures.plus(kl_interval=intervals.of_ratio([text.kl for text in texts], below))
        return figures.plus(**self._perplexities()) if any(text.tokens for text in texts) else figures

    def by_text(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """Give the sums and weights of each text of which the artifact's figures are made; without those that are not finite."""
        texts, sums = self._texts, dict[str, list[tuple[float, float]]]()
        if any(text.tokens for text in texts):
            sums["perplexity"] = [(text.surprise_other, text.tokens) for text in texts]
        if self._head in ("choice", "labels"):
            sums["kl"] = [(text.kl, text.positions) for text in texts]
        else:
            sums["error"] = [(text.error, text.positions) for text in texts]
        return {name: rounded(rows) for name, rows in sums.items() if np.isfinite(rows).all()}

    def by_limit(self) -> dict[str, list[tuple[float, float]]]:
        """Give, by limit, the sum and weight of each text of which its figure is made, the reference taken off; of `error` the largest."""
        texts = self._texts
        if self._one_vector_each():
            self._judge_among_prompts()
        sums = {"error": [(text.largest, float(text.positions)) for text in texts]}
        if self._head != "value":
            sums["agreement"] = [(float(text.agreeing), float(text.positions)) for text in texts]
        if self._head == "vector":
            sums["mistakable"] = [(text.mistakable, float(text.positions)) for text in texts]
        if self._head in ("choice", "labels"):
            sums["kl"] = [(text.kl, float(text.positions)) for text in texts]
        if any(text.tokens for text in texts):
            sums["perplexity"] = [(text.surprise_other - text.surprise, float(text.tokens)) for text in texts]
        return sums

    def _one_vector_each(self) -> bool:
        return len(self._single) > 1 and len(self._single) == len(self._vectors)

    def _judge_among_prompts(self) -> None:
        """Of vectors of texts: whether each is closest to its own counterpart among those of all prompts."""
        mine, theirs = (_unit(np.stack([pair[side] for pair in self._vectors])) for side in (0, 1))
        mistakable = _mistakable(theirs @ mine.T, np.arange(len(mine)), mine)
        for text in self._texts:
            text.agreeing, text.mistakable = 0, 0.0
        for text, share in zip(self._single, mistakable.tolist(), strict=True):
            text.agreeing += int(share < 1)
            text.mistakable += share

    def _rank_correlation(self) -> float | None:
        """Give Spearman's correlation of the cosines of all pairs of prompts under both models; None from less than three."""
        if len(self._vectors) < 3:
            return None
        pairs = np.triu_indices(len(self._vectors), 1)
        mine, theirs = (_unit(np.stack([pair[side] for pair in self._vectors])) for side in (0, 1))
        return spearman((mine @ mine.T)[pairs], (theirs @ theirs.T)[pairs])

    def _perplexities(self) -> dict[str, float | int | tuple[float, float] | None]:
        texts = [text for text in self._texts if text.tokens]
        tokens = sum(text.tokens for text in texts)
        mean = sum(text.surprise_other for text in texts) / tokens
        apart = [text.surprise_other - text.surprise for text in texts]
        mine, theirs = ([(value, text.tokens) for value, text in zip(values, texts, strict=True)] for values in ([0.0] * len(texts), apart))
        between = paired.difference("perplexity", mine, theirs) if np.isfinite(apart).all() else None
        ends = between.ratio if between else None
        return {
            "perplexity": _exponential(mean),
            "perplexity_ratio": _exponential(sum(apart) / tokens),
            "perplexity_ratio_interval": ends and ends[1:],
            "perplexity_tokens": tokens,
        }


def _mistakable(likeness: np.ndarray, places: np.ndarray, mine: np.ndarray) -> np.ndarray:
    """Give, for rows of cosines (N, M) with M unit vectors `mine` (M, V), how near each is to being taken for another than its own
    counterpart at `places` (N,): what its cosine with that lacks of 1, over what the largest other one lacks; 1 where it is taken so.

    At least the share of those that are taken so, and so is its mean; it says more than a count where the count is 0.
    """
    rows = np.arange(len(likeness))
    own = likeness[rows, places]
    others = np.where(np.arange(likeness.shape[1]) == places[:, None], -1.0, likeness)
    # Equal tokens may have equal vectors: which of them is the nearest one is then left to rounding.
    others[(mine[places] @ mine.T) >= 1 - 1e-9] = -1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.clip(np.nan_to_num((1 - own) / (1 - others.max(axis=1)), nan=1.0, posinf=1.0), 0.0, np.nextafter(1.0, 0.0))
    shares[own < likeness.max(axis=1) - 1e-9] = 1.0
    return np.asarray(shares)


def rounded(rows: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Give sums and weights with seven digits, which is more than any interval needs."""
    return tuple((float(f"{value:.7g}"), weight) for value, weight in rows)


def surprise(rows: np.ndarray, following: Sequence[tuple[int, int]]) -> np.ndarray:
    """Give negative log-likelihood, in nats, of (row, token) pairs under logits (P, V): float64 (N,)."""
    surprises = []
    for row, token in following:
        logits = rows[row].astype(np.float64)
        top = logits.max()
        surprises.append(top + math.log(np.exp(logits - top).sum()) - logits[token])
    return np.array(surprises)


def perplexity(losses: Sequence[np.ndarray]) -> float | None:
    """Give the perplexity of tokens with these negative log-likelihoods; None of no tokens."""
    tokens = sum(len(loss) for loss in losses)
    return _exponential(sum(float(loss.sum()) for loss in losses) / tokens) if tokens else None


def largest_error(reference: np.ndarray, other: np.ndarray) -> float:
    """Give max |Δ| of rows (P, V). Raises ValueError as `Comparison.add` does."""
    if reference.shape != other.shape:
        raise ValueError(f"its logits have the shape {other.shape}, the reference's {reference.shape}")
    error = float(np.abs(reference - other).max())
    if not math.isfinite(error):
        raise ValueError("its logits hold values that are not finite")
    return error


def distances(head: Head, reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Give how far each row (P, V) is from its counterpart, (P,), as something that grows with the square of the difference: the divergence
    in nats, of numbers the mean square, of vectors what their cosine lacks of 1."""
    mine, theirs = reference.astype(np.float64), other.astype(np.float64)
    gap: np.ndarray
    if head == "choice":
        return divergence(log_softmax(mine), log_softmax(theirs))
    if head == "labels":
        return _label_divergence(mine, theirs)
    gap = np.square(mine - theirs).mean(axis=1) if head == "value" else np.maximum(1.0 - (_unit(mine) * _unit(theirs)).sum(axis=1), 0.0)
    return gap


def _exponential(nats: float) -> float:
    return math.exp(min(nats, 700.0))  # JSON has no infinity


def in_deviations(value: float, deviation: float) -> float:
    """Give a difference of logits in units of a standard deviation; infinite where the deviation is 0 and the difference isn't."""
    return value / deviation if deviation > 0 else (0.0 if value == 0 else math.inf)


def _label_divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Give sum over the labels of KL(reference ‖ other) in nats, each label a coin of its own, for each row of logits (P, V) float64."""
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
        """Give what errors are measured in: the standard deviation, of numbers at least SMALLEST_SPREAD of their root mean square."""
        if head != "value" or not self._count:
            return self.std
        return max(self.std, SMALLEST_SPREAD * float(np.sqrt(self._squares / self._count)))
