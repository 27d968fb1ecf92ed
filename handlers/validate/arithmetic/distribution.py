"""How the differences of single positions are distributed, with the names and definitions of llama.cpp's `perplexity --kl-divergence`.

`Comparison.add` gives the positions of each prompt, whose probabilities it computes anyway; `examination` has the figures made of them.
No verdict depends on them. What is compared by hand or by another program: percentiles and what stands behind "±" are llama.cpp's, which
takes positions for independent; ranges of confidence and agreement of the K most likely choices are those of exllamav3's `eval`; flips and
McNemar's exact test (Psychometrika 12, 1947) say which of two models is right more often. Pure numpy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from daemon.contract.jobs.figures import ConfidenceBucket, Flips, Percentiles, Statistics
from handlers.models.probabilities import log_and_softmax
from handlers.validate.arithmetic.correlation import pearson, spearman

PERCENTS = (99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1)
"""Of llama.cpp's tables; the median is the 50th."""
FEW = 10
"""Positions up to which llama.cpp gives no standard error."""
BORDERS = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Of the ranges of confidence, as exllamav3 has them."""
CONFIDENT = 0.75
"""Probability from which on a choice is confident: a quarter of all probability, at least, must move before another one is chosen."""
MOST = 5
"""The largest K of `top_k_agreement`."""
_BLOCK = 64
Targets = Sequence[tuple[int, int]]
"""(row, right choice) of the rows of which that is known."""


def _nothing() -> np.ndarray:
    return np.zeros(0)


@dataclass(frozen=True)
class Positions:
    """What the figures are made of, for each of the rows (P,) of one prompt. What a head does not have is empty."""

    divergences: np.ndarray = field(default_factory=_nothing)
    """KL(reference ‖ other) in nats."""
    backwards: np.ndarray = field(default_factory=_nothing)
    """KL(other ‖ reference)."""
    confidences: np.ndarray = field(default_factory=_nothing)
    """Probability of the reference's choice."""
    choices: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """(P, 2): the reference's and the other's; of labels, 0 and whether any of them is another."""
    alike: np.ndarray = field(default_factory=_nothing)
    """How many of the most likely choices are the same in the same order, up to MOST; empty where there are no more than MOST choices."""
    losses: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    """(N, 2): negative log-likelihood of the N tokens that follow, under both."""
    cosines: np.ndarray = field(default_factory=_nothing)
    """Of vectors."""
    values: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    """(P, 2): of one number a row, both models'."""
    errors: np.ndarray = field(default_factory=_nothing)
    """Of numbers, the largest |Δ|."""


def joined(parts: Sequence[Positions]) -> Positions:
    """Give the positions of all parts, in their order."""
    return Positions(**{each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Positions)})


def of_choices(reference: np.ndarray, other: np.ndarray, following: Targets) -> Positions:
    """Compare rows (P, V) of logits in float64. `following`: as `Comparison.add` has it, with rows of these."""
    choices = np.stack([reference.argmax(axis=1), other.argmax(axis=1)], axis=1)
    alike = _alike(reference, other) if reference.shape[1] > MOST else _nothing()
    (mine, chances), (theirs, other_chances) = log_and_softmax(reference), log_and_softmax(other)
    losses = [(-mine[row, token], -theirs[row, token]) for row, token in following]
    confidences = np.take_along_axis(chances, choices[:, :1], axis=1)[:, 0]
    mine -= theirs
    return Positions(
        divergences=np.maximum(np.einsum("pv,pv->p", chances, mine), 0.0),
        backwards=np.maximum(-np.einsum("pv,pv->p", other_chances, mine), 0.0),
        confidences=confidences,
        choices=choices,
        alike=alike,
        losses=np.array(losses, np.float64).reshape(-1, 2),
    )


