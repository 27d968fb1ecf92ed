"""Attempts by a scheduler, as a runner would have them: started, asked, taken over by another daemon."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from daemon.contract.faults.fault_codes import Code
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from daemon.running.attempts.executor import Bounds, Order
from daemon.running.cluster.attempt import ClusterAttempt
from daemon.running.cluster.executor import ClusterExecutor
from daemon.running.cluster.port import Scheduler
from tests.workers.helpers import make_context

LATE = 2.0
PATIENCE = 60.0
"""Seconds that anything is waited for."""
BOUNDS = Bounds(timeout=120, grace=1, memory=0, memory_reserve=0, silence=60, pass_environment=("PYTHONPATH",), warm=0)


class Bench:
    """A scheduler with the executor above it."""

    def __init__(self, folder: Path, scheduler: Scheduler, late: float = LATE) -> None:
        self.folder, self.scheduler, self.late = folder, scheduler, late
        self.clock: Callable[[], float] = time.monotonic
        self.executor = self._make()
        self.number = 0

    def _make(self) -> ClusterExecutor:
        return ClusterExecutor(self.scheduler, late=self.late, clock=self.clock, command=(sys.executable, "-m", "tests.cluster.child"))

    def order(self, bounds: Bounds = BOUNDS, *, held: bool = False) -> Order:
        """The order for the next attempt of the stage."""
        self.number += 1
        folder, staging = self.folder / f"merge.{self.number}", self.folder / "staging" / f"merge.{self.number}"
        folder.mkdir(parents=True)
        staging.mkdir(parents=True)
        if held:
            (folder / "hold").touch()
        context = make_context(self.folder).model_copy(update={
            "attempt": self.number, "staging": str(staging), "staging_inode": os.lstat(staging).st_ino,
            "result": str(folder / "result.json"), "temporary": str(folder / "tmp"),
        })  # fmt: skip
        return Order(context, folder, bounds, 100 << 20)

    def start(self, bounds: Bounds = BOUNDS, *, held: bool = False) -> ClusterAttempt:
        """Start an attempt; `held`: its stage stays until `release`."""
        attempt = self.executor.start(self.order(bounds, held=held))
        assert isinstance(attempt, ClusterAttempt)
        return attempt

    def restart(self, attempt: ClusterAttempt, *, known: bool = True) -> ClusterAttempt:
        """The attempt as another daemon takes it over; `known`: its id was recorded."""
        self.executor.close()
        self.executor = self._make()
        taken = self.executor.reclaim(attempt.id if known else None, attempt.folder, attempt.bounds)
        assert isinstance(taken, ClusterAttempt)
        assert taken.id == attempt.id
        return taken

    def release(self, attempt: ClusterAttempt) -> None:
        """Let a held stage go on."""
        (attempt.folder / "hold").unlink()

    def begun(self) -> list[str]:
        """The attempts whose stage began, each time that it did."""
        path = self.folder / "begun"
        return path.read_text().split() if path.exists() else []

    def close(self) -> None:
        """End the threads."""
        self.executor.close()


def until(condition: Callable[[], object], seconds: float | None = None) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + (seconds or PATIENCE)
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def stays(condition: Callable[[], object], seconds: float) -> bool:
    """Whether something holds all the time for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(0.02)
    return True


def outcome(attempt: ClusterAttempt) -> tuple[Outcome, Code | None]:
    """How it ended, and the fault's code."""
    result = result_of(attempt)
    return result.outcome, result.fault.code if result.fault else None


def result_of(attempt: ClusterAttempt) -> StageResult:
    """Its result, once there is one."""
    until(lambda: attempt.poll() is not None)
    result = attempt.poll()
    assert result is not None
    return result


def runs(attempt: ClusterAttempt) -> bool:
    """Whether its stage is at work."""
    return attempt.course.begun_at is not None and attempt.progress.message.startswith("held")


def context_of(attempt: ClusterAttempt) -> StageContext:
    """Its job."""
    return attempt.context


def child_of(folder: Path) -> psutil.Process:
    """The process of the stage whose attempt has that folder; its parent cares for it."""
    both = {process.pid: process for process in psutil.process_iter(["cmdline"]) if str(folder) in (process.info["cmdline"] or ())}
    (child,) = [process for process in both.values() if process.ppid() in both]
    return child
