"""Spawns and supervises one child process: one attempt of one stage.

Must be called from one permanent thread: the kernel kills a child when the *thread* that spawned it ends
(PR_SET_PDEATHSIG, prctl(2)). The child takes its own scheduling class before it loads anything heavy.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from daemon.contract import Outcome, StageContext, StageResult
from daemon.durable import write_atomic
from daemon.errors import Fault

TERM_SECONDS = 5.0
LOG_TAIL = 2000
LINE_LIMIT = 1 << 16


@dataclass
class Progress:
    """The last thing a child said."""

    fraction: float = 0.0
    message: str = "starting"


class Worker:
    """A running child. `poll` until it gives a result."""

    def __init__(self, context: StageContext, folder: Path, timeout: float) -> None:
        """Write the job file into `folder` and start the child. Raises OSError when it can't be started."""
        self.context = context
        self.folder = folder
        self.progress = Progress()
        self.warnings: list[str] = []
        self.started = time.monotonic()
        self._deadline = self.started + timeout
        self._timeout = timeout
        self._stop_reason: str | None = None
        self._kill_at: float | None = None
        self._buffer = b""
        self._ended: StageResult | None = None
        job_file = folder / "job.json"
        write_atomic(job_file, context.model_dump_json(indent=1))
        with open(folder / "log.txt", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "handlers", str(job_file)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True, cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        assert self.process.stdout is not None
        self.pipe = self.process.stdout.fileno()
        os.set_blocking(self.pipe, False)

    @property
    def ended(self) -> bool:
        """Whether `poll` has given the result."""
        return self._ended is not None

    @property
    def process_started(self) -> float:
        """Start time of the child as the kernel tells it: with the pid it names the process for good."""
        try:
            return psutil.Process(self.process.pid).create_time()
        except psutil.Error:
            return 0.0

    def poll(self) -> StageResult | None:
        """Read progress, enforce the time limit; the result once the child has ended, the same at every further call."""
        if self._ended is not None:
            return self._ended
        self._read()
        now = time.monotonic()
        if self._stop_reason is None and now > self._deadline:
            self.stop(f"it ran longer than limits.stage_timeout, {self._timeout:.0f} s")
        if self._kill_at is not None and now > self._kill_at:
            self._signal(signal.SIGKILL)
        if self.process.poll() is None:
            return None
        self._read()
        self._signal(signal.SIGKILL)  # whatever the child left behind in its group ends with it
        if self.process.stdout:
            self.process.stdout.close()
        self._ended = self._result(self.process.returncode)
        return self._ended

    def stop(self, reason: str | None = None) -> None:
        """Ask the child and all its own to end; after a grace time they are killed. `reason`: why it failed by that."""
        if self._kill_at is None:
            self._stop_reason = reason or ""
            self._kill_at = time.monotonic() + TERM_SECONDS
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _read(self) -> None:
        while True:
            try:
                block = os.read(self.pipe, 1 << 16)
            except (BlockingIOError, ValueError, OSError):
                return
            if not block:
                return
            *lines, self._buffer = (self._buffer + block).split(b"\n")
            self._buffer = self._buffer[-LINE_LIMIT:]
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        """One line of the progress channel; what is no progress is dropped, since nothing depends on it."""
        try:
            value: Any = json.loads(line)
            if "warning" in value:
                self.warnings.append(str(value["warning"])[:500])
            else:
                self.progress = Progress(min(max(float(value["fraction"]), 0.0), 1.0), str(value["message"])[:200])
        except (ValueError, KeyError, TypeError):
            return

    def _result(self, code: int) -> StageResult:
        seconds = round(time.monotonic() - self.started, 3)
        if self._stop_reason is None or self._stop_reason == "":
            result = read_result(Path(self.context.result))
            if result is not None:
                return result
        if self._stop_reason == "":
            return StageResult(outcome=Outcome.INTERRUPTED, seconds=seconds)
        return StageResult(outcome=Outcome.RETRYABLE, fault=self._fault(code), seconds=seconds)

    def _fault(self, code: int) -> Fault:
        """The fault of a child that ended without a result."""
        if self._stop_reason:
            kind, cause, remedy = "timeout", self._stop_reason, "raise limits.stage_timeout if the stage was still moving"
        elif code == -signal.SIGKILL:
            kind, cause = "killed", "its process was killed (signal 9), most often by the kernel because memory ran out"
            remedy = "look for 'Out of memory' in the kernel log; free memory or leave this variant out"
        elif code < 0:
            kind, cause = "crashed", f"its process crashed with {signal.Signals(-code).name}"
            remedy = "read the attempt's log; a library crashed, another strategy or version may not"
        else:
            kind, cause, remedy = "no-result", f"its process ended with exit code {code} and no result", "read the attempt's log"
        log = self.folder / "log.txt"
        return Fault(
            code=kind, operation=f"run the stage {self.context.stage}", cause=cause, remedy=remedy, path=str(log), details=tail(log)
        )


def read_result(path: Path) -> StageResult | None:
    """The result file, None where there is none or it is not one."""
    try:
        return StageResult.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def tail(path: Path, limit: int = LOG_TAIL) -> str:
    """The last `limit` characters of a text file, "" where there is none."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - limit))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def kill_stray(pid: int | None, process_started: float | None) -> bool:
    """Kill the process group of a child that outlived its daemon, if that very process still lives."""
    if pid is None or not process_started:
        return False
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - process_started) > 1.0 or process.status() == psutil.STATUS_ZOMBIE:
            return False
        os.killpg(pid, signal.SIGKILL)
        return True
    except (psutil.Error, ProcessLookupError, PermissionError):
        return False
