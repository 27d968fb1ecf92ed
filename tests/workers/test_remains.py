"""Nothing of an attempt lives on or takes more than its share: fork bombs, runaways, strays, memory."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.running.attempts.executor import Order
from daemon.running.rules.retry import decide
from daemon.running.workers import containment, warm
from daemon.running.workers.worker import Worker, kill_stray, process_of
from daemon.system.processes import procfs
from tests.workers.helpers import BOUNDS, SCRIPT, SHORT, Start, fault_of, leftovers, make_context, until, wait


def count_bomb(worker: Worker) -> StageResult:
    """The result of a fork bomb, which must have begun."""
    result = wait(worker)
    assert "it had" in fault_of(result).cause or "refused" in fault_of(result).cause
    return result


def test_a_fork_bomb_is_contained(start: Start) -> None:
    assert fault_of(count_bomb(start("fork_bomb", processes=40))).code == "too-many-processes"


def test_a_fork_bomb_is_contained_by_a_control_group(grouped: Path, start: Start) -> None:
    assert fault_of(count_bomb(start("fork_bomb", processes=40))).code == "too-many-processes"


@pytest.mark.parametrize("case", ["daemonizes", "unmarked"])
def test_a_process_that_left_group_session_and_parent_ends_with_the_attempt(start: Start, tmp_path: Path, case: str) -> None:
    before = {pid for pid, known in procfs.snapshot().items() if known.parent == os.getpid()}  # of other tests, as what fills in templates
    assert wait(start(case)).outcome is Outcome.SUCCEEDED
    assert procfs.entry(int((tmp_path / "staging/daemon.pid").read_text())) is None
    after = {pid for pid, known in procfs.snapshot().items() if known.parent == os.getpid()}
    assert after - before <= {one.process.pid for one in warm._all}


@pytest.mark.parametrize("case", ["daemonizes", "unmarked"])
def test_a_process_that_left_everything_ends_with_the_control_group(grouped: Path, start: Start, tmp_path: Path, case: str) -> None:
    assert wait(start(case)).outcome is Outcome.SUCCEEDED
    assert procfs.entry(int((tmp_path / "staging/daemon.pid").read_text())) is None


def test_a_program_that_adopts_nobody_still_ends_what_carries_the_mark(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containment, "_adopting", False)
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
    assert wait(start("daemonizes")).outcome is Outcome.SUCCEEDED
    known = procfs.entry(int((tmp_path / "staging/daemon.pid").read_text()))
    assert known is None or known.dead


def test_two_attempts_side_by_side_do_not_end_each_other(start: Start, tmp_path: Path) -> None:
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    context = make_context(tmp_path).model_copy(update={"result": str(other_folder / "result.json")})
    other = Worker(Order(context, other_folder, BOUNDS), (sys.executable, str(SCRIPT), "beats"))
    until(other, lambda: other._heard > other.started)
    assert wait(start("daemonizes")).outcome is Outcome.SUCCEEDED
    assert other.poll() is None
    other.hurry()
    assert wait(other).outcome is Outcome.INTERRUPTED
    assert leftovers(other_folder) == []


def test_an_attempt_leaves_the_end_of_another_one_to_its_own_worker(start: Start, tmp_path: Path) -> None:
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    context = make_context(tmp_path).model_copy(update={"result": str(other_folder / "result.json")})
    other = Worker(Order(context, other_folder, BOUNDS), (sys.executable, str(SCRIPT), "exit_3"))
    while not ((known := procfs.entry(other.process.pid)) and known.dead):
        time.sleep(0.01)
    assert wait(start("daemonizes")).outcome is Outcome.SUCCEEDED
    assert "exit code 3" in fault_of(wait(other)).cause


def test_the_daemons_own_children_are_left_alone(start: Start) -> None:
    with subprocess.Popen(["sleep", "60"]) as mine, subprocess.Popen(["sh", "-c", "exit 7"]) as ended:
        assert wait(start("daemonizes")).outcome is Outcome.SUCCEEDED
        assert mine.poll() is None
        assert ended.wait() == 7
        mine.kill()


def test_a_child_that_takes_too_much_memory_is_ended_with_both_figures(start: Start) -> None:  # R6.2
    worker = start("hog", memory=200 << 20, **SHORT)
    fault = fault_of(wait(worker))
    assert fault.code == "memory-limit"
    assert "may use 200 MiB" in fault.cause
    assert worker.peak >= worker.memory > 200 << 20


def test_a_child_that_takes_far_more_than_was_estimated_is_ended_for_good(start: Start) -> None:
    fault = fault_of(wait(start("hog", memory=200 << 20, expected=50 << 20, **SHORT)))
    assert fault.code == "memory-unexpected"
    assert "may use 200 MiB, since about 50 MiB are estimated for it" in fault.cause and "ckptd queue retry" in fault.remedy
    result = StageResult(outcome=Outcome.RETRYABLE, fault=fault)
    assert decide(result, 0, 3, 1.0, random.Random(0)).state == "failed"


def test_memory_that_processes_share_counts_once(start: Start) -> None:  # R6.2
    worker = start("shares", memory=400 << 20)
    assert wait(worker).outcome is Outcome.SUCCEEDED
    assert 200 << 20 < worker.peak < 400 << 20


def test_what_outlived_a_killed_daemon_is_found_by_its_folder(start: Start, tmp_path: Path) -> None:  # R6.5
    worker = start("beats")
    until(worker, lambda: worker._heard > worker.started)
    process = process_of(worker.id)
    assert process is not None and process[0] == worker.process.pid
    assert not kill_stray((process[0], process[1] + 5), tmp_path)
    assert not kill_stray(None, tmp_path)
    assert kill_stray(None, worker.folder)
    assert fault_of(wait(worker)).code == "killed"


def test_a_process_of_the_same_id_that_started_at_that_time_is_killed(start: Start, tmp_path: Path) -> None:  # R6.5
    worker = start("beats")
    until(worker, lambda: worker._heard > worker.started)
    assert kill_stray(process_of(worker.id), tmp_path)
    assert fault_of(wait(worker)).code == "killed"
