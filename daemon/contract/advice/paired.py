"""Whether two models differ on the same texts: the difference of a figure with its paired interval. Pure, without numpy.

Called by `daemon.contract.advice.which`, `ckptd compare`, the checks and the report. A figure is given text by text, as (sum, weight): of
the perplexity (nats, tokens), of a divergence (nats, positions), of a score (1.0 or 0.0 for right or wrong, 1); a text that the figure was
not measured on has the weight 0.

- Means: D = Σ(b − a) / Σw. Its standard error is the jackknife's over whole texts, since the tokens of a text are not independent:
  with D₋ᵢ as the difference without text i, s² = (n − 1)/n · Σ (D₋ᵢ − mean of D₋)² (Tukey 1958; Efron and Tibshirani, An Introduction to
  the Bootstrap, 1993, chapter 11). The interval is D ± t · s, where t is Student's quantile with n' − 1 degrees of freedom, n' =
  (Σw)² / Σw² (Kish, Survey Sampling, 1965, section 11.7), rounded down: texts of very different lengths count as fewer.
- Shares of right answers, and scores that are all 0 or 1: only the texts count on which one of the two is right. That b is the right one
  in k of m such texts has the exact interval of Clopper and Pearson (Biometrika 26, 1934), and D = m/n · (2p − 1). It excludes 0 where
  McNemar's test (Psychometrika 12, 1947), in its exact form, does.

From one text, or from texts of which one outweighs the others, there is no interval.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ByText = Sequence[tuple[float, float]]
"""(sum, weight) of each text."""
LEVEL = 0.05
"""Share of equal models whose difference may be called one."""
LEAST_TOKENS = 100
"""Tokens of the texts together below which no verdict is given, whatever the interval says."""
SHARES = frozenset({"accuracy", "exact_match"})
"""Figures that are shares of right answers."""


@dataclass(frozen=True)
class Difference:
    """How far the second model's figure is from the first one's."""

    value: float
    """Second minus first: of the perplexity in nats a token, the logarithm of the ratio; of scores in their own unit."""
    low: float | None
    """Begin of the interval; None where there is none."""
    high: float | None
    texts: int
    """Texts that both were measured on."""
    weight: float
    """Sum of their weights: tokens, positions or texts."""
    enough: bool
    """Whether there are enough tokens for a verdict."""

    @property
    def sure(self) -> bool:
        """Whether it may be called a difference: its interval excludes zero."""
        return self.enough and self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def ratio(self) -> tuple[float, float, float] | None:
        """Of a perplexity: second over first, with the ends of the interval; None where there is no interval or an end is infinite."""
        if self.low is None or self.high is None or max(self.value, self.high) > math.log(1e300):
            return None
        return math.exp(self.value), math.exp(self.low), math.exp(self.high)


def difference(metric: str, first: ByText, second: ByText, comparisons: int = 1) -> Difference | None:
    """Compare two models by a figure; None where they were not measured on the same texts, with the same weights.

    `comparisons`: how many such differences are looked at together: each interval is widened for all of them (Bonferroni).
    """
    if not first or not can_be_paired(first, second):
        return None
    rows = [(mine, theirs, weight) for (mine, weight), (theirs, _) in zip(first, second, strict=True) if weight > 0]
    total = math.fsum(weight for *_, weight in rows)
    if not rows:
        return None
    apart = [(theirs - mine, weight) for mine, theirs, weight in rows]
    level = LEVEL / max(1, comparisons)
    shares = metric in SHARES or all(weight == 1 and {mine, theirs} <= {0.0, 1.0} for mine, theirs, weight in rows)
    interval = _of_shares(apart, level) if shares else _of_means(apart, total, level)
    low, high = interval if interval else (None, None)
    value = math.fsum(change for change, _ in apart) / total
    return Difference(value, low, high, len(rows), total, metric != "perplexity" or total >= LEAST_TOKENS)


def can_be_paired(first: ByText, second: ByText) -> bool:
    """Whether both are of the same texts, as far as their weights show."""
    return len(first) == len(second) and all(mine[1] == theirs[1] for mine, theirs in zip(first, second, strict=True))


def mean(by_text: ByText) -> float | None:
    """The figure over all texts; None of nothing."""
    total = math.fsum(weight for _, weight in by_text)
    return math.fsum(value for value, _ in by_text) / total if total else None


def _of_means(apart: Sequence[tuple[float, float]], total: float, level: float) -> tuple[float, float] | None:
    count, whole = len(apart), math.fsum(change for change, _ in apart)
    freedom = math.floor(total**2 / math.fsum(weight**2 for _, weight in apart) - 1 + 1e-9)
    if freedom < 1:
        return None
    without = [(whole - change) / (total - weight) for change, weight in apart]
    middle = math.fsum(without) / count
    error = math.sqrt((count - 1) / count * math.fsum((value - middle) ** 2 for value in without))
    reach = student(freedom, level) * error
    return whole / total - reach, whole / total + reach


def _of_shares(apart: Sequence[tuple[float, float]], level: float) -> tuple[float, float] | None:
    count, better, worse = len(apart), sum(change > 0 for change, _ in apart), sum(change < 0 for change, _ in apart)
    if count < 2:
        return None
    many = better + worse
    if not many:
        return (-_never(count, level), _never(count, level))
    low = _bisect(lambda share: _at_least(better, many, share) - level / 2, 0.0, 1.0) if better else 0.0
    high = 1 - (_bisect(lambda share: _at_least(worse, many, share) - level / 2, 0.0, 1.0) if worse else 0.0)
    return many / count * (2 * low - 1), many / count * (2 * high - 1)


def _never(count: int, level: float) -> float:
    """Largest share of an event that did not happen in `count` texts."""
    return float(1 - (level / 2) ** (1 / count))


def _at_least(hits: int, many: int, share: float) -> float:
    """Probability of `hits` or more of `many`, each with the probability `share`."""
    return math.fsum(math.comb(many, k) * share**k * (1 - share) ** (many - k) for k in range(hits, many + 1))


@functools.lru_cache(maxsize=1024)
def student(freedom: int, level: float) -> float:
    """Student's t that is exceeded, on both sides together, with the probability `level`."""
    return _bisect(lambda t: _inside(t, freedom) - (1 - level), 0.0, 1e9)


def _inside(t: float, freedom: int) -> float:
    """Probability of |t| below `t`: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for number in range(3 if odd else 2, freedom + 1, 2):
        total += term
        term *= cosine**2 * (number - 1) / number
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
        if high - low <= 1e-12 * max(1.0, abs(high)):
            break
    return (low + high) / 2
