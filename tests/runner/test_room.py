"""What runs at the same time: as much as threads, jobs and memory allow, and what never fits is told at once."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.running.rules.ready import verifying
from tests.runner.desk import Desks, done


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
    desk = make_desk(limits={"jobs": 2, "threads": 4})
    desk.script = lambda context: None
    for step in (1, 2, 3):
        desk.add(f"run{step}", step)
    desk.tick(3)
    assert desk.order() == ["run1-1", "run2-2"]
    assert [fake.context.limits.threads for fake in desk.fakes] == [2, 2]


def test_no_thread_is_given_twice_whatever_the_number_of_jobs(make_desk: Desks) -> None:
    desk = make_desk(limits={"jobs": 2, "threads": 1})
    desk.script = lambda context: None
    desk.add("one", 1)
    desk.add("two", 2)
    desk.tick(3)
    assert desk.order() == ["one-1"]
    waiting = desk.runner.waits.of["two-2"].fault
    assert (waiting.code, waiting.cause) == ("turn", "limits.threads allows no more stages together with one-1")


def test_what_measures_time_runs_alone_and_what_would_disturb_it_says_so(make_desk: Desks) -> None:
    desk = make_desk(limits={"jobs": 2, "threads": 4, "stages": 2})
    held: set[str] = {"two-2 merge"}

    def script(context: StageContext) -> StageResult | None:
        name = f"{context.checkpoint.run}-{context.checkpoint.step} {context.stage}"
        return None if name in held or context.stage == "speed" else done(context)

    desk.script = script
    desk.add("one", 1)
    desk.add("two", 2)
    desk.tick(20)
    assert "one-1 merged" in desk.started and "one-1 speed" not in desk.started, "the other export's merge still runs"
    waiting = desk.runner.waits.of["one-1"].fault
    assert (waiting.code, waiting.cause) == ("timing", "it measures speed, but other stages are still running")
    held.clear()
    desk.runner.waits.of["one-1"].until = 0
    desk.tick(1)
    assert "one-1 speed" in desk.started
    desk.runner.waits.end("two-2")
    before = list(desk.started)
    desk.tick(10)
    assert desk.started == before, "nothing starts beside a measurement"
    assert desk.runner.waits.of["two-2"].fault.cause == "another export is measuring the speed of its artifacts"


def test_what_waits_to_measure_time_does_not_hold_others_back_for_ever(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.running.starter.ALONE_SECONDS", 0.0)
    monkeypatch.setattr("daemon.running.starter.ALONE_LOOK_SECONDS", 0.0)
    desk = make_desk(limits={"jobs": 2, "threads": 4})
    desk.script = lambda context: None if context.checkpoint.run == "two" else done(context)
    desk.add("one", 1)
    desk.add("two", 2)
    desk.tick(20)
    assert "one-1 speed" in desk.started and desk.state("one-1") == "succeeded"


def test_a_stage_that_would_take_the_memory_promised_to_another_waits(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:  # R6.2
    gib = 1 << 30
    monkeypatch.setattr("daemon.system.box.memory", lambda: (4 * gib, int(0.9 * gib)))
    desk = make_desk(limits={"jobs": 2})
    desk.script = lambda context: None
    desk.add("one", 1)
    desk.add("two", 2)
    desk.tick(3)
    assert desk.order() == ["one-1"], "the merge asks for 512 MiB, and 0.9 GiB are free"
    fault = desk.runner.waits.of["two-2"].fault
    assert fault.code == "memory-now" and "512 MiB more are reserved for other stages" in fault.cause


def test_what_a_stage_really_took_decides_about_the_next_one(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:  # R6.2
    gib = 1 << 30
    desk = make_desk()
    desk.script = lambda context: done(context).model_copy(update={"peak_rss": 3 * gib})
    desk.add("run", 1)
    desk.tick(20)
    assert desk.state("run-1") == "succeeded"
    monkeypatch.setattr("daemon.system.box.memory", lambda: (64 * gib, 2 * gib))
    desk.add("run", 2)
    desk.tick(3)
    assert desk.order() == ["run-1"]
    assert "3.45 GiB" in desk.runner.waits.of["run-2"].fault.cause and desk.runner.waits.of["run-2"].fault.code == "memory-now"


def test_what_can_never_fit_fails_at_once_and_names_what_would(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:  # R6.2
    gib = 1 << 30
    monkeypatch.setattr("daemon.system.box.memory", lambda: (gib, gib))
    desk = make_desk()
    desk.add("run", 1, variants=("pytorch", "onnx"))
    desk.tick(20)
    assert desk.state("run-1") == "failed", "what pytorch made could not be compared either"
    fault = desk.journal.stages.of("run-1")["onnx"].fault
    assert fault is not None and fault.code == "memory-never"
    assert "1.17 GiB" in fault.cause and "pytorch would fit" in fault.remedy


def test_when_memory_runs_out_the_largest_child_ends_and_is_tried_again(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    desk = make_desk(limits={"jobs": 2, "memory_reserve": gib, "retry_seconds": 1000})
    desk.script = lambda context: None
    desk.add("one", 1)
    desk.add("two", 2)
    desk.tick(2)
    desk.fakes[0].memory, desk.fakes[1].memory = gib, 2 * gib
    monkeypatch.setattr("daemon.running.attempts.children.memory", lambda: (8 * gib, gib // 2))
    desk.tick(4)
    assert [fake.stopped for fake in desk.fakes] == [False, True]
    fault = desk.journal.stages.of("two-2")["merge"].fault
    assert fault is not None and fault.code == "memory-pressure" and "512 MiB of the machine's memory were left" in fault.cause


def test_attempts_elsewhere_take_no_threads_of_this_box_and_those_here_still_do(make_desk: Desks) -> None:
    desk = make_desk(limits={"threads": 4, "stages": 4})
    desk.elsewhere("onnx")
    desk.script = lambda context: done(context) if context.stage == "merge" else None
    desk.add("run", 1, variants=("pytorch", "onnx", "onnx-fp16"))
    desk.tick(5)
    threads = {fake.context.stage: fake.context.limits.threads for fake in desk.fakes}
    assert threads["onnx"] == 4, "it shares no box with the others"
    here = [count for stage, count in threads.items() if stage in ("pytorch", "reference")]
    assert len(here) == 2 and desk.runner.children.threads() == sum(here)


def test_attempts_elsewhere_take_no_memory_of_this_box_and_those_here_still_do(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    monkeypatch.setattr("daemon.system.box.memory", lambda: (4 * gib, int(0.9 * gib)))
    desk = make_desk(limits={"jobs": 3, "threads": 16})
    desk.elsewhere("merge")
    desk.script = lambda context: None
    for step in (1, 2):
        desk.add(f"run{step}", step)
    desk.tick(3)
    assert desk.order() == ["run1-1", "run2-2"], "each merge asks for 512 MiB, of another box"
    promised = desk.runner.children.reserved()
    assert promised.memory == 0 and promised.disk == sum(one.estimate.disk for one in desk.runner.children.running.values())
    assert [one.estimate.memory for one in desk.runner.children.running.values()] == [512 << 20] * 2, "the estimate is kept for the record"
    desk.elsewhere()
    monkeypatch.setattr(desk.runner.children, "threads", lambda job="": 0)  # an attempt elsewhere may have as many as here there are
    assert desk.runner.children.reserved().memory == gib
    desk.add("run3", 3)
    desk.tick(3)
    assert desk.order() == ["run1-1", "run2-2"]
    assert desk.runner.waits.of["run3-3"].fault.code == "memory-now"


def test_a_stage_that_could_never_run_here_starts_elsewhere(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    monkeypatch.setattr("daemon.system.box.memory", lambda: (gib, gib))
    desk = make_desk()
    desk.elsewhere("onnx")
    desk.add("run", 1, variants=("pytorch", "onnx"))
    desk.tick(20)
    assert desk.journal.stages.of("run-1")["onnx"].state == "succeeded"
    assert "memory-never" in {row.fault.code for row in desk.journal.stages.of("run-1").values() if row.fault}, "others still need it here"


def test_a_look_at_what_is_finished_does_not_begin_a_wait_anew(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = make_desk().runner.waits
    broken, now = Fault(code="disk-full", operation="publish", cause="it is full", remedy="free space"), [100.0]
    monkeypatch.setattr("daemon.running.waits.time.monotonic", lambda: now[0])
    with capture_logs() as logs:
        for _ in range(3):
            waits.add("job", broken, 15)
            waits.add("job", verifying(), 0)
            now[0] += 20
        waits.add("job", broken, 15)
    assert waits.of["job"].since == 100.0 and waits.of["job"].is_long
    assert len(logs) == 1, "said once"


def test_what_keeps_a_stage_from_starting_again_and_again_is_told_since_the_first_time(make_desk: Desks) -> None:
    """An export in the foreground ends with the error after some patience, which each try used to begin anew."""
    desk = make_desk()
    desk.add("run", 1)
    desk.tick(0)
    (desk.runner.children._paths.jobs / "run-1").write_text("no folder")
    with capture_logs() as logs:
        desk.tick(2)
        first = desk.runner.waits.of["run-1"]
        first.until = 0
        desk.tick(2)
    second = desk.runner.waits.of["run-1"]
    assert second is not first and (second.since, second.fault) == (first.since, first.fault)
    assert "make the folders of stage merge" in second.fault.operation and desk.started == []
    assert len([entry for entry in logs if "make the folders" in entry["event"]]) == 1, "and once"
