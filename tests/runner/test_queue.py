"""Who comes next: runs take turns, people can pause, cancel and prefer, and a job that waits or fails does not hold up others."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import ArtifactCheck, StageContext, StageResult, Verdict
from daemon.operating.monitoring.live import starved_sentences
from daemon.running.attempts.executor import CpuShare, Order
from daemon.system.processes.rivals import Rival
from tests.runner.desk import Desk, Desks, Fake, done, failing


def test_runs_take_turns_so_that_a_noisy_one_starves_nobody(make_desk: Desks) -> None:  # R6.6
    desk = make_desk()
    for step in range(1, 6):
        desk.add("noisy", step)
    desk.add("quiet", 1)
    desk.add("calm", 1)
    desk.tick(80)
    assert desk.order()[:3] == ["noisy-1", "quiet-1", "calm-1"]
    assert desk.order()[3:] == [f"noisy-{step}" for step in range(2, 6)]


def test_with_latest_the_newest_checkpoint_of_a_run_comes_first(make_desk: Desks) -> None:  # R6.6
    desk = make_desk()
    desk.script = lambda context: None
    desk.add("other", 1)
    desk.tick()
    for step in (10, 30, 20):
        desk.add("run", step, latest=True)
    desk.script = done
    desk.tick(40)
    assert desk.order() == ["other-1", "run-30"]
    assert desk.state("run-10") == desk.state("run-20") == "superseded"


def test_a_preferred_job_comes_before_all_others(make_desk: Desks) -> None:
    desk = make_desk()
    for step in (1, 2, 3):
        desk.add("run", step)
    assert desk.journal.controls.prefer("run-3")
    desk.tick(60)
    assert desk.order() == ["run-3", "run-1", "run-2"]


def test_a_paused_queue_starts_nothing_and_finishes_what_runs(make_desk: Desks) -> None:
    desk = make_desk()
    desk.script = lambda context: None
    desk.add("run", 1)
    desk.tick()
    assert desk.started == ["run-1 merge"]
    assert desk.journal.controls.pause_all(True) and not desk.journal.controls.pause_all(True)
    desk.script = done
    desk.add("run", 2)
    desk.tick(5)
    assert desk.started == ["run-1 merge"]
    assert desk.journal.stages.of("run-1")["merge"].state == "succeeded"
    assert desk.journal.controls.pause_all(False)
    desk.tick(40)
    assert desk.state("run-1") == desk.state("run-2") == "succeeded"


def test_a_paused_job_lets_the_others_pass(make_desk: Desks) -> None:
    desk = make_desk()
    desk.add("run", 1)
    desk.add("run", 2)
    assert desk.journal.controls.pause("run-1", True)
    desk.tick(40)
    assert desk.state("run-2") == "succeeded" and desk.order() == ["run-2"]
    desk.journal.controls.pause("run-1", False)
    desk.tick(40)
    assert desk.state("run-1") == "succeeded"


def test_cancelling_a_running_job_ends_its_child_and_leaves_nothing_but_its_record(make_desk: Desks) -> None:
    desk = make_desk()
    desk.script = lambda context: None
    desk.add("run", 1)
    desk.add("run", 2)
    desk.tick()
    assert desk.journal.controls.cancel("run-1", "by hand")
    desk.tick(2)
    assert desk.fakes[0].stopped
    desk.script = done
    desk.tick(40)
    assert desk.state("run-1") == "cancelled" and desk.state("run-2") == "succeeded"
    assert not (desk.runner.paths.pins / "run-1").exists() and not (desk.runner.paths.staging / "run-1").exists()
    assert desk.journal.jobs.untidy() == []


def test_a_job_that_waits_for_its_next_attempt_does_not_hold_up_others(make_desk: Desks) -> None:  # R6.4
    desk = make_desk(limits={"retry_seconds": 1000})
    desk.script = lambda context: failing(context) if context.checkpoint.run == "bad" else done(context)
    desk.add("bad", 1)
    desk.add("good", 1)
    desk.tick(40)
    assert desk.state("bad-1") == "running" and desk.state("good-1") == "succeeded"


def test_jobs_that_wait_are_not_joined_by_ever_more(make_desk: Desks) -> None:
    desk = make_desk(limits={"retry_seconds": 1000})
    desk.script = failing
    for step in range(1, 30):
        desk.add("bad", step)
    desk.tick(60)
    assert len(desk.journal.jobs.running()) == 1 + 3


def test_after_the_last_attempt_the_job_is_set_aside_with_what_a_person_needs(make_desk: Desks) -> None:  # R6.4
    desk = make_desk(limits={"retry_seconds": 0, "attempts": 3})
    desk.script = lambda context: failing(context) if context.stage == "merge" else done(context)
    desk.add("bad", 1)
    desk.tick(40)
    assert desk.state("bad-1") == "failed"
    fault = desk.journal.stages.of("bad-1")["merge"].fault
    assert fault is not None and "attempt 3 of 3" in fault.cause and fault.remedy == "mend it"


def test_an_error_in_one_job_does_not_keep_the_others_from_going_on(make_desk: Desks) -> None:  # R6.4
    desk = make_desk()
    desk.add("bad", 1)
    desk.add("good", 1)
    desk.journal.database.write("test", lambda c: c.execute("UPDATE job SET pin = '/dev/null/x' WHERE id = 'bad-1'"))
    desk.tick(40)
    assert desk.state("good-1") == "succeeded"


def test_with_a_hundred_thousand_jobs_waiting_a_round_reads_only_a_few(make_desk: Desks) -> None:
    desk = make_desk()
    desk.script = lambda context: None
    desk.add("run", 1)

    def fill(c: Any) -> None:
        c.execute(
            "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)"
            " INSERT INTO job (id, identity, work_digest, root, run, step, checkpoint, work, pin, target, created)"
            " SELECT 'run-' || i, 'x' || i, 'w', root, run || (i % 50), i, checkpoint, work, pin, target, created"
            " FROM n, job WHERE id = 'run-1'"
        )

    desk.journal.database.write("fill", fill)
    read: list[str] = []
    original = desk.journal.database.read
    desk.journal.database.read = lambda statement, *values: read.append(statement) or original(statement, *values)  # type: ignore
    desk.tick(3)
    assert not any("state IN ('running', 'pending')" in statement for statement in read), "not all open jobs in each round"
    assert desk.order() == ["run-1"]


@pytest.mark.parametrize(("priority", "nice", "idle"), [("idle", 19, True), ("low", 10, False), ("normal", 0, False)])
def test_children_get_the_priority_that_is_configured(
    make_desk: Desks, priority: str, nice: int, idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CKPTD_LIMITS__PRIORITY")
    desk = make_desk(limits={"priority": priority})
    desk.add("run", 1)
    desk.tick(3)
    assert (desk.fakes[0].context.limits.nice, desk.fakes[0].context.limits.idle) == (nice, idle)


def test_an_executor_that_can_not_start_an_attempt_for_a_reason_of_its_own_is_not_asked_for_ever(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make_desk(limits={"retry_seconds": 0, "attempts": 3, "jobs": 2})
    start, tries = desk.start, list[int]()

    def refuse(order: Order) -> Fake:
        if order.context.checkpoint.run != "bad":
            return start(order)
        tries.append(order.context.attempt)
        raise RuntimeError("the queue speaks another version")

    monkeypatch.setattr(desk, "start", refuse)
    desk.add("bad", 1)
    desk.add("good", 1)
    desk.tick(60)
    fault = desk.journal.stages.of("bad-1")["merge"].fault
    assert fault is not None and fault.code == "unexpected" and "the queue speaks another version" in fault.cause
    assert tries[:3] == [1, 2, 3] and "attempt 3 of 3" in fault.cause
    assert desk.state("good-1") == "succeeded"


def _failed_and_retried(desk: Desk) -> str:
    """A job that fails by the desk's script, and is tried again with all stages in order; its id."""
    job = desk.add("run", 1)
    desk.tick(60)
    assert desk.state(job) == "failed"
    desk.script = done
    (desk.runner.paths.pins / job).mkdir(exist_ok=True)
    assert desk.journal.jobs.retry(job)
    for _ in range(40):
        desk.tick()
        time.sleep(0.02)
    return job


