"""The bounds that verdicts go by, held to what they promise by simulation: over all looks together, at most one in a hundred is wrong.

The populations are made by a generator: how a text's divergence is spread over texts and over its positions, how alike the positions of a
text are, how long texts are, and whether long texts are worse. Their true figures are those of very many texts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.validate.arithmetic import bounds
from handlers.validate.arithmetic.bounds import ERROR, Mean, looks, never, spent

LOOKS = looks(6, 64)
Lengths = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
LENGTHS: dict[str, Lengths] = {
    "equal": lambda random, shape: np.full(shape, 60.0),
    "spread": lambda random, shape: np.maximum(4, np.round(np.exp(random.normal(3.7, 0.8, shape)))),
    "few long": lambda random, shape: np.where(random.random(shape) < 0.2, 400.0, 20.0),
}
BETWEEN: dict[str, Callable[[np.random.Generator, float, tuple[int, int]], np.ndarray]] = {
    "lognormal": lambda random, spread, shape: np.exp(random.normal(0, spread, shape)),
    "gamma": lambda random, spread, shape: random.gamma(1 / max(spread, 1e-3) ** 2, 1.0, shape),
    "one in twenty": lambda random, spread, shape: np.exp(random.normal(0, 0.4, shape)) * np.where(random.random(shape) < 0.05, 10, 1),
    "one in ten": lambda random, spread, shape: np.exp(random.normal(0, 0.4, shape)) * np.where(random.random(shape) < 0.1, 10, 1),
    "Pareto": lambda random, spread, shape: random.pareto(2.5, shape) + 1,
}


@dataclass(frozen=True)
class Population:
    """Texts with divergences."""

    between: str
    spread: float
    """Standard deviation of the logarithm of a position's divergence."""
    alike: float
    """Share of its variance that is between texts."""
    lengths: str
    longer_worse: float = 0.0

    def draw(self, random: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Sums and weights."""
        weights = LENGTHS[self.lengths](random, shape)
        means = BETWEEN[self.between](random, self.spread * math.sqrt(self.alike), shape) * (weights / 60) ** self.longer_worse
        variance = math.exp(self.spread**2 * (1 - self.alike)) - 1  # of a position, in squares of its text's mean
        shape_of_sum = weights / max(variance, 1e-9)
        return means * weights * random.gamma(shape_of_sum) / shape_of_sum, weights


@dataclass(frozen=True)
class Choices:
    """Texts with positions that differ, as a beta-binomial."""

    share: float
    alike: float
    """Correlation of the positions of a text."""
    lengths: str

    def draw(self, random: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Sums and weights."""
        weights = LENGTHS[self.lengths](random, shape)
        strength = (1 - self.alike) / max(self.alike, 1e-6)
        own = random.beta(self.share * strength, (1 - self.share) * strength, shape)
        return random.binomial(weights.astype(int), own).astype(float), weights


def populations() -> Iterator[Population]:
    """Prompts whose divergences are a few times apart (a standard deviation of the logarithm up to 0.95), and with heavy tails."""
    for alike, lengths, spread in itertools.product((0.0, 0.3, 0.9), LENGTHS, (0.5, 1.0)):
        yield Population("lognormal", spread, alike, lengths)
    yield Population("lognormal", 1.5, 0.3, "equal")
    yield Population("lognormal", 0.5, 0.3, "spread", longer_worse=0.5)
    for between, lengths in itertools.product(("gamma", "one in twenty", "one in ten", "Pareto"), ("equal", "spread")):
        yield Population(between, 0.8, 0.5, lengths)


def shares() -> Iterator[Choices]:
    """Shares from those of sound artifacts to the limits of 4 bits."""
    for share, alike, lengths in itertools.product((0.01, 0.1, 0.2), (0.0, 0.1, 0.4, 0.9), LENGTHS):
        yield Choices(share, alike, lengths)


DRAWS = 40
"""Of each population; what is counted is how many of all are wrong."""


def _wrong(
    kind: Population | Choices, upper: Callable[[Mean, float], float | None], lower: Callable[[Mean, float], float | None]
) -> list[int]:
    """Draws in which a bound at any look is wrong: upper ones, lower ones."""
    random = np.random.default_rng(7)
    sums, weights = kind.draw(random, (400_000, 1))
    truth = float(sums.sum() / weights.sum())
    wrong = [0, 0]
    for sums, weights in zip(*kind.draw(random, (DRAWS, LOOKS[-1])), strict=True):
        at_looks = [
            (Mean(list(zip(sums[:count], weights[:count], strict=True))), spent(ERROR, look, len(LOOKS)))
            for look, count in enumerate(LOOKS)
        ]
        wrong[0] += any((high := upper(mean, error)) is not None and high < truth for mean, error in at_looks)
        wrong[1] += any((low := lower(mean, error)) is not None and low > truth for mean, error in at_looks)
    return wrong


def test_of_divergences_at_most_one_bound_in_a_hundred_is_wrong_however_often_one_looks() -> None:
    kinds = list(populations())
    wrong = [
        _wrong(kind, lambda mean, error: mean.highest(error, positive=True), lambda mean, error: mean.lowest(error, positive=True))
        for kind in kinds
    ]
    high, low = (sum(side) for side in zip(*wrong, strict=True))
    assert max(high, low) <= ERROR * DRAWS * len(kinds), (high, low, list(zip(kinds, wrong, strict=True)))


def test_of_shares_neither_and_none_is_too_narrow_where_nothing_was_seen() -> None:
    kinds = list(shares())
    wrong = [
        _wrong(kind, lambda mean, error: mean.highest_share(error), lambda mean, error: mean.lowest(error, positive=True)) for kind in kinds
    ]
    high, low = (sum(side) for side in zip(*wrong, strict=True))
    assert max(high, low) <= ERROR * DRAWS * len(kinds), (high, low, list(zip(kinds, wrong, strict=True)))


def test_texts_that_are_rarely_met_are_held_by_what_may_be_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    rare = Population("one in ten", 0.8, 0.5, "equal")
    upper, lower = (lambda mean, error: mean.highest(error, positive=True), lambda mean, error: None)
    assert _wrong(rare, upper, lower)[0] <= 1
    monkeypatch.setattr(bounds, "UNSEEN", 1.0)
    assert _wrong(rare, upper, lower)[0] >= DRAWS / 10, "this population does not tell"


@pytest.mark.parametrize("numbers", [(3,), (3, 6), LOOKS])
def test_apart_from_that_the_bounds_are_as_wide_as_they_say_for_few_texts_and_many_looks(
    numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of normal sums, for which Student's t is exact: so neither quantile nor spending can be missing, and neither is too careful."""
    monkeypatch.setattr(bounds, "UNSEEN", 0.0)
    random, draws, error = np.random.default_rng(3), 1500, 0.05
    wrong = 0
    for row in random.normal(1.0, 1.0, (draws, numbers[-1])):
        means = [Mean([(value, 1.0) for value in row[:count]]) for count in numbers]
        wrong += any((mean.highest(spent(error, look, len(numbers))) or 0.0) < 1.0 for look, mean in enumerate(means))
    assert 0.4 * error <= wrong / draws <= 1.25 * error


@pytest.mark.parametrize("positive", [False, True])
def test_positions_of_one_text_do_not_narrow_a_bound(positive: bool) -> None:
    texts = [(0.4, 10.0), (0.1, 10.0), (0.9, 10.0), (0.3, 10.0)]
    repeated = [(50 * value, 50 * weight) for value, weight in texts]
    for ends in (Mean.highest, Mean.lowest):
        assert ends(Mean(texts), 0.01, positive=positive) == pytest.approx(ends(Mean(repeated), 0.01, positive=positive))
    half = never([60.0] * 6, 0.01)
    assert half is not None and (many := never([6000.0] * 6, 0.01)) is not None and half == pytest.approx(many, rel=0.05)


def test_texts_of_which_one_outweighs_all_others_give_no_bound() -> None:
    for texts in ([], [(1.0, 5.0)], [(1.0, 0.0), (2.0, 5.0)], [(1.0, 1e6), (2.0, 1.0), (1.0, 1.0)], [(math.inf, 1.0), (1.0, 1.0)]):
        mean = Mean(texts)
        assert mean.highest(0.01) is None and mean.lowest(0.01) is None and mean.highest_share(0.01) is None
    assert never([5.0], 0.01) is None


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(1, 400)), min_size=2, max_size=40),
    st.sampled_from([0.05, 0.01, 1e-4]), st.floats(1e-6, 1e4),
)  # fmt: skip
def test_bounds_enclose_the_figure_and_follow_its_unit(texts: list[tuple[float, int]], error: float, unit: float) -> None:
    mean, scaled = Mean(texts), Mean([(unit * value, weight) for value, weight in texts])
    for positive in (False, True):
        high, low = mean.highest(error, positive=positive), mean.lowest(error, positive=positive)
        if high is None or low is None:
            continue
        assert low <= mean.value * (1 + 1e-9) + 1e-12 and high >= mean.value * (1 - 1e-9) - 1e-12
        assert not positive or low >= 0
        if high < 1e200:
            assert scaled.highest(error, positive=positive) == pytest.approx(unit * high, rel=1e-6, abs=1e-9 * unit)
        flipped = Mean([(-value, weight) for value, weight in texts])
        assert positive or flipped.highest(error) == pytest.approx(-low, rel=1e-6, abs=1e-9)
        tighter = mean.highest(error / 10, positive=positive)
        assert tighter is not None and tighter >= high * (1 - 1e-9)


@given(st.integers(1, 256), st.integers(1, 256))
def test_looks_go_from_the_first_texts_to_the_budget_and_spend_the_error_once(first: int, more: int) -> None:
    numbers = looks(first, max(first, more))
    assert numbers[0] == first and numbers[-1] == max(first, more) and list(numbers) == sorted(set(numbers))
    each = [spent(ERROR, look, len(numbers)) for look in range(len(numbers))]
    assert math.isclose(sum(each), ERROR) and each[0] >= ERROR / 2 and min(each) > 0
