"""Stages that a command has run by itself, outside of any job: a job file, a staging folder, a result file, `[limits]`.

Their files lie in a folder of the state directory that is removed at the end, or by the next such command where this one was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from daemon.config.places.paths import FOREGROUND, RESULT_FILE, StatePaths, make_private, not_writable
from daemon.config.settings import LimitSettings, Settings
from daemon.contract import units
from daemon.contract.faults.errors import FULL_DISK, Fault, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import CheckpointRef, ChildLimits, StageContext, StageResult
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.processes.benchmark import BenchRequest
from daemon.running.attempts.executor import Attempt, Order, wait_for_news
from daemon.running.attempts.job_file import NICE, bounds_of
from daemon.running.workers.executor import LocalExecutor
from daemon.system.box import memory
from daemon.toolchains.registry import Toolchains

PREFIX = "bench-"
"""Of these folders, below that of the foreground."""
_LOCK = "lock"
_AGAIN = "run the same command again; `ckptd verify` says whether the export is damaged"


@dataclass
class Progress:
    """What is shown meanwhile."""

    said: Callable[[float, str], None]
    """Takes the share of the work that is done, and what is done now."""
    stop: Callable[[], bool]
    """Whether a person wants it to end."""


@contextlib.contextmanager
def scratch(state: Path) -> Iterator[Path]:
    """A folder for the files of children; gone at the end. Those of commands that were killed are removed too."""
    try:
        make_private(state)
        above = StatePaths(state).state / FOREGROUND
        above.mkdir(mode=0o700, exist_ok=True)
        with _turn(above):
            _sweep(above)
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
            lock = _locked(folder)
    except OSError as error:
        if error.errno in FULL_DISK:
            raise from_oserror(error, "make a folder for the work", str(state)) from None
        raise not_writable("state.directory", state, error.strerror or str(error), error.errno) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.close()


@contextlib.contextmanager
def _turn(above: Path) -> Iterator[None]:
    """Keep other commands from sweeping meanwhile: they would take a folder that is not locked yet for one that was left."""
    place = os.open(above, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _locked(folder: Path) -> IO[bytes] | None:
    """The folder's lock, held until it is closed; None where another process holds it."""
    stream = open(folder / _LOCK, "ab")  # noqa: SIM115
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        return None
    return stream


def _sweep(above: Path) -> None:
    for folder in above.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = _locked(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                lock.close()


@dataclass(frozen=True)
class Wanted:
    """A stage that is to be run."""

    stage: str
    entry: str
    """`module:function` of its code."""
    inputs: Mapping[str, str]
    work: Work | None = None
    """None for that of the configuration."""
    request: BenchRequest | None = None
    toolchain: str = ""
    strategy: str = "default"
    device: str = "cpu"
    alone: bool = False
    """No other stage follows, so that no process is kept ready for one."""


class Stages:
    """Stages of one command, one after the other. `operation`: what the command does; `export`: the folder that it is about."""

    def __init__(self, settings: Settings, operation: str, export: Path, run: str, scratch: Path, progress: Progress) -> None:
        self._limits: LimitSettings = settings.limits
        self._settings, self._operation, self._export, self._of_run = settings, operation, export, run
        self._scratch, self._progress = scratch, progress
        self._executor = LocalExecutor()
        self._executor.prepare()
        self._number = 0

    def order(self, asked: Wanted) -> Order:
        """What starts a stage; its folders are made."""
        self._number += 1
        folder = self._scratch / f"{asked.stage}.{self._number}"
        for inner in (folder, folder / "staging", folder / "tmp"):
            inner.mkdir()
        cache = StatePaths(self._settings.state_directory).cache
        with contextlib.suppress(OSError):
            Toolchains(self._settings.state_directory).offer(cache)
        context = StageContext(
            job=asked.stage, stage=asked.stage, entry=asked.entry, attempt=self._number, inputs=dict(asked.inputs), pin=str(self._export),
            work=asked.work or self._settings.work, bench=asked.request, toolchain=asked.toolchain, python=sys.executable,
            strategy=asked.strategy,
            checkpoint=CheckpointRef(root="", run=self._of_run, step=0, path=str(self._export), layout="", digest="", method=""),
            staging=str(folder / "staging"), result=str(folder / RESULT_FILE), temporary=str(folder / "tmp"), cache=str(cache),
            formats=catalog().entries, language=self._settings.report.spoken,
            limits=ChildLimits(
                threads=self._limits.effective_threads, nice=NICE[self._limits.priority], idle=self._limits.priority == "idle",
                device=asked.device,
            ),
        )  # fmt: skip
        bounds = bounds_of(self._limits)
        return Order(context, folder, replace(bounds, warm=0.0) if asked.alone else bounds)

    def run(self, order: Order, said: Callable[[float, str], None], late: float = float("inf")) -> StageResult | None:
        """Run a stage to its end; None where it was ended since it was `late`, by the monotonic clock. `said` takes its progress.

        Raises KeyboardInterrupt where a person wants it to end, when it has ended, Retryable where it can't be started.
        """
        attempt = self._start(order)
        while (result := attempt.poll()) is None:
            if time.monotonic() > late:
                self._end(attempt)
                return None
            self._relieve(attempt)
            said(attempt.progress.fraction, attempt.progress.message)
            self._wait(attempt)
        return result

    def _start(self, order: Order) -> Attempt:
        try:
            return self._executor.start(order)
        except OSError as error:
            raise from_oserror(error, "start a child process") from None

    def _wait(self, attempt: Attempt) -> None:
        """Wait until there may be news. Raises KeyboardInterrupt where a person wants it to end, when it has ended."""
        if self._progress.stop():
            self._end(attempt)
            raise KeyboardInterrupt
        wait_for_news([attempt], 0.2)

    def _end(self, attempt: Attempt) -> None:
        """End it at once: nothing of it is gone on with."""
        attempt.hurry()
        while attempt.poll() is None:
            wait_for_news([attempt], 0.05)

    def _relieve(self, attempt: Attempt) -> None:
        """End the child when the machine's memory runs out, before the kernel chooses, perhaps the training."""
        available, reserve = memory()[1], int(self._limits.memory_reserve)
        if attempt.memory and available < reserve:
            cause = f"{units.size(available)} of the machine's memory were left (limits.memory_reserve is {units.size(reserve)})"
            fault = Fault(code=FaultCode.MEMORY_PRESSURE, operation=self._operation, cause=cause, remedy="free memory on the machine")
            attempt.stop(fault)

    def fault(self, result: StageResult) -> Fault:
        """Why a child gave nothing; its log is gone with its folder, so that the sentence does not name it."""
        fault = result.fault or Fault(code=FaultCode.KILLED, operation=self._operation, cause="its process was ended", remedy=_AGAIN)
        inside = fault.path is not None and fault.path.startswith(str(self._scratch))
        return fault.model_copy(
            update={
                "path": str(self._export) if inside else fault.path,
                "remedy": _AGAIN if " log" in fault.remedy else fault.remedy,
            }
        )
