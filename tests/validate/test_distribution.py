"""How differences are distributed: each figure beside a calculation of its own, and what holds of all of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import correlation
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.contract.jobs.figures import ConfidenceBucket, Flips, Percentiles, Statistics
from handlers.validate.arithmetic import distribution
from handlers.validate.arithmetic.comparison import Comparison
from handlers.validate.arithmetic.distribution import BORDERS, CONFIDENT, PERCENTS
from handlers.validate.engines.task_profile import Head
from tests.validate.bench import measured

Prompt = tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]


def prompts(seed: int, *, count: int = 4, rows: int = 40, choices: int = 12, noise: float = 0.7) -> list[Prompt]:
    """Logits of two models of texts, of which the next token is known at all rows but the last; some choices are sure, some are not."""
    rng, made = np.random.default_rng(seed), []
    for number in range(count):
        mine = rng.normal(0, 1, (rows + number, choices)) * rng.uniform(0.2, 6, (rows + number, 1))
        theirs = mine + rng.normal(0, noise, mine.shape)
        following = [(row, int(rng.integers(choices)) if row % 3 else int(mine[row].argmax())) for row in range(len(mine) - 1)]
        made.append((mine.astype(np.float32), theirs.astype(np.float32), following))
    return made


def figures(given: list[Prompt], head: Head = "choice") -> Statistics:
    comparison = Comparison(head)
    rows = [comparison.add(*prompt) for prompt in given]
    interval = comparison.figures(1.0).perplexity_ratio_interval
    return distribution.statistics([row.positions for row in rows], [following for *_, following in given], interval)


# Each figure beside a calculation of its own, in plain Python


def softmax(row: np.ndarray) -> list[float]:
    powers = [math.exp(float(value) - float(row.max())) for value in row]
    return [power / math.fsum(powers) for power in powers]


def positions(given: list[Prompt]) -> list[tuple[list[float], list[float], int | None]]:
    """(probabilities under both models, the next token) of each position."""
    return [
        (softmax(mine[row]), softmax(theirs[row]), dict(following).get(row))
        for mine, theirs, following in given for row in range(len(mine))
    ]  # fmt: skip


def kl(first: list[float], second: list[float]) -> float:
    return math.fsum(p * (math.log(p) - math.log(q)) for p, q in zip(first, second, strict=True))


def percentile(values: list[float], percent: float) -> float:
    """Between the two nearest of the values in order, as llama.cpp has it."""
    ordered, place = sorted(values), Fraction(str(percent)) / 100 * (len(values) - 1)
    low = math.floor(place)
    part = float(place - low)
    return (1 - part) * ordered[low] + part * ordered[min(low + 1, len(values) - 1)]


def same(found: Percentiles | None, values: list[float]) -> None:
    assert found is not None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    assert found.mean == pytest.approx(mean, rel=1e-5, abs=1e-9)
    assert found.standard_error == pytest.approx(math.sqrt(variance / len(values)), rel=1e-5)
    assert (found.minimum, found.maximum) == (pytest.approx(min(values), rel=1e-5, abs=1e-9), pytest.approx(max(values), rel=1e-5))
    assert list(found.percentiles) == [f"{percent:g}" for percent in PERCENTS]
    for name, value in found.percentiles.items():
        few = len(values) * min(Fraction(name), 100 - Fraction(name)) < 100
        assert (value is None) == few, name
        assert value is None or value == pytest.approx(percentile(values, float(name)), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_divergences_of_both_directions_are_those_of_the_formula(seed: int) -> None:
    given = prompts(seed)
    found, places = figures(given), positions(given)
    forth = [kl(mine, theirs) for mine, theirs, _ in places]
    same(found.kld, forth)
    same(found.kld_reversed, [kl(theirs, mine) for mine, theirs, _ in places])
    assert len(forth) == 166  # one percent is one position
    assert found.kld_worst == pytest.approx(max(forth), rel=1e-5)


def test_the_worst_percent_is_the_mean_of_the_largest() -> None:
    found = distribution.statistics([distribution.Positions(divergences=np.arange(250.0), backwards=np.arange(250.0))], [[]])
    assert found.kld_worst == 248.5  # of 249 and 248


@pytest.mark.parametrize("seed", range(3))
def test_changes_of_the_next_tokens_probability_are_those_of_the_formula(seed: int) -> None:
    given = prompts(seed)
    found, scored = figures(given), [(mine[token], theirs[token]) for mine, theirs, token in positions(given) if token is not None]
    changes = [q - p for p, q in scored]
    same(found.delta_p, changes)
    rms = math.sqrt(math.fsum(change**2 for change in changes) / len(changes))
    squares = [change**2 for change in changes]
    spread = math.sqrt(math.fsum((square - rms**2) ** 2 for square in squares) / (len(squares) - 1) / len(squares))
    assert found.delta_p_rms == pytest.approx(rms, rel=1e-5)
    assert found.delta_p_rms_standard_error == pytest.approx(spread / 2 / rms, rel=1e-4)

    mine, theirs = [-math.log(p) for p, _ in scored], [-math.log(q) for _, q in scored]
    apart = [b - a for a, b in zip(mine, theirs, strict=True)]
    mean = math.fsum(apart) / len(apart)
    assert found.ln_ppl_ratio == pytest.approx(mean, rel=1e-4)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in apart) / (len(apart) - 1) / len(apart))
    assert found.ln_ppl_ratio_standard_error == pytest.approx(error, rel=1e-4)
    assert found.ln_ppl_ratio_interval is not None
    assert found.ln_ppl_ratio_interval[0] < mean < found.ln_ppl_ratio_interval[1]
    assert found.ppl_correlation == pytest.approx(correlation(mine, theirs), rel=1e-5)


def ordered(probabilities: list[float]) -> list[int]:
    return sorted(range(len(probabilities)), key=lambda place: -probabilities[place])


@pytest.mark.parametrize("seed", range(3))
def test_choices_and_flips_are_counted_by_the_references_confidence(seed: int) -> None:
    given = prompts(seed)
    found, places = figures(given), positions(given)
    for count, share in enumerate(found.top_k_agreement or (), 1):
        alike = [ordered(mine)[:count] == ordered(theirs)[:count] for mine, theirs, _ in places]
        assert share == pytest.approx(sum(alike) / len(alike), rel=1e-6)
    assert found.top_k_agreement and len(found.top_k_agreement) == 5 and found.top_k_agreement[0] == found.same_top_p
    share = found.same_top_p or 0.0
    assert found.same_top_p_standard_error == pytest.approx(math.sqrt(share * (1 - share) / (len(places) - 1)), rel=1e-5)

    def counted(counts: Flips | None, low: float, high: float) -> None:
        inside = [place for place in places if low <= max(place[0]) < high]
        known = [(ordered(mine)[0] == token, ordered(theirs)[0] == token) for mine, theirs, token in inside if token is not None]
        assert counts is not None and counts.positions == len(inside) and counts.known == len(known) > 0
        assert counts.flips == sum(ordered(mine)[0] != ordered(theirs)[0] for mine, theirs, _ in inside)
        assert (counts.lost, counts.gained) == (known.count((True, False)), known.count((False, True)))
        if isinstance(counts, ConfidenceBucket):
            divergences = [kl(mine, theirs) for mine, theirs, _ in inside]
            assert counts.kld_mean == pytest.approx(math.fsum(divergences) / len(divergences), rel=1e-5, abs=1e-12)
            assert counts.kld_median == pytest.approx(percentile(divergences, 50), rel=1e-5, abs=1e-12)

    counted(found.flips, 0, 2)
    counted(found.confident_flips, CONFIDENT, 2)
    assert found.by_confidence and [bucket.low for bucket in found.by_confidence] == list(BORDERS[:-1])
    for bucket in found.by_confidence:
        counted(bucket, bucket.low, 2 if bucket.high == 1 else bucket.high)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemars_test_is_the_exact_one(lost: int, gained: int) -> None:
    total = lost + gained
    chances = [Fraction(math.comb(total, count), 2**total) for count in range(total + 1)]
    wanted = sum((chance for chance in chances if chance <= chances[lost]), Fraction(0))
    assert distribution.mcnemar(lost, gained) == pytest.approx(float(wanted), rel=1e-12)


def test_mcnemars_test_holds_for_more_positions_than_a_float_has_powers() -> None:
    assert distribution.mcnemar(2000, 2000) == 1.0
    assert 0 < distribution.mcnemar(2200, 1800) < 1e-8


def test_a_choice_of_which_the_model_is_wholly_sure_is_in_the_last_range() -> None:
    sure = np.array([[900.0, 0, 0]], np.float32)
    found = figures([(sure, -sure, [])])
    assert found.by_confidence and [bucket.positions for bucket in found.by_confidence] == [0, 0, 0, 0, 1]
    assert [bucket.flips for bucket in found.by_confidence] == [0, 0, 0, 0, 1] and found.by_confidence[0].kld_mean is None


# What a head of another kind has


def test_a_classifiers_flips_are_of_its_labels_and_of_what_the_data_says() -> None:
    mine = np.array([[4.0, 0, 0], [0, 4, 0], [0, 0, 4], [1, 0, 0]], np.float32)
    theirs = np.array([[4.0, 0, 0], [4, 0, 0], [0, 0, 4], [0, 1, 0]], np.float32)
    comparison = Comparison()
    rows = [comparison.add(mine[number : number + 1], theirs[number : number + 1]).positions for number in range(4)]
    found = distribution.statistics(rows, [[(0, 0)], [(0, 1)], [], [(0, 1)]])
    assert found.flips == Flips(positions=4, flips=2, known=3, lost=1, gained=1, mcnemar_p=1.0)
    assert found.confident_flips == Flips(positions=3, flips=1, known=2, lost=1, gained=0, mcnemar_p=1.0)
    assert found.delta_p is None and not found.has("delta_p") and found.top_k_agreement is None
    unknown = distribution.statistics(rows, [[]] * 4).flips
    assert unknown == Flips(positions=4, flips=2, known=0, lost=None, gained=None, mcnemar_p=None)


def test_texts_with_several_labels_flip_where_one_label_does() -> None:
    mine, theirs = np.array([[1.0, -1, 2], [1, 1, 1]], np.float32), np.array([[1.0, 1, 2], [2, 1, 1]], np.float32)
    found = figures([(mine, theirs, [])], "labels")
    assert found.flips == Flips(positions=2, flips=1, known=0, lost=None, gained=None, mcnemar_p=None)

    def chance(logit: float) -> float:
        return 1 / (1 + math.exp(-logit))

    wanted = [
        math.fsum(kl([chance(a), 1 - chance(a)], [chance(b), 1 - chance(b)]) for a, b in zip(first, second, strict=True))
        for first, second in zip(mine.tolist(), theirs.tolist(), strict=True)
    ]
    assert found.kld and found.kld.maximum == pytest.approx(max(wanted), rel=1e-6) and found.kld.minimum == pytest.approx(min(wanted))
    assert found.by_confidence is None and found.same_top_p is None


def test_numbers_have_errors_and_correlations() -> None:
    rng = np.random.default_rng(3)
    mine = rng.normal(0, 1, (30, 1)).astype(np.float32)
    theirs = (mine + rng.normal(0, 0.5, mine.shape)).astype(np.float32)
    found = figures([(mine[row : row + 1], theirs[row : row + 1], []) for row in range(30)], "value")
    same(found.error, np.abs(mine.astype(np.float64) - theirs).ravel().tolist())
    first, second = mine.ravel().tolist(), theirs.ravel().tolist()
    assert found.correlation == pytest.approx(correlation(first, second), rel=1e-5)
    ranks = [[sorted(series).index(value) for value in series] for series in (first, second)]
    assert found.rank_correlation == pytest.approx(correlation(*ranks), rel=1e-5)
    assert not found.has("kld") and not found.has("flips")
    several = figures([(np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32), [])], "value")
    assert several.correlation is None and several.error and several.error.maximum == 1.0


def test_vectors_have_the_percentiles_of_their_cosines() -> None:
    rng = np.random.default_rng(4)
    mine = rng.normal(0, 1, (120, 8))
    theirs = mine + rng.normal(0, 0.3, mine.shape)
    found = figures([(mine[row : row + 1], theirs[row : row + 1], []) for row in range(120)], "vector")
    same(found.cosine, [float(a @ b / np.sqrt((a @ a) * (b @ b))) for a, b in zip(mine, theirs, strict=True)])
    assert not found.has("kld") and not found.has("flips")


# What holds of all of them


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([3, 6, 40]))
def test_a_model_beside_itself_differs_nowhere(seed: int, choices: int) -> None:
    found = figures([(mine, mine, following) for mine, _, following in prompts(seed, choices=choices)])
    for one in (found.kld, found.kld_reversed, found.delta_p):
        assert one is not None and {one.mean, one.standard_error, one.maximum, one.minimum, *one.percentiles.values()} <= {0.0, None}
    assert (found.kld_worst, found.delta_p_rms, found.delta_p_rms_standard_error, found.ln_ppl_ratio) == (0.0, 0.0, 0.0, 0.0)
    assert (found.same_top_p, found.same_top_p_standard_error, found.ln_ppl_ratio_interval) == (1.0, 0.0, (0.0, 0.0))
    assert found.ppl_correlation == pytest.approx(1.0) and set(found.top_k_agreement or {1.0}) == {1.0}
    for counts in (found.flips, found.confident_flips, *(found.by_confidence or ())):
        assert counts is not None and counts.flips == 0 and (counts.lost or 0) == (counts.gained or 0) == 0
        assert counts.mcnemar_p == (1.0 if counts.known else None)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 3.0))
def test_the_other_way_round_gains_and_losses_change_places(seed: int, noise: float) -> None:
    given = prompts(seed, noise=noise)
    forth, back = figures(given), figures([(theirs, mine, following) for mine, theirs, following in given])
    assert forth.kld == back.kld_reversed and forth.kld_reversed == back.kld
    assert forth.flips and back.flips
    assert (forth.flips.lost, forth.flips.gained, forth.flips.flips) == (back.flips.gained, back.flips.lost, back.flips.flips)
    assert forth.flips.mcnemar_p == back.flips.mcnemar_p
    assert (forth.same_top_p, forth.top_k_agreement, forth.delta_p_rms) == (back.same_top_p, back.top_k_agreement, back.delta_p_rms)
    assert forth.ln_ppl_ratio == -(back.ln_ppl_ratio or 0.0) and forth.ppl_correlation == pytest.approx(back.ppl_correlation)
    assert forth.delta_p and back.delta_p
    for name, value in forth.delta_p.percentiles.items():
        mirrored = back.delta_p.percentiles[f"{float(100 - Fraction(name)):g}"]
        assert value == (None if mirrored is None else pytest.approx(-mirrored, rel=1e-5, abs=1e-9))


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(itertools.chain.from_iterable(flat(value[name]) for name in sorted(value)))
    return list(itertools.chain.from_iterable(map(flat, value))) if isinstance(value, list | tuple) else [-99.0 if value is None else value]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 1000))
def test_the_order_of_the_prompts_does_not_matter(order: list[int], seed: int) -> None:
    given = prompts(seed)
    first, second = figures(given), figures([given[number] for number in order])
    assert flat(first.written()) == pytest.approx(flat(second.written()), rel=1e-6, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 39))
def test_a_text_in_pieces_gives_what_it_gives_as_a_whole(seed: int, at: int) -> None:
    (whole,) = prompts(seed, count=1)
    mine, theirs, following = whole
    pieces = [
        (mine[:at], theirs[:at], [(row, token) for row, token in following if row < at]),
        (mine[at:], theirs[at:], [(row - at, token) for row, token in following if row >= at]),
    ]
    one = figures([whole]).plus(ln_ppl_ratio_interval=None)
    assert flat(figures(pieces).plus(ln_ppl_ratio_interval=None).written()) == pytest.approx(flat(one.written()), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("rows", [1, 2, 10, 11])
def test_of_few_positions_only_what_they_say_is_given(rows: int) -> None:
    found = figures(prompts(1, count=1, rows=rows))
    assert found.kld and found.kld_worst is None and found.kld.percentiles["99"] is None is found.kld.percentiles["1"]
    assert (found.kld.standard_error is None) == (rows <= 10) == (found.same_top_p_standard_error is None)
    assert (found.kld.percentiles["50"] is None) == (rows < 2)
    assert (found.kld.percentiles["90"] is None) == (rows < 10)
    assert found.ln_ppl_ratio_interval is None
    if rows == 1:
        assert not found.has("delta_p") and found.flips and found.flips.mcnemar_p is None


@given(st.integers(0, 1000), st.sampled_from([6, 63, 64, 65, 400, 1000]), st.booleans())
def test_the_most_likely_choices_are_those_of_a_whole_sort(seed: int, choices: int, few_values: bool) -> None:
    rows = np.random.default_rng(seed).normal(0, 1, (5, choices))
    rows = np.round(rows * 2) if few_values else rows
    found = distribution._most_likely(rows)
    wanted = np.argsort(-rows, axis=1, kind="stable")[:, :5]
    assert (np.take_along_axis(rows, found, 1) == np.take_along_axis(rows, wanted, 1)).all()
    assert few_values or (found == wanted).all()


# In a check


def test_a_check_gives_them_and_they_agree_with_its_other_figures(
    pico_base: Path, pico_checkpoint: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    bench = measured(pico_checkpoint, pico_base, folders["pytorch"], tmp_path / "scratch", long_tokens=0)
    examined = bench.examine("pytorch", pico_base).figures
    found = examined.statistics
    assert found and found.kld and found.delta_p and found.flips and found.confident_flips and examined.positions and examined.kl
    assert found.kld.mean == pytest.approx(examined.kl, rel=1e-5) and found.same_top_p == pytest.approx(examined.agreement, rel=1e-5)
    assert found.ln_ppl_ratio == pytest.approx(math.log(examined.perplexity_ratio or 0), rel=1e-4)
    assert found.ln_ppl_ratio_interval == pytest.approx([math.log(end) for end in examined.perplexity_ratio_interval or ()], rel=1e-4)
    assert found.flips.positions == examined.positions and found.flips.known == examined.perplexity_tokens
    assert found.flips.flips == round((1 - (examined.agreement or 0)) * examined.positions) > 0
    samples = bench.reference.samples
    bench.reference.samples = [replace(sample, label=int(np.load(sample.logits)[0].argmax())) for sample in samples]
    labelled = bench.examine("pytorch", pico_base).figures.statistics
    assert labelled and labelled.flips and labelled.flips.known == len(samples) and labelled.flips.gained == 0
