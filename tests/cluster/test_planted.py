"""Executors that are wrong in the ways in which others are: the contract finds each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.processes import elsewhere
from daemon.running.cluster.attempt import ClusterAttempt
from daemon.running.cluster.course import Act, Course
from daemon.running.cluster.executor import ClusterExecutor
from daemon.running.cluster.link import Link
from daemon.running.cluster.port import ABSENT, NOT_SEEN, State
from tests.cluster import bench as benches
from tests.cluster import contract, failures
from tests.cluster.bench import Bench

Plant = Callable[[pytest.MonkeyPatch], None]


def takes_gone_for_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Course, "_is_lost", lambda course, now: course._gone_at is not None)


def takes_the_last_words_for_all(patch: pytest.MonkeyPatch) -> None:
    step = Course.step

    def wrong(course: Course, now: float, signs: Any, sighting: Any) -> list[Act]:
        course.late = 0.0
        return step(course, now, signs, sighting)

    patch.setattr(Course, "step", wrong)


def takes_no_answer_for_gone(patch: pytest.MonkeyPatch) -> None:
    advance = ClusterAttempt.advance

    def wrong(attempt: ClusterAttempt, signs: Any) -> None:
        if attempt.sighting is NOT_SEEN and attempt.course.begun_at is not None:
            attempt.sighting = ABSENT
        advance(attempt, signs)

    patch.setattr(ClusterAttempt, "advance", wrong)
    patch.setattr(Course, "_is_lost", lambda course, now: course._gone_at is not None and course.sighting.state is State.GONE)


def submits_again_where_the_answer_was_lost(patch: pytest.MonkeyPatch) -> None:
    submit = Link._submit

    def wrong(link: Link, attempt: ClusterAttempt) -> None:
        submit(link, attempt)
        if attempt.orders.submission == "asked":
            attempt.note(submission="none")

    patch.setattr(Link, "_submit", wrong)


def does_not_fence(patch: pytest.MonkeyPatch) -> None:
    do = ClusterAttempt._do
    patch.setattr(ClusterAttempt, "_do", lambda attempt, act: None if act is Act.FENCE else do(attempt, act))


def takes_back_without_a_claim(patch: pytest.MonkeyPatch) -> None:
    take = elsewhere.take

    def wrong(folder: Path, claim: elsewhere.Claim) -> bool:
        if claim.by == "worker":
            return take(folder, claim)
        (folder / "job.json").touch()
        return True

    patch.setattr(elsewhere, "take", wrong)


def forgets_what_an_earlier_daemon_handed_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterExecutor, "reclaim", lambda executor, id, folder, bounds: None)


PLANTED: list[tuple[Plant, Callable[[Bench], None]]] = [
    (takes_the_last_words_for_all, failures.a_result_that_is_seen_late_counts),
    (takes_gone_for_done, failures.a_job_that_its_scheduler_forgot_goes_on_while_it_is_heard),
    (takes_no_answer_for_gone, failures.a_scheduler_that_gives_no_answer_ends_nothing),
    (submits_again_where_the_answer_was_lost, failures.an_answer_that_was_lost_submits_nothing_twice),
    (does_not_fence, failures.a_zombie_is_fenced),
    (takes_back_without_a_claim, failures.what_waits_and_is_stopped_never_begins),
    (forgets_what_an_earlier_daemon_handed_in, contract.a_daemon_that_starts_again_goes_on_with_what_runs),
]


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "promise"), PLANTED, ids=lambda value: value.__name__)
def test_the_contract_finds(plant: Plant, promise: Callable[[Bench], None], bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(benches, "PATIENCE", 6.0)
    with pytest.raises(AssertionError):
        promise(bench)
