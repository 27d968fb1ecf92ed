"""An artifact's items are paired with the live model's, and a limit is judged by the interval of the loss."""

from __future__ import annotations

import random
from typing import Any

import pytest

from daemon.contract.jobs.figures import TaskFigures
from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.options import Task
from handlers.validate.tasks.answers import Answer, Item, Unanswered
from handlers.validate.tasks.comparing import Undecided, compared, judged, of_pairs


def answer(scores: list[float], better: Any = "higher", prefix: str = "q") -> Answer:
    return Answer(tuple(Item(f"{prefix}{number:04}", score) for number, score in enumerate(scores)), "accuracy", better)


def verdict(scores: list[float], live: list[float], drop: float | None, better: Any = "higher") -> tuple[Verdict, TaskFigures]:
    task = Task(name="mine", command=("x",), drop=drop)
    figures = compared(task, answer(scores, better), answer(live, better))
    return judged("onnx-int8", {"mine": figures}, ()).verdict, figures


def test_pairs_say_more_than_two_means() -> None:
    live = [float(number % 2) for number in range(200)]
    scores = [0.0 if number in (1, 3, 5, 7, 9, 11, 13, 15) else score for number, score in enumerate(live)]
    _, figures = verdict(scores, live, None)
    assert figures.difference == pytest.approx(-0.04)
    assert figures.interval is not None and figures.interval[1] < 0  # two unpaired means of 200 would be 0.1 wide each way
    assert not figures.has("drop") and not figures.has("undecided")


@pytest.mark.parametrize(
    ("wrong", "drop", "expected", "undecided"),
    [
        (0, 0.05, Verdict.PASSED, False), (2, 0.05, Verdict.PASSED, False), (20, 0.05, Verdict.FAILED, True),
        (60, 0.05, Verdict.FAILED, False), (14, 0.05, Verdict.PASSED, True),
    ],
)  # fmt: skip
def test_the_whole_interval_decides_and_between_the_figure_does(wrong: int, drop: float, expected: Verdict, undecided: bool) -> None:
    live = [1.0] * 300
    scores = [0.0] * wrong + [1.0] * (300 - wrong)
    given, figures = verdict(scores, live, drop)
    assert (given, figures.undecided) == (expected, undecided)


def test_what_is_undecided_can_be_taken_or_not() -> None:
    for scores, decided in ((14, ["passed", "passed", "failed"]), (20, ["failed", "passed", "failed"])):
        figures = compared(Task(name="m", command=("x",), drop=0.05), answer([0.0] * scores + [1.0] * (300 - scores)), answer([1.0] * 300))
        ways: tuple[Undecided, ...] = ("figure", "accept", "reject")
        assert [str(judged("onnx", {"m": figures}, (), undecided=way).verdict) for way in ways] == decided


def test_where_less_is_better_more_is_a_loss() -> None:
    live, scores = [1.0 + number % 3 for number in range(60)], [1.5 + number % 3 for number in range(60)]
    assert verdict(scores, live, 0.1, "lower")[0] is Verdict.FAILED
    assert verdict(live, scores, 0.1, "lower")[0] is Verdict.PASSED
    assert verdict(scores, live, 0.1, "higher")[0] is Verdict.PASSED


def test_other_items_than_the_live_models_are_not_compared() -> None:
    task = Task(name="mine", command=("x",))
    with pytest.raises(Unanswered, match=r"r0000|q0000"):
        compared(task, answer([1.0, 0.0], prefix="r"), answer([1.0, 0.0]))
    with pytest.raises(Unanswered, match=r"lacks the item .q0001"):
        compared(task, answer([1.0]), answer([1.0, 0.0]))
    heavier = Answer((Item("q0000", 1.0, 2.0), Item("q0001", 0.0)), "accuracy", "higher")
    with pytest.raises(Unanswered, match="another weight"):
        compared(task, heavier, answer([1.0, 0.0]))


def test_a_failure_is_one_of_precision_with_the_figures_in_its_reason() -> None:
    figures = compared(Task(name="mine", command=("x",), drop=0.1), answer([0.0] * 40), answer([1.0] * 40))
    check = judged("onnx-int8", {"mine": figures}, ())
    assert check.of_precision
    assert "mine: accuracy 0 against 1 of the live model" in check.reasons[0] and "drop = 0.1" in check.reasons[0]


def test_what_could_not_be_run_counts_where_it_has_a_limit_alone() -> None:
    free, limited = TaskFigures(failed="no JSON"), TaskFigures(failed="no JSON", drop=0.1)
    assert judged("onnx", {"mine": free}, ("fix it",)).verdict is Verdict.PASSED
    check = judged("onnx", {"mine": limited}, ("fix it",))
    assert (check.verdict, check.remedy) == (Verdict.UNVERIFIED, "fix it")
    assert judged("onnx", {"mine": free}, ("fix it",), spoilt="it changed files").verdict is Verdict.FAILED


@pytest.mark.parametrize(("count", "gained", "lost"), [(40, 0.02, 0.1), (100, 0.01, 0.05), (1000, 0.0, 0.004), (200, 0.1, 0.1)])
def test_the_interval_of_right_and_wrong_answers_holds_the_truth_as_often_as_it_says(count: int, gained: float, lost: float) -> None:
    draw, held, worlds = random.Random(7), 0, 300
    for _ in range(worlds):
        pairs = [(0.0, 1.0) if (x := draw.random()) < gained else (1.0, 0.0) if x < gained + lost else (1.0, 1.0) for _ in range(count)]
        figures = compared(Task(name="m", command=("x",)), answer([pair[1] for pair in pairs]), answer([pair[0] for pair in pairs]))
        assert figures.interval is not None
        held += figures.interval[0] <= gained - lost <= figures.interval[1]
    assert held >= 0.95 * worlds - 2 * (0.95 * 0.05 * worlds) ** 0.5


def test_models_that_answer_alike_can_still_differ_by_what_so_few_items_hide() -> None:
    low, high = of_pairs(0, 0, 40)
    assert -low == pytest.approx(high)
    assert 0.08 < high < 0.1
    assert of_pairs(0, 0, 4000)[1] < 0.001
