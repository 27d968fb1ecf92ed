"""One rule says which checkpoint and which artifact to deploy, and its words are no louder than its ground."""

from __future__ import annotations

import random

import pytest

from daemon.contract.advice.which import Standing, Unranked, advice, beside_live, ranges_apart, standing
from daemon.contract.jobs.points import ArtifactPoint, StepPoint

Rows = tuple[tuple[float, float], ...]


def point(step: int, rows: Rows, metric: str = "perplexity", value: float | None = None) -> StepPoint:
    """An export whose one artifact has these sums and weights."""
    artifact = ArtifactPoint(
        verdict="passed", published=True, size_bytes=100, quality={metric: 8.0 if value is None else value}, by_text={metric: rows}
    )
    return StepPoint(
        export=f"run-{step}", step=step, status="succeeded", finished=f"2026-01-01T{step:06}", comparison="texts",
        artifacts={"onnx": artifact}, recommended="onnx: 2 × as fast as PyTorch",
    )  # fmt: skip


def noisy(step: int, value: float, apart: float = 0.0, tokens: int = 40, texts: int = 6) -> StepPoint:
    """The same texts for all, each step with noise of its own."""
    draw = random.Random(step)
    return point(step, tuple((tokens * (2.0 + apart + draw.gauss(0, 0.05)), float(tokens)) for _ in range(texts)), value=value)


def stood(*points: StepPoint, trainers_best: int | None = None) -> Standing:
    outcome = standing(points, trainers_best)
    assert isinstance(outcome, Standing)
    return outcome


def test_noise_does_not_take_the_place_of_the_trainers_best_and_the_words_say_so() -> None:
    points = (noisy(50, 8.2), noisy(100, 8.1), noisy(150, 8.0))
    outcome = stood(*points, trainers_best=100)
    assert outcome.pick.step == 100 and outcome.leader.step == 150 and len(outcome.equal) == 3
    assert advice(points, 100) == (
        "The trainer's best is step 100; perplexity of onnx: no difference seen between the 3 exports with 240 tokens of 6 texts;"
        " `validate.data` gives more. Deploy step 100, onnx: 2 × as fast as PyTorch."
    )


def test_of_equal_exports_the_best_figure_is_taken_and_of_two_alike_the_later_step() -> None:
    points = (noisy(50, 8.2), noisy(150, 8.0), noisy(100, 8.1))
    assert advice(points, None).endswith(
        "no difference seen between the 3 exports with 240 tokens of 6 texts; step 150 has the best figure (8); `validate.data` gives more."
        " Deploy step 150, onnx: 2 × as fast as PyTorch."
    )
    assert stood(*points, noisy(200, 8.0)).pick.step == 200 and stood(noisy(200, 8.3), noisy(150, 8.0)).pick.step == 150


def test_over_fifty_tokens_no_step_is_called_the_best_however_far_apart_they_are() -> None:
    points = (noisy(50, 8.2, 0.5, tokens=9), noisy(150, 8.0, tokens=9))
    assert (
        "no difference seen between the 2 exports with 54 tokens of 6 texts; step 150 has the best figure (8); `validate.data`"
        in advice(points, None)
    )


def test_a_worse_figure_never_takes_the_place_of_a_better_one_where_no_difference_is_seen() -> None:
    points = [noisy(50, 8.2)]
    for step, value, best in ((100, 8.1, 100), (150, 8.3, 100), (200, 7.9, 200), (250, 8.0, 200)):
        points.append(noisy(step, value))
        assert stood(*points).pick.step == best
    assert stood(*points, trainers_best=150).pick.step == 150
    assert stood(*points, noisy(300, 7.0, -0.4), trainers_best=150).pick.step == 300


def test_a_clear_difference_is_named_with_its_interval_and_those_that_are_equal() -> None:
    points = (noisy(50, 9.0, 0.4), noisy(100, 8.1), noisy(150, 8.0))
    outcome = stood(*points, trainers_best=50)
    assert [export.step for export in outcome.equal] == [100, 150] and outcome.pick.step == 150
    words = advice(points, 50)
    assert words.startswith(
        "The trainer's best is step 50; perplexity of onnx: no difference seen between step 100 and step 150 with 240 tokens of 6"
        " texts; step 150 has the best figure (8); `validate.data` gives more; its best 8 against 9 of step 50 (1."
    )
    assert words.endswith(", 240 tokens of 6 texts). Deploy step 150, onnx: 2 × as fast as PyTorch.")


def test_without_figures_for_each_text_exports_cant_be_compared() -> None:  # reports of ckptd 1.0
    points = (point(1, (), value=9.0), point(2, (), value=8.0))
    outcome = standing(points, 1)
    assert isinstance(outcome, Unranked) and [export.step for export in outcome.by_value] == [2, 1]
    assert advice(points, 1) == (
        "The trainer's best is step 1; which checkpoint is the best after quantization can't be said: the exports can't be compared, since"
        " the newest report has no figures for each text."
    )
    newer = stood(*points, noisy(3, 8.5))
    assert newer.ranked == (newer.pick,) and newer.pick.step == 3, "a newer one stands alone beside them"
    assert "only step 3 has figures that can be compared" in advice((*points, noisy(3, 8.5)), 1)


@pytest.mark.parametrize(("right", "equal"), [((90, 86), 2), ((90, 70), 1)])
def test_scores_follow_the_same_rule(right: tuple[int, int], equal: int) -> None:
    draw = random.Random(1)
    rows = []
    for hits in right:
        marks = [1.0] * hits + [0.0] * (100 - hits)
        draw.shuffle(marks)
        rows.append(tuple((mark, 1.0) for mark in marks))
    points = tuple(point(step, row, "accuracy", hits / 100) for step, row, hits in zip((1, 2), rows, right, strict=True))
    outcome = stood(*points)
    assert outcome.leader.step == 1 and len(outcome.equal) == equal
    words = advice(points, None)
    assert ("no difference seen between the 2 exports with 100 texts" in words) == (equal == 2)
    assert equal == 2 or "0.9 against 0.7 of step 2 (-20 points, -2" in words


def test_an_artifact_within_the_interval_is_as_good_as_its_live_model_and_never_better() -> None:
    assert beside_live((0.97, 1.01)) == "as good as live" and beside_live((1.01, 1.04)) == "higher than live" and beside_live(None) == ""


def test_speeds_differ_only_where_their_turns_exclude_each_other() -> None:
    assert ranges_apart((1.0, 1.4), (1.3, 1.9)) is False and ranges_apart((1.0, 1.2), (1.3, 1.9)) is True
    assert ranges_apart((1.0, 1.2), None) is None