def _alike(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Give, for each row, how many of its MOST most likely choices are the same before the first other one."""
    same = _most_likely(reference) == _most_likely(other)
    counts: np.ndarray = np.cumprod(same, axis=1).sum(axis=1)
    return counts


def _most_likely(rows: np.ndarray) -> np.ndarray:
    """Give the places (P, MOST) of the largest values, the largest first, of equal ones the first place first."""
    places = _candidates(rows)
    values = np.take_along_axis(rows, places, axis=1)
    best = np.sort(np.argpartition(values, -MOST, axis=1)[:, -MOST:], axis=1)
    order = np.argsort(-np.take_along_axis(values, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, np.take_along_axis(best, order, axis=1), axis=1)


def _candidates(rows: np.ndarray) -> np.ndarray:
    """Give places, ascending, among which the MOST largest values of each row are: those of the blocks with the largest maxima, which is
    much less work than to divide a whole vocabulary."""
    blocks, rest = divmod(rows.shape[1], _BLOCK)
    if blocks <= MOST:
        return np.tile(np.arange(rows.shape[1]), (len(rows), 1))
    peaks = rows[:, : blocks * _BLOCK].reshape(len(rows), blocks, _BLOCK).max(axis=2)
    best = np.sort(np.argpartition(peaks, -MOST, axis=1)[:, -MOST:], axis=1)
    places = (best[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(len(rows), -1)
    return np.hstack([places, np.tile(np.arange(rows.shape[1] - rest, rows.shape[1]), (len(rows), 1))])


def statistics(prompts: Sequence[Positions], targets: Sequence[Targets], interval: tuple[float, float] | None = None) -> Statistics:
    """Give the figures of all prompts, with the right choices that are known of each. `interval`: the paired one of the ratio of the
    perplexities."""
    every = joined(prompts)
    figures = Statistics()
    if len(every.divergences):
        figures = figures.plus(
            kld=percentiles(every.divergences), kld_reversed=percentiles(every.backwards), kld_worst=_worst(every.divergences)
        )
    if len(every.losses):
        figures = figures.plus(**_of_tokens(every.losses, interval).given)
    if len(every.choices):
        figures = figures.plus(**_of_flips(every, _right(prompts, targets)).given)
    if len(every.cosines):
        figures = figures.plus(cosine=percentiles(every.cosines))
    if len(every.errors):
        both = every.values
        figures = figures.plus(
            error=percentiles(every.errors), correlation=_correlation(both), rank_correlation=_correlation(both, spearman)
        )
    return figures


def percentiles(values: np.ndarray) -> Percentiles:
    """Give how values (P,) are distributed."""
    at = np.percentile(values, PERCENTS)
    expected = [len(values) * min(percent, 100 - percent) / 100 for percent in PERCENTS]
    return Percentiles(
        mean=short(values.mean()),
        standard_error=_standard_error(values),
        maximum=short(values.max()),
        minimum=short(values.min()),
        percentiles={
            f"{percent:g}": short(value) if beyond >= 1 - 1e-9 else None
            for percent, value, beyond in zip(PERCENTS, at, expected, strict=True)
        },
    )


def short(value: float) -> float:
    """Give a number with seven digits, which is more than anybody reads."""
    return float(f"{value:.7g}")


def _standard_error(values: np.ndarray) -> float | None:
    return short(values.std() / math.sqrt(len(values) - 1)) if len(values) > FEW else None


def _worst(divergences: np.ndarray) -> float | None:
    count = len(divergences) // 100
    return short(np.sort(divergences)[-count:].mean()) if count else None


def _of_tokens(losses: np.ndarray, interval: tuple[float, float] | None) -> Statistics:
    """Give what the probabilities of the text's own tokens say."""
    apart, chances = losses[:, 1] - losses[:, 0], np.exp(-losses)
    changes = chances[:, 1] - chances[:, 0]
    squares = changes**2
    rms = math.sqrt(squares.mean())
    spread = _standard_error(squares)
    return Statistics(
        delta_p=percentiles(changes),
        delta_p_rms=short(rms),
        delta_p_rms_standard_error=spread and short(spread / (2 * rms)),
        ln_ppl_ratio=short(apart.mean()),
        ln_ppl_ratio_standard_error=_standard_error(apart),
        ln_ppl_ratio_interval=(short(math.log(interval[0])), short(math.log(interval[1]))) if interval and interval[0] > 0 else None,
        ppl_correlation=_correlation(losses),
    )


def _correlation(pairs: np.ndarray, by: Callable[[np.ndarray, np.ndarray], float | None] = pearson) -> float | None:
    """Give the correlation of pairs (N, 2); None from fewer than three, of which it is no figure."""
    value = by(*pairs.T) if len(pairs) > 2 else None
    return None if value is None else short(value)


def _right(prompts: Sequence[Positions], targets: Sequence[Targets]) -> np.ndarray:
    """Give, of each position, the right choice, -1 where it is not known."""
    right = [np.full(len(prompt.choices), -1, np.int64) for prompt in prompts]
    for places, known in zip(right, targets, strict=True):
        for row, choice in known:
            places[row] = choice
    return np.concatenate(right)


def _of_flips(every: Positions, right: np.ndarray) -> Statistics:
    choices, confidences = every.choices, every.confidences
    figures = Statistics(flips=flips(choices, right))
    if not len(confidences):
        return figures
    same = float((choices[:, 0] == choices[:, 1]).mean())
    confident = confidences >= CONFIDENT
    figures = figures.plus(
        same_top_p=short(same),
        same_top_p_standard_error=short(math.sqrt(same * (1 - same) / (len(choices) - 1))) if len(choices) > FEW else None,
        confident_flips=flips(choices[confident], right[confident]),
        by_confidence=tuple(_bucket(every, right, *ends) for ends in itertools.pairwise(BORDERS)),
    )
    if len(every.alike):
        figures = figures.plus(top_k_agreement=tuple(short((every.alike >= count).mean()) for count in range(1, MOST + 1)))
    return figures


def _bucket(every: Positions, right: np.ndarray, low: float, high: float) -> ConfidenceBucket:
    inside = (every.confidences >= low) & ((every.confidences < high) | (high == BORDERS[-1]))
    divergences = every.divergences[inside]
    return ConfidenceBucket(
        low=low,
        high=high,
        kld_mean=short(divergences.mean()) if len(divergences) else None,
        kld_median=short(np.median(divergences)) if len(divergences) else None,
        **flips(every.choices[inside], right[inside]).given,
    )


def flips(choices: np.ndarray, right: np.ndarray) -> Flips:
    """Count where two models choose otherwise (P, 2), and which is right, by the right choices (P,), -1 where that is not known."""
    known = right >= 0
    counts = Flips(positions=len(choices), flips=int((choices[:, 0] != choices[:, 1]).sum()), known=int(known.sum()))
    if not counts.known:
        return counts.plus(lost=None, gained=None, mcnemar_p=None)
    mine, theirs = (choices[known] == right[known, None]).T
    lost, gained = int((mine & ~theirs).sum()), int((theirs & ~mine).sum())
    return counts.plus(lost=lost, gained=gained, mcnemar_p=short(mcnemar(lost, gained)))


def mcnemar(lost: int, gained: int) -> float:
    """Give the two-sided probability of counts as different, or more, under a fair coin: 1 where nothing was lost or gained."""
    total, smaller = lost + gained, min(lost, gained)
    ways = tail = 1
    for count in range(smaller):
        ways = ways * (total - count) // (count + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << total))
