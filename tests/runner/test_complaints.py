"""What lasts is said once, in a sentence; and a clock that is set does not silence the ticks."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from daemon.cli import export
from daemon.config.settings import Settings
from daemon.contract.faults.errors import Retryable
from daemon.operating.ticks import Ticks
from daemon.running.runner import Runner
from daemon.running.workers.executor import LocalExecutor
from daemon.system.processes.rounds import Complaints


def test_an_error_that_lasts_is_said_once_and_its_end_too() -> None:
    complaints = Complaints(structlog.get_logger("test"), "the watcher")

    def fail() -> None:
        raise Retryable("disk-full", "write", "the disk is full", "free space")

    def break_down() -> None:
        raise RuntimeError("a bug")

    with capture_logs() as logs:
        assert [complaints.during(work) for work in (fail, fail, fail)] == [False] * 3 and complaints.failed == 3
        assert complaints.during(lambda: None) and complaints.failed == 0
        complaints.during(break_down)
        complaints.during(break_down)
        complaints.during(lambda: 1 / 0)
    assert complaints.trouble is not None and "division by zero" in complaints.trouble.cause
    assert complaints.during(lambda: None) and complaints.trouble is None
    assert [record["event"] for record in logs] == [
        "Could not write: the disk is full. Fix: free space.", "the watcher works again",
        "the watcher met an error that nobody foresaw, and goes on", "the watcher met an error that nobody foresaw, and goes on",
    ]  # fmt: skip


def test_a_clock_set_back_by_an_hour_does_not_silence_the_ticks(monkeypatch: pytest.MonkeyPatch) -> None:  # R6.5
    ticked = threading.Event()
    ticks = Ticks({"rescan": (3600.0, ticked.set)})
    ticks.start()
    try:
        assert not ticks.look_at_clock() and not ticked.wait(0.2)
        real: Any = time.time
        monkeypatch.setattr("daemon.operating.ticks.time.time", lambda: real() - 3600)
        with capture_logs() as logs:
            assert ticks.look_at_clock()
        assert ticked.wait(10), "every interval starts afresh"
        assert logs[0]["seconds"] == pytest.approx(-3600, abs=1)
        assert not ticks.look_at_clock(), "once for each jump"
    finally:
        ticks.stop()


def test_an_export_in_the_foreground_ends_with_the_error_that_its_runner_can_not_get_over(
    tmp_path: Path, pico_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Runner) -> None:
        raise ValueError("a bug in the runner")

    monkeypatch.setattr(Runner, "tick", broken)
    monkeypatch.setattr(LocalExecutor, "prepare", lambda executor: None)  # it would hold for all of the tests' process
    monkeypatch.setattr("daemon.cli.export.working.PATIENCE_SECONDS", 0.5)
    monkeypatch.setenv("CKPTD_STATE__DIRECTORY", str(tmp_path / "state"))
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    checkpoint = tmp_path / "run" / "checkpoint-4"
    shutil.copytree(pico_checkpoint, checkpoint)
    try:
        with pytest.raises(Retryable, match="a bug in the runner"):
            export.export_now(Settings(), checkpoint, output=tmp_path / "out", base=None, force=False, quiet=True)
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
