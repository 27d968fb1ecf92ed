"""Who comes next: runs take turns, people can pause, cancel and prefer, and a busy box makes jobs wait, not fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from daemon.contract import ArtifactCheck, CheckpointRef, FileEntry, Outcome, StageContext, StageResult, Verdict
from daemon.durable import seal
from daemon.errors import Fault
from daemon.journal import Journal
from daemon.paths import prepare
from daemon.runner import Runner
from daemon.settings import Settings
from daemon.worker import Bounds, Progress
from handlers.plan import plan

Script = Callable[[StageContext], StageResult | None]


class Process:
    """What the runner asks of a child's process."""

    pid = 1


@dataclass
class Fake:
    """An attempt in this process: `script` says how it ends, None while it runs."""

    context: StageContext
    script: Script
    progress: Progress = field(default_factory=Progress)
    warnings: list[str] = field(default_factory=list)
    memory: int = 0
    peak: int = 0
    ended: bool = False
    process_started: float = 0.0
    started: float = 0.0
    pipe: int = -1
    stopped: bool = False
    process: Process = field(default_factory=Process)
    fault: Fault | None = None

    def poll(self) -> StageResult | None:
        if self.stopped:
            outcome = Outcome.RETRYABLE if self.fault else Outcome.INTERRUPTED
            return StageResult(outcome=outcome, fault=self.fault)
        return self.script(self.context)

    def stop(self, fault: Fault | None = None) -> None:
        self.stopped, self.fault = True, fault

    def hurry(self) -> None:
        self.stopped = True


@dataclass
class Desk:
    """A runner whose children are fakes; `started` names every attempt in order."""

    runner: Runner
    journal: Journal
    home: Path
    started: list[str] = field(default_factory=list)
    script: Script = lambda context: done(context)
    fakes: list[Fake] = field(default_factory=list)

    def spawn(self, context: StageContext, folder: Path, bounds: Bounds) -> Any:
        self.started.append(f"{context.checkpoint.run}-{context.checkpoint.step} {context.stage}")
        self.fakes.append(Fake(context, lambda one: self.script(one)))
        return self.fakes[-1]

    def add(self, run: str, step: int, *, latest: bool = False, variants: tuple[str, ...] = ("pytorch",)) -> str:
        reference = CheckpointRef(
            root="/root", run=run, step=step, path=f"/root/{run}/checkpoint-{step}", layout="trainer-adapter", digest=f"{run}{step}",
            method="full",
        )  # fmt: skip
        name = f"{run}-{step}"
        pin = self.runner.paths.pins / name
        pin.mkdir()
        work = self.runner.settings.work
        work = work.model_copy(update={"export": work.export.model_copy(update={"variants": variants})})
        self.journal.add_job(
            name, reference, work, [spec.name for spec in plan(variants)], pin=pin, target=self.home / "out" / name, fingerprint="f",
            supersede=latest,
        )  # fmt: skip
        return name

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.runner.tick()
            time.sleep(0.002)

    def state(self, job: str) -> str:
        row = self.journal.job(job)
        assert row is not None
        return row.state

    def order(self, stage: str = "merge") -> list[str]:
        return [line.split()[0] for line in self.started if line.endswith(f" {stage}")]


def done(context: StageContext) -> StageResult:
    """The attempt has succeeded and written one file."""
    staging = Path(context.staging)
    (staging / "file").write_text(context.stage + context.checkpoint.digest)
    files: tuple[FileEntry, ...] = seal(staging)
    checks = tuple(ArtifactCheck(variant=name, verdict=Verdict.PASSED) for name in context.inputs if name != "merge")
    return StageResult(outcome=Outcome.SUCCEEDED, files=files, checks=checks if context.stage == "validate" else ())


def failing(context: StageContext) -> StageResult:
    fault = Fault(code="broken", operation="do it", cause="it is broken", remedy="mend it")
    return StageResult(outcome=Outcome.RETRYABLE, fault=fault)


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    journals: list[Journal] = []

    def make(**sections: dict[str, Any]) -> Desk:
        home = tmp_path / f"desk-{len(journals)}"
        settings = Settings.model_validate(
            {**sections, "limits": {"disk_reserve": 0, "memory_fraction": 1, **sections.get("limits", {})}, "state": {"directory": home}}
        )
        journal = Journal(prepare(home, home / "out").journal)
        journals.append(journal)
        desk: Desk

        def spawn(context: StageContext, folder: Path, bounds: Bounds) -> Any:
            return desk.spawn(context, folder, bounds)

        desk = Desk(Runner(settings, journal, prepare(home, home / "out"), spawn=spawn), journal, home)
        return desk

    yield make
    for journal in journals:
        journal.close()


Desks = Callable[..., Desk]


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
    assert desk.journal.prefer_job("run-3")
    desk.tick(60)
    assert desk.order() == ["run-3", "run-1", "run-2"]


def test_a_paused_queue_starts_nothing_and_finishes_what_runs(make_desk: Desks) -> None:
    desk = make_desk()
    desk.script = lambda context: None
    desk.add("run", 1)
    desk.tick()
    assert desk.started == ["run-1 merge"]
    assert desk.journal.pause_all(True) and not desk.journal.pause_all(True)
    desk.script = done
    desk.add("run", 2)
    desk.tick(5)
    assert desk.started == ["run-1 merge"]
    assert desk.journal.stages("run-1")["merge"].state == "succeeded"
    assert desk.journal.pause_all(False)
    desk.tick(40)
    assert desk.state("run-1") == desk.state("run-2") == "succeeded"


