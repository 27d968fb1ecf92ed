"""Whatever a child does, its attempt ends with an outcome that names the cause."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.disk.attempt_log import AttemptLog
from daemon.contract.faults.errors import DISK_RETRY_SECONDS, Fault
from daemon.contract.jobs.messages import Outcome
from daemon.running.attempts import post_mortem
from daemon.system.processes import procfs
from tests.workers.helpers import Start, fault_of, make_context, until, wait


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("segfault", "crashed", "SIGSEGV"),
        ("abort", "crashed", "SIGABRT"),
        ("exit_137", "exit-137", "SIGKILL"),
        ("exit_3", "no-result", "exit code 3"),
        ("no_result", "no-result", "exit code 0"),
        ("garbage_result", "bad-result", "not JSON"),
        ("truncated_result", "bad-result", "truncated"),
        ("other_contract", "bad-result", "version 99"),
        ("other_files", "bad-result", "model.safetensors, which is not in its folder"),
        ("killed", "killed", "SIGKILL"),
        ("python_exception", "no-result", "exit code 1"),
        ("disk_full", "disk-full", "disk is full"),
    ],
)
def test_each_way_to_die_has_its_own_name(start: Start, case: str, code: str, words: str) -> None:  # R6.4
    fault = fault_of(wait(start(case)))
    assert fault.code == code
    assert words in fault.cause
    assert fault.remedy
    assert fault.path is not None and fault.path.endswith("log.txt")


def test_a_crash_brings_the_python_stack_along(start: Start) -> None:  # R6.4
    details = fault_of(wait(start("segfault"))).details or ""
    assert details.startswith("Fatal Python error: Segmentation fault")
    assert "in segfault" in details


def test_a_full_disk_is_waited_for(start: Start) -> None:  # R6.2
    assert wait(start("disk_full")).retry_after == DISK_RETRY_SECONDS


def test_no_core_is_written_by_a_child(start: Start) -> None:
    worker = start("beats")
    until(worker, lambda: procfs.PROC.joinpath(str(worker.process.pid), "comm").exists() and worker._channel.read())
    limits = procfs.PROC.joinpath(str(worker.process.pid), "limits").read_text()
    assert next(row.split()[4:6] for row in limits.splitlines() if row.startswith("Max core")) == ["1", "1"]


def test_who_ignores_the_request_to_end_is_killed_and_counts_as_interrupted(start: Start) -> None:
    worker = start("deaf", grace=1.0)
    until(worker, lambda: worker.progress.message == "deaf")
    worker.stop()
    asked = time.monotonic()
    assert wait(worker).outcome is Outcome.INTERRUPTED
    assert time.monotonic() - asked >= 1.0


def test_a_hurry_does_not_wait_for_the_grace_time(start: Start) -> None:
    worker = start("deaf", grace=3600)
    until(worker, lambda: worker.progress.message == "deaf")
    worker.stop()
    worker.hurry()
    assert wait(worker, 30).outcome is Outcome.INTERRUPTED


def test_work_that_was_finished_all_the_same_is_not_thrown_away(start: Start) -> None:
    worker = start("finishes_late")
    until(worker, lambda: worker.progress.message == "ready")
    worker.stop()
    assert wait(worker).outcome is Outcome.SUCCEEDED


def test_a_failure_under_the_request_to_end_is_no_failure(start: Start) -> None:
    worker = start("fails_when_told")
    until(worker, lambda: worker.progress.message == "ready")
    worker.stop()
    assert wait(worker).outcome is Outcome.INTERRUPTED


def test_a_child_can_be_ended_for_a_reason_of_the_box(start: Start) -> None:
    worker = start("beats")
    until(worker, lambda: worker._heard > worker.started)
    worker.stop(Fault(code="memory-pressure", operation="run", cause="the box is short of memory", remedy="wait"))
    worker.stop()
    assert fault_of(wait(worker)).code == "memory-pressure"


@pytest.mark.parametrize(
    ("known", "code", "words"),
    [
        ({"out_of_memory": True, "memory": 3 << 30}, "out-of-memory", "it used 3,072 MiB"),
        ({"at_limit": True, "out_of_memory": True, "memory": 1 << 30, "limit": 2 << 30}, "memory-limit", "2,048 MiB"),
        ({}, "killed", "neither ckptd nor"),
    ],
)
def test_three_kinds_of_kill_are_told_apart(adopting: None, tmp_path: Path, known: dict[str, Any], code: str, words: str) -> None:  # R6.4
    context, log = make_context(tmp_path), AttemptLog(tmp_path / "log.txt", 1 << 20)
    fault = fault_of(post_mortem.conclude(context, log, post_mortem.Death(code=-signal.SIGKILL, **known), 1.0))
    assert fault.code == code
    assert words in fault.cause


def test_the_kernels_count_of_kills_is_what_tells_that_memory_ran_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:  # R6.4
    count = procfs.oom_kills()
    assert count >= 0
    worker = start("beats")
    until(worker, lambda: worker._heard > worker.started)
    monkeypatch.setattr(procfs, "oom_kills", lambda: count + 1)
    os.kill(worker.process.pid, signal.SIGKILL)
    assert fault_of(wait(worker)).code == "out-of-memory"
