"""A second executor, written against the protocols alone: it hands job files to a server of another session through a folder.

Its attempts outlive the daemon, there is nothing to wait on, and what they hold in memory is not this box's affair.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Fault
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from daemon.running.attempts.executor import JOB_FILE, Attempt, Bounds, Order, Progress, read_job_file
from daemon.running.attempts.result_file import examine

PREFIX = "queue:"


class QueueAttempt:
    """An entry of the queue."""

    memory = peak = 0
    wait_handle = cpu = place = None
    ended_surely = True

    def __init__(self, entry: Path, context: StageContext, bounds: Bounds) -> None:
        self.id = PREFIX + entry.name
        self.progress = Progress()
        self.warnings: list[str] = []
        self._entry, self._context, self._bounds = entry, context, bounds
        self._read = 0
        self._stopped = (entry / "stop").exists()
        self._fault: Fault | None = None
        self._kill_at: float | None = time.monotonic() + bounds.grace if self._stopped else None
        self._ended: StageResult | None = None

    def poll(self) -> StageResult | None:
        if self._ended is None:
            over = (self._entry / "ended").exists()
            self._hear()
            if over:
                self._ended = self._result()
            elif self._kill_at is not None and time.monotonic() > self._kill_at:
                (self._entry / "kill").touch()
        return self._ended

    def _hear(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            said = (self._entry / "progress").read_bytes()
            whole = said[: said.rfind(b"\n") + 1]
            for line in map(json.loads, whole[self._read :].splitlines()):
                if "fraction" in line:
                    self.progress = Progress(line["fraction"], line["message"])
                elif "warning" in line:
                    self.warnings.append(line["warning"])
            self._read = len(whole)

    def _result(self) -> StageResult:
        result, wrong = examine(self._context)
        if result is not None and (not self._stopped or result.outcome is Outcome.SUCCEEDED):
            return result
        if self._stopped and self._fault is None:
            return StageResult(outcome=Outcome.INTERRUPTED)
        cause = wrong or f"the queue's child ended with exit code {(self._entry / 'ended').read_text()} and no result"
        fault = Fault(code="no-result", operation=f"run the stage {self._context.stage}", cause=cause, remedy="read the attempt's log")
        return StageResult(outcome=Outcome.RETRYABLE, fault=self._fault or fault)

    def stop(self, fault: Fault | None = None) -> None:
        if not self._stopped:
            self._stopped, self._fault, self._kill_at = True, fault, time.monotonic() + self._bounds.grace
            (self._entry / "stop").touch()

    def hurry(self) -> None:
        self.stop()
        (self._entry / "kill").touch()


class QueueExecutor:
    """Hands attempts in to the server of `queue`."""

    def __init__(self, queue: Path) -> None:
        self._queue = queue

    def prepare(self) -> None:
        assert self._queue.is_dir()

    def runs_here(self, spec: StageSpec) -> bool:
        return False

    def start(self, order: Order) -> Attempt:
        job_file = order.write_job_file()
        for number in itertools.count(1):
            entry = self._queue / str(number)
            with contextlib.suppress(FileExistsError):
                entry.mkdir()
                break
        write_atomic(entry / "job", str(job_file))
        return QueueAttempt(entry, order.context, order.bounds)

    def reclaim(self, id: str | None, folder: Path, bounds: Bounds) -> Attempt | StageResult | None:
        entry = self._queue / id.removeprefix(PREFIX) if id else self._entry_of(folder)
        context = read_job_file(folder)
        if entry is None or context is None:
            return None
        attempt = QueueAttempt(entry, context, bounds)
        if (entry / "ended").exists():
            return examine(context)[0]
        return attempt

    def _entry_of(self, folder: Path) -> Path | None:
        return next((path.parent for path in self._queue.glob("*/job") if path.read_text() == str(folder / JOB_FILE)), None)

    def tidy(self) -> None:
        """Nothing."""

    def at_work(self, jobs: Path) -> Mapping[str, Path]:
        open_ones = [path for path in self._queue.glob("*/job") if not path.with_name("ended").exists()]
        folders = {PREFIX + path.parent.name: Path(path.read_text()).parent for path in open_ones}
        return {name: folder for name, folder in folders.items() if jobs in folder.parents}