@pytest.mark.parametrize("of_precision", [True, False])
def test_an_artifact_that_is_wrong_is_made_and_checked_again_after_a_retry(make_desk: Desks, of_precision: bool) -> None:
    desk = make_desk()

    def wrong(context: StageContext) -> StageResult:
        check = ArtifactCheck(variant="pytorch", verdict=Verdict.FAILED, reasons=("its weights differ",), of_precision=of_precision)
        return done(context).model_copy(update={"checks": (check,)}) if context.stage == "merged" else done(context)

    desk.script = wrong
    job = _failed_and_retried(desk)
    assert len(desk.order("merge")) == 1
    assert len(desk.order("pytorch")) == len(desk.order("merged")) == (1 if of_precision else 2)
    assert desk.state(job) == ("failed" if of_precision else "succeeded")


@pytest.mark.parametrize("reusable", [True, False])
def test_what_the_box_may_have_decided_is_asked_again_after_a_retry(make_desk: Desks, reusable: bool) -> None:
    desk = make_desk()

    def killed(context: StageContext) -> StageResult:
        result = done(context)
        if context.stage != "merged":
            return result
        check = ArtifactCheck(variant="pytorch", verdict=Verdict.FAILED, reasons=("it diverges",), of_precision=True)
        return result.model_copy(update={"checks": (check,), "reusable": reusable})

    desk.script = killed
    job = _failed_and_retried(desk)
    assert desk.order("merge") == ["run-1"], "what the inputs alone decide is used again"
    assert len(desk.order("merged")) == (1 if reusable else 2)
    assert desk.state(job) == ("failed" if reusable else "succeeded")


