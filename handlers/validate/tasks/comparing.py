"""An artifact's answers beside the live model's, item by item, and the verdict that follows. Pure.

Called by `stage`. The interval of the difference is that of `daemon.contract.advice.paired`, by the jackknife over items. Of scores that
are all 0 or 1 it is widened to that of Tango (Statistics in Medicine 17, 1998), which says how large a difference can be, and not only
whether there is one, also where the models differ on few items or on none. With a limit (`drop`), an artifact fails if the whole interval
of its loss is beyond it, and passes if the whole interval is within; between, and where there is no interval, the figure itself decides,
and is called undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import NormalDist

from daemon.contract import units
from daemon.contract.advice.paired import difference
from daemon.contract.faults.advice import quoted
from daemon.contract.jobs.figures import TaskFigures
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.contract.jobs.options import Task, Undecided
from handlers.validate.tasks.answers import RETRY, Answer, Unanswered

NORMAL = NormalDist().inv_cdf(0.975)


def measured(answer: Answer) -> TaskFigures:
    """The figures of an answer by itself."""
    figures = TaskFigures(metric=answer.metric, better=answer.better, value=answer.value, items=len(answer.items), digest=answer.digest)
    return figures.plus(metrics=dict(answer.metrics)) if answer.metrics else figures


def compared(task: Task, answer: Answer, live: Answer) -> TaskFigures:
    """The same beside the live model's. Raises Unanswered where both are not of the same items."""
    mine, theirs = ({item.id: item.weight for item in given.items} for given in (answer, live))
    if mine.keys() != theirs.keys():
        other = min(mine.keys() ^ theirs.keys())
        if other in mine:
            raise Unanswered(f"its items are not those of the live model, which lacks the item {quoted(other)}")
        raise Unanswered(f"its items are not those of the live model: it lacks the item {quoted(other)}")
    if heavier := next((name for name, weight in mine.items() if weight != theirs[name]), None):
        raise Unanswered(f"the item {quoted(heavier)} has another weight than for the live model")
    between = difference(task.name, live.rows, answer.rows)
    assert between is not None  # the same items, one of which counts
    interval = None if between.low is None or between.high is None else (between.low, between.high)
    if all(item.score in (0.0, 1.0) and item.weight == 1.0 for item in (*answer.items, *live.items)):
        pairs = [mine.score - theirs.score for mine, theirs in zip(answer.items, live.items, strict=True)]
        low, high = of_pairs(pairs.count(1.0), pairs.count(-1.0), len(pairs))
        interval = (min(low, interval[0]), max(high, interval[1])) if interval else (low, high)
    figures = measured(answer).plus(by_text={task.name: answer.rows}, live=live.value, difference=between.value, interval=interval)
    return figures if task.drop is None else figures.plus(drop=task.drop, undecided=_is_undecided(figures, task.drop))


def of_pairs(better: int, worse: int, count: int) -> tuple[float, float]:
    """The 95 % interval of (better − worse)/count, of `count` pairs of right and wrong answers: all differences that the score test with
    the most likely shares under them does not reject."""

    def far(difference: float) -> float:
        """The statistic of the test, which falls as the difference grows."""
        linear = (2 * count - better + worse) * difference - better - worse
        root = math.sqrt(max(0.0, linear**2 + 8 * count * worse * difference * (1 - difference)))
        share = (root - linear) / (4 * count)  # of pairs that got worse
        deviation = math.sqrt(max(0.0, count * (2 * share + difference * (1 - difference))))
        apart = better - worse - count * difference
        return apart / deviation if deviation else math.copysign(math.inf, apart) if apart else 0.0

    return _where(far, NORMAL), _where(far, -NORMAL)


def _where(falling: Callable[[float], float], value: float) -> float:
    low, high = -1.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > value else (low, middle)
    return (low + high) / 2


def _loss(figures: TaskFigures, value: float) -> float:
    """How much worse than the live model a difference is."""
    return -value if figures.better == "higher" else value


def _is_undecided(figures: TaskFigures, drop: float) -> bool:
    losses = sorted(_loss(figures, end) for end in figures.interval or ())
    return not losses or losses[0] <= drop < losses[1]


def judged(
    variant: str, figures: Mapping[str, TaskFigures], remedies: Iterable[str], *, spoilt: str = "", undecided: Undecided = "figure"
) -> ArtifactCheck:
    """The check of the user's tasks. `undecided`: what counts where the interval holds the limit. `remedies`: of what could not be run;
    `spoilt`: why the artifact can't be published any more."""
    lost = [_lost(name, each, undecided) for name, each in figures.items() if each.drop is not None and each.failed is None]
    lost = [reason for reason in lost if reason]
    unknown = [f"{name}: {each.failed}" for name, each in figures.items() if each.failed is not None and each.drop is not None]
    verdict = Verdict.FAILED if spoilt or lost else Verdict.UNVERIFIED if unknown else Verdict.PASSED
    reasons = {Verdict.FAILED: [spoilt] if spoilt else lost, Verdict.UNVERIFIED: unknown, Verdict.PASSED: []}[verdict]
    remedy = next(iter(remedies), RETRY) if verdict is Verdict.UNVERIFIED or spoilt else None
    return ArtifactCheck(
        variant=variant, verdict=verdict, reasons=tuple(reasons), of_precision=verdict is Verdict.FAILED and not spoilt, remedy=remedy,
        figures={"tasks": {name: each.written() for name, each in figures.items()}},
    )  # fmt: skip


def _lost(name: str, figures: TaskFigures, undecided: Undecided) -> str:
    """Why a task's limit is not kept; "" where it is."""
    assert figures.difference is not None and figures.drop is not None
    losses = sorted(_loss(figures, end) for end in figures.interval or ())
    loss = _loss(figures, figures.difference)
    beyond = {"figure": loss > figures.drop, "accept": False, "reject": True}[undecided] if figures.undecided else loss > figures.drop
    if not beyond:
        return ""
    span = f"{units.number(losses[0])} to {units.number(losses[1])}" if losses else "no interval"
    return (
        f"{name}: {figures.metric} {units.number(figures.value)} against {units.number(figures.live)} of the live model, worse by"
        f" {units.number(loss)} ({span}, {figures.items:,} items), more than drop = {figures.drop:g}"
    )