def test_a_paused_job_lets_the_others_pass(make_desk: Desks) -> None:
    desk = make_desk()
    desk.add("run", 1)
    desk.add("run", 2)
    assert desk.journal.pause_job("run-1", True)
    desk.tick(40)
    assert desk.state("run-2") == "succeeded" and desk.order() == ["run-2"]
    desk.journal.pause_job("run-1", False)
    desk.tick(40)
    assert desk.state("run-1") == "succeeded"


def test_cancelling_a_running_job_ends_its_child_and_leaves_nothing_but_its_record(make_desk: Desks) -> None:
    desk = make_desk()
    desk.script = lambda context: None
    desk.add("run", 1)
    desk.add("run", 2)
    desk.tick()
    assert desk.journal.cancel_job("run-1", "by hand")
    desk.tick(2)
    assert desk.fakes[0].stopped
    desk.script = done
    desk.tick(40)
    assert desk.state("run-1") == "cancelled" and desk.state("run-2") == "succeeded"
    assert not (desk.runner.paths.pins / "run-1").exists() and not (desk.runner.paths.staging / "run-1").exists()
    assert desk.journal.untidy_jobs() == []


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
    assert len(desk.journal.running_jobs()) == 1 + 3


def test_after_the_last_attempt_the_job_is_set_aside_with_what_a_person_needs(make_desk: Desks) -> None:  # R6.4
    desk = make_desk(limits={"retry_seconds": 0, "attempts": 3})
    desk.script = lambda context: failing(context) if context.stage == "merge" else done(context)
    desk.add("bad", 1)
    desk.tick(40)
    assert desk.state("bad-1") == "failed"
    fault = desk.journal.stages("bad-1")["merge"].fault
    assert fault is not None and "attempt 3 of 3" in fault.cause and fault.remedy == "mend it"


def test_stages_of_one_job_run_side_by_side_where_threads_allow_it(make_desk: Desks) -> None:
    desk = make_desk(limits={"threads": 4, "stages": 2})
    desk.script = lambda context: done(context) if context.stage == "merge" else None
    desk.add("run", 1, variants=("pytorch", "onnx"))
    desk.tick(5)
    assert desk.started == ["run-1 merge", "run-1 pytorch", "run-1 onnx"]
    threads = {fake.context.stage: fake.context.limits.threads for fake in desk.fakes}
    assert threads == {"merge": 4, "pytorch": 1, "onnx": 3}


def test_with_one_thread_the_stages_of_a_job_follow_each_other(make_desk: Desks) -> None:
    desk = make_desk(limits={"threads": 1, "stages": 2})
    desk.script = lambda context: done(context) if context.stage == "merge" else None
    desk.add("run", 1, variants=("pytorch", "onnx"))
    desk.tick(5)
    assert desk.started == ["run-1 merge", "run-1 pytorch"]


def test_several_jobs_run_at_once_if_that_is_allowed(make_desk: Desks) -> None:
    desk = make_desk(limits={"jobs": 2, "threads": 1})
    desk.script = lambda context: None
    for step in (1, 2, 3):
        desk.add(f"run{step}", step)
    desk.tick(3)
    assert desk.order() == ["run1-1", "run2-2"]


def test_a_stage_that_would_take_the_memory_promised_to_another_waits(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:  # R6.2
    gib = 1 << 30
    monkeypatch.setattr("daemon.resources.memory", lambda: (4 * gib, int(0.9 * gib)))
    desk = make_desk(limits={"jobs": 2})
    desk.script = lambda context: None
    desk.add("one", 1)
    desk.add("two", 2)
    desk.tick(3)
    assert desk.order() == ["one-1"], "the merge asks for 512 MiB, and 0.9 GiB are free"
    fault = desk.runner.waits.of["two-2"].fault
    assert fault.code == "memory-now" and "512.0 MiB more are promised to other stages" in fault.cause


def test_what_a_stage_really_took_decides_about_the_next_one(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:  # R6.2
    gib = 1 << 30
    desk = make_desk()
    desk.script = lambda context: done(context).model_copy(update={"peak_rss": 3 * gib})
    desk.add("run", 1)
    desk.tick(20)
    assert desk.state("run-1") == "succeeded"
    monkeypatch.setattr("daemon.resources.memory", lambda: (64 * gib, 2 * gib))
    desk.add("run", 2)
    desk.tick(3)
    assert desk.order() == ["run-1"]
    assert "3.4 GiB" in desk.runner.waits.of["run-2"].fault.cause and desk.runner.waits.of["run-2"].fault.code == "memory-now"


def test_what_can_never_fit_fails_at_once_and_names_what_would(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:  # R6.2
    gib = 1 << 30
    monkeypatch.setattr("daemon.resources.memory", lambda: (gib, gib))
    desk = make_desk()
    desk.add("run", 1, variants=("pytorch", "onnx"))
    desk.tick(20)
    assert desk.state("run-1") == "partial"
    fault = desk.journal.stages("run-1")["onnx"].fault
    assert fault is not None and fault.code == "memory-never"
    assert "1.2 GiB" in fault.cause and "pytorch would fit" in fault.remedy


def test_when_memory_runs_out_the_largest_child_ends_and_is_tried_again(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    desk = make_desk(limits={"jobs": 2, "memory_reserve": gib, "retry_seconds": 1000})
    desk.script = lambda context: None
    desk.add("one", 1)
    desk.add("two", 2)
    desk.tick(2)
    desk.fakes[0].memory, desk.fakes[1].memory = gib, 2 * gib
    monkeypatch.setattr("daemon.running.children.memory", lambda: (8 * gib, gib // 2))
    desk.tick(4)
    assert [fake.stopped for fake in desk.fakes] == [False, True]
    fault = desk.journal.stages("two-2")["merge"].fault
    assert fault is not None and fault.code == "memory-pressure" and "512.0 MiB of the box's memory were left" in fault.cause


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