def test_an_executor_that_fails_at_one_attempt_does_not_keep_the_others_from_going_on(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.running.starter.ALONE_SECONDS", 0.0)
    monkeypatch.setattr("daemon.running.starter.ALONE_LOOK_SECONDS", 0.0)
    desk = make_desk(limits={"retry_seconds": 0, "attempts": 2, "jobs": 2})
    broken = [True]

    def script(context: StageContext) -> StageResult | None:
        if context.checkpoint.run == "bad" and broken:
            raise OSError("the queue is out of reach")
        return done(context)

    desk.script = script
    bad, good = desk.add("bad", 1), desk.add("good", 1)
    desk.tick(40)
    assert desk.state(good) == "succeeded" and desk.state(bad) == "running"
    broken.clear()
    desk.tick(40)
    assert desk.state(bad) == "succeeded" and desk.order().count("bad-1") == 1, "what came within reach again goes on"
    broken.append(True)
    lost = desk.add("bad", 2)
    desk.tick(5)
    monkeypatch.setattr("daemon.running.attempts.children.NO_ANSWER_SECONDS", 0.0)
    desk.tick(40)
    fault = desk.journal.stages.of(lost)["merge"].fault
    assert desk.state(lost) != "running" and fault is not None and "the queue is out of reach" in fault.cause


def test_no_other_attempt_goes_on_in_the_folder_of_one_that_was_lost(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.running.attempts.children.NO_ANSWER_SECONDS", 0.0)
    monkeypatch.setattr("daemon.running.starter.ALONE_SECONDS", 0.0)
    monkeypatch.setattr("daemon.running.starter.ALONE_LOOK_SECONDS", 0.0)
    desk = make_desk(limits={"retry_seconds": 0})
    begun: list[list[str]] = []

    def script(context: StageContext) -> StageResult | None:
        if context.stage != "merge" or len(begun) > 1:
            return done(context)
        staging = Path(context.staging)
        begun.append([path.name for path in staging.iterdir()])
        if len(begun) > 1:
            return done(context)
        (staging / "half").touch()
        raise OSError("the queue is out of reach")

    desk.script = script
    job = desk.add("run", 1)
    desk.tick(40)
    assert desk.state(job) == "succeeded"
    assert begun == [[], []] and desk.fakes[0].stopped


class Broken(list[str]):
    """Warnings that can't be had."""

    def __getitem__(self, _: object) -> str:  # type: ignore[override]
        raise RuntimeError("the queue is out of reach")


def test_what_can_not_be_found_out_about_one_attempt_keeps_no_other_waiting_and_is_told(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.running.starter.ALONE_SECONDS", 0.0)
    monkeypatch.setattr("daemon.running.starter.ALONE_LOOK_SECONDS", 0.0)
    desk = make_desk(limits={"jobs": 2})
    ended: list[bool] = []
    desk.script = lambda context: done(context) if ended or context.checkpoint.run == "good" else None
    bad = desk.add("bad", 1)
    desk.tick()
    desk.fakes[0].warnings = Broken()
    good = desk.add("good", 1)
    desk.tick(40)
    assert desk.state(good) == "succeeded" and desk.state(bad) == "running" and desk.runner.children.unheard() == []
    monkeypatch.setattr("daemon.running.attempts.children.UNHEARD_SECONDS", 0.0)
    assert [f"the stage merge of {bad}" in one for one in desk.runner.children.unheard()] == [True]
    desk.fakes[0].warnings = []
    ended.append(True)
    desk.tick(40)
    assert desk.state(bad) == "succeeded" and desk.runner.children.unheard() == []


def test_a_job_is_cancelled_although_what_runs_it_can_not_be_told(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.running.starter.ALONE_SECONDS", 0.0)
    monkeypatch.setattr("daemon.running.starter.ALONE_LOOK_SECONDS", 0.0)
    desk = make_desk(limits={"jobs": 2})
    refused = [True]

    def refuse(fake: Fake, fault: Fault | None = None) -> None:
        if refused:
            raise RuntimeError("the queue is out of reach")
        fake.stopped = True

    monkeypatch.setattr(Fake, "stop", refuse)
    desk.script = lambda context: None if context.checkpoint.run == "bad" else done(context)
    bad = desk.add("bad", 1)
    desk.tick(2)
    desk.journal.controls.cancel(bad, "by hand")
    good = desk.add("good", 1)
    desk.tick(40)
    assert desk.state(good) == "succeeded" and desk.runner.children.of(bad), "it still runs"
    refused.clear()
    desk.tick(3)
    assert not desk.runner.children.running


@pytest.mark.parametrize(
    "error", [OSError(errno.EAGAIN, "Resource temporarily unavailable"), OSError(errno.ENOMEM, "no memory"), MemoryError()]
)
def test_a_box_without_room_for_a_process_costs_no_stage_its_attempts(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    desk = make_desk(limits={"retry_seconds": 0, "attempts": 2})
    start, refused = desk.start, list[int]()

    def refuse(order: Order) -> Fake:
        if len(refused) < 6:
            refused.append(1)
            raise error
        return start(order)

    monkeypatch.setattr(desk, "start", refuse)
    job = desk.add("run", 1)
    desk.tick(60)
    assert len(refused) == 6 and desk.state(job) == "succeeded"
    fault = desk.journal.attempts.of(job)[0].fault
    assert fault is not None and fault.code == "no-process" and "continues automatically" in fault.remedy


def test_an_attempt_that_is_starved_for_minutes_is_told_and_a_moment_with_its_share_does_not_end_that(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("daemon.running.attempts.children.time", SimpleNamespace(monotonic=lambda: clock[0]))
    desk = make_desk()
    desk.script = lambda context: None
    job = desk.add("run", 1)
    desk.tick()

    def sentences(got: float, seconds: float) -> list[str]:
        desk.fakes[0].cpu = CpuShare(got, 1.0)
        clock[0] += seconds
        desk.tick()
        return starved_sentences(desk.runner)

    assert sentences(0.1, 0) == [] and sentences(0.1, 170) == [], "not yet for minutes"
    assert sentences(0.9, 5) == [] and sentences(0.1, 5) != []
    (sentence,) = sentences(0.1, 60)
    assert sentence.startswith(f"For 4 min the stage merge of {job} gets 10 % of a core and could use 100 %")
    assert "limits.priority" in sentence, "the key that decides"
    desk.runner.children.rivals.seen = (Rival("python3", "alice", 7, 1, 1.8), Rival("stress", "1001", 9, 2, 0.95))
    (sentence,) = sentences(0.1, 1)
    assert ": the rest goes to python3 (user alice, pid 7) 180 % and stress (user 1001, 2 processes, most by pid 9) 95 %" in sentence
    sentences(0.9, 1)
    assert sentences(0.9, 40) == [] and sentences(0.1, 1) == [], "it has had its share again"
