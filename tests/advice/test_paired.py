"""A difference is called one only where its paired interval excludes zero: seldom between equal models, and always where it is clear."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.contract.advice.paired import Difference, difference, mean, student

DRAWS = 2000
Rows = list[tuple[float, float]]


def losses(draw: random.Random, texts: int, apart: float = 0.0, spread: float = 0.05) -> tuple[Rows, Rows]:
    """Two models' (nats, tokens) of texts of very different lengths; the second has `apart` nats a token more, and each its own noise."""
    first, second = Rows(), Rows()
    for _ in range(texts):
        tokens, hard = float(round(math.exp(draw.gauss(4.0, 0.7))) + 1), draw.gauss(2.5, 0.6)
        first.append((tokens * (hard + draw.gauss(0, spread)), tokens))
        second.append((tokens * (hard + apart + draw.gauss(0, spread)), tokens))
    return first, second


def answers(draw: random.Random, texts: int, first: float, second: float, same: float) -> tuple[Rows, Rows]:
    """Two models' right answers; a share `same` of the texts is answered alike."""
    rows = []
    for _ in range(texts):
        alike = draw.random() < same
        mine = draw.random() < first
        rows.append((float(mine), float(mine if alike else draw.random() < second)))
    return [(mine, 1.0) for mine, _ in rows], [(theirs, 1.0) for _, theirs in rows]


def compared(metric: str, pair: tuple[Rows, Rows], comparisons: int = 1) -> Difference:
    between = difference(metric, *pair, comparisons)
    assert between is not None
    return between


@pytest.mark.parametrize("texts", [2, 3, 6, 12, 50])
def test_noise_of_equal_models_is_called_a_difference_in_at_most_one_of_twenty(texts: int) -> None:
    draw = random.Random(texts)
    called = sum(compared("perplexity", losses(draw, texts)).sure for _ in range(DRAWS))
    assert called <= 0.05 * DRAWS + 2 * math.sqrt(0.05 * 0.95 * DRAWS), "with what 2,000 draws leave to chance"


@pytest.mark.parametrize(("texts", "same"), [(6, 0.5), (30, 0.8), (100, 0.96)])
def test_equal_classifiers_are_called_different_in_at_most_one_of_twenty(texts: int, same: float) -> None:
    draw = random.Random(texts)
    called = sum(compared("accuracy", answers(draw, texts, 0.8, 0.8, same)).sure for _ in range(DRAWS))
    assert called <= 0.05 * DRAWS


@pytest.mark.parametrize("exports", [3, 10])
def test_of_many_equal_exports_the_best_is_called_better_in_at_most_one_of_twenty(exports: int) -> None:
    """The best of many is chosen for its noise: the intervals are as much wider."""
    draw, called = random.Random(exports), 0
    for _ in range(DRAWS // 4):
        texts = [(float(draw.randint(20, 200)), draw.gauss(2.5, 0.6)) for _ in range(12)]
        models = [[(tokens * (hard + draw.gauss(0, 0.05)), tokens) for tokens, hard in texts] for _ in range(exports)]
        models.sort(key=lambda rows: mean(rows) or 0.0)
        called += compared("perplexity", (models[0], models[1]), exports - 1).sure
    assert called <= 0.05 * DRAWS / 4


def test_a_clear_difference_is_seen() -> None:
    draw = random.Random(7)
    assert sum(compared("perplexity", losses(draw, 12, apart=0.15)).sure for _ in range(200)) >= 190
    assert sum(compared("accuracy", answers(draw, 100, 0.9, 0.6, 0.5)).sure for _ in range(200)) >= 150


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    draw, hits = random.Random(3), 0
    for _ in range(500):
        between = compared("perplexity", losses(draw, 12, apart=0.1))
        hits += between.low is not None and between.high is not None and between.low <= 0.1 <= between.high
    assert 0.92 <= hits / 500 <= 1.0


def test_few_texts_give_wide_intervals_and_one_text_gives_none() -> None:
    draw = random.Random(5)
    many, few = compared("perplexity", losses(draw, 40)), compared("perplexity", losses(draw, 6))
    assert many.low is not None and many.high is not None and few.low is not None and few.high is not None
    assert few.high - few.low > 2 * (many.high - many.low)
    alone = compared("perplexity", ([(500.0, 200.0)], [(100.0, 200.0)]))
    assert alone.low is None and not alone.sure and alone.ratio is None
    one_long = compared("perplexity", ([(900.0, 1000.0), (1.0, 1.0)], [(100.0, 1000.0), (0.5, 1.0)]))
    assert not one_long.sure, "a text that outweighs the other is one text"
    assert not compared("accuracy", ([(1.0, 1.0)], [(0.0, 1.0)])).sure


def test_too_few_tokens_give_no_verdict_however_sure_they_look() -> None:
    rows = [(20.0, 9.0)] * 6
    between = compared("perplexity", (rows, [(nats - 9.0, tokens) for nats, tokens in rows]))
    assert between.weight == 54 and between.high is not None and between.high < 0 and not between.sure


def test_right_answers_are_compared_as_mcnemars_exact_test_does() -> None:
    """Of six texts on which one alone is right, all on one side: p = 2 / 2⁶ = 0.031; of five: 0.063."""
    base = [(1.0, 1.0)] * 20
    for many, sure in ((5, False), (6, True)):
        assert compared("accuracy", ([(0.0, 1.0)] * many + base, [(1.0, 1.0)] * many + base)).sure is sure
    same = compared("accuracy", (base, base))
    assert same.value == 0 and same.low is not None and same.low < 0 < (same.high or 0), "what did not happen may yet happen"


def test_only_the_same_texts_are_compared() -> None:
    rows = [(20.0, 9.0), (30.0, 12.0)]
    assert difference("perplexity", rows, rows[:1]) is None and difference("perplexity", (), ()) is None
    assert difference("perplexity", rows, [(20.0, 9.0), (30.0, 13.0)]) is None, "another tokenizer"
    assert difference("accuracy", [(0.0, 0.0)], [(0.0, 0.0)]) is None
    assert compared("perplexity", ([*rows, (0.0, 0.0)], [*rows, (0.0, 0.0)])).texts == 2


def test_students_quantiles_are_those_of_the_tables() -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2."""
    table = {(1, 0.05): 12.706, (2, 0.05): 4.303, (5, 0.05): 2.571, (10, 0.05): 2.228, (30, 0.05): 2.042, (100, 0.05): 1.984,
             (5, 0.002): 5.893, (8, 0.01): 3.355}  # fmt: skip
    assert {key: round(student(*key), 3) for key in table} == table


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50), st.integers(0, 200)), max_size=12), st.sampled_from(["perplexity", "kl"]))
def test_the_difference_lies_in_its_interval_and_the_other_way_round_is_its_mirror(
    rows: list[tuple[float, float, int]], metric: str
) -> None:
    first, second = [(mine, float(weight)) for mine, _, weight in rows], [(theirs, float(weight)) for _, theirs, weight in rows]
    there, back = difference(metric, first, second), difference(metric, second, first)
    if there is None or back is None:
        assert there is back
        return
    assert there.value == pytest.approx(-back.value) and there.sure == back.sure
    if there.low is not None and there.high is not None:
        assert there.low <= there.value <= there.high and back.low == pytest.approx(-there.high)
