"""The child processes of `ckptd bench`, started as those of an export are: a job file, a staging folder, a result file, `[limits]`.

Their files lie in a folder of the state directory that is removed at the end, or by the next measurement where this one was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from daemon.config.places.paths import FOREGROUND, RESULT_FILE, StatePaths, make_private, not_writable
from daemon.config.settings import LimitSettings, Settings
from daemon.contract import units
from daemon.contract.faults.errors import FULL_DISK, Fault, Permanent, Retryable, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.benchmark import (
    ENTRY,
    MEASURED,
    PAGE,
    PAGE_ENTRY,
    PAGE_INPUT,
    PAGE_STAGE,
    STAGE,
    Bench,
    BenchRequest,
    Measurements,
)
from daemon.contract.jobs.messages import CheckpointRef, ChildLimits, Outcome, StageContext, StageResult
from daemon.operating.measuring.subject import OPERATION, Export
from daemon.running.attempts.executor import Attempt, Order, wait_for_news
from daemon.running.attempts.job_file import NICE, bounds_of
from daemon.running.workers.executor import LocalExecutor
from daemon.system.box import memory
from daemon.toolchains.registry import Toolchains

PREFIX = "bench-"
"""Of the folders of measurements, below that of the foreground."""
GRACE_SECONDS = 1.0
"""What a child that ends by itself at the limit of time takes for that; then it is ended."""
_LOCK = "lock"
_AGAIN = "run the same command again; `ckptd verify` says whether the export is damaged"


@dataclass
class Progress:
    """What is shown while it is measured."""

    said: Callable[[float, str], None]
    """Takes the share of the work that is done, and what is done now."""
    stop: Callable[[], bool]
    """Whether a person wants it to end."""


@contextlib.contextmanager
def scratch(state: Path) -> Iterator[Path]:
    """A folder for the files of children; gone at the end. Those of measurements that were killed are removed too."""
    try:
        make_private(state)
        above = StatePaths(state).state / FOREGROUND
        above.mkdir(mode=0o700, exist_ok=True)
        _sweep(above)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
        lock = _locked(folder)
    except OSError as error:
        if error.errno in FULL_DISK:
            raise from_oserror(error, "make a folder for the measurement", str(state)) from None
        raise not_writable("state.directory", state, error.strerror or str(error), error.errno) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.close()


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
class Ended:
    """How a child ended."""

    measurements: Measurements
    fault: Fault | None = None
    """Why it ended before it was done; None where it was done, or the time was over."""


class Children:
    """The child processes of one measurement, one after the other."""

    def __init__(self, settings: Settings, export: Export, scratch: Path, progress: Progress) -> None:
        self._limits: LimitSettings = settings.limits
        self._settings, self._export, self._scratch, self._progress = settings, export, scratch, progress
        self._executor = LocalExecutor()
        self._executor.prepare()
        self._number = 0

    def measure(self, request: BenchRequest, *, share: float, finish: bool) -> Ended:
        """Let a child measure. `share`: of all the work that is left. `finish`: at the limit of time, what it has begun is finished."""
        order = self._order(STAGE, ENTRY, {}, request)
        late = float("inf") if finish else time.monotonic() + request.seconds + GRACE_SECONDS
        attempt = self._start(order)
        while (result := attempt.poll()) is None:
            if time.monotonic() > late:
                measurements = self._read_measurements(order)
                self._end(attempt)
                return Ended(measurements)
            self._relieve(attempt)
            said = attempt.progress
            self._progress.said(1 - share + share * said.fraction, said.message)
            self._wait(attempt)
        if result.outcome is Outcome.SUCCEEDED:
            return Ended(self._read_measurements(order))
        return Ended(self._read_measurements(order), self._fault(result))

    def page(self, value: Bench) -> bytes:
        """The page of a measurement. Raises Permanent or Retryable."""
        folder = self._scratch / "page"
        folder.mkdir()
        (folder / PAGE_INPUT).write_text(value.model_dump_json(), encoding="utf-8")
        order = self._order(PAGE_STAGE, PAGE_ENTRY, {STAGE: str(folder)}, None)
        attempt = self._start(order)
        while (result := attempt.poll()) is None:
            self._wait(attempt)
        if result.outcome is Outcome.SUCCEEDED:
            return Path(order.context.staging, PAGE).read_bytes()
        kind = Permanent if result.outcome is Outcome.PERMANENT else Retryable
        raise kind(**self._fault(result).model_copy(update={"operation": "make the page"}).model_dump())

    def _order(self, stage: str, entry: str, inputs: dict[str, str], request: BenchRequest | None) -> Order:
        self._number += 1
        folder = self._scratch / f"{stage}.{self._number}"
        for inner in (folder, folder / "staging", folder / "tmp"):
            inner.mkdir()
        export = str(self._export.folder)
        cache = StatePaths(self._settings.state_directory).cache
        with contextlib.suppress(OSError):
            Toolchains(self._settings.state_directory).offer(cache)
        context = StageContext(
            job=STAGE, stage=stage, entry=entry, attempt=self._number, inputs=inputs, pin=export, work=self._settings.work, bench=request,
            checkpoint=CheckpointRef(root="", run=self._export.text("run") or "", step=0, path=export, layout="", digest="", method=""),
            staging=str(folder / "staging"), result=str(folder / RESULT_FILE), temporary=str(folder / "tmp"), cache=str(cache),
            formats=catalog().entries, language=self._settings.report.spoken,
            limits=ChildLimits(
                threads=self._limits.effective_threads, nice=NICE[self._limits.priority], idle=self._limits.priority == "idle",
                device=self._limits.device if request else "cpu",
            ),
        )  # fmt: skip
        return Order(context, folder, bounds_of(self._limits))

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
        """End it at once: nothing of a measurement is gone on with."""
        attempt.hurry()
        while attempt.poll() is None:
            wait_for_news([attempt], 0.05)

    def _relieve(self, attempt: Attempt) -> None:
        """End the child when the machine's memory runs out, before the kernel chooses, perhaps the training."""
        available, reserve = memory()[1], int(self._limits.memory_reserve)
        if attempt.memory and available < reserve:
            cause = f"{units.size(available)} of the machine's memory were left (limits.memory_reserve is {units.size(reserve)})"
            fault = Fault(code=FaultCode.MEMORY_PRESSURE, operation=OPERATION, cause=cause, remedy="free memory on the machine")
            attempt.stop(fault)

    def _read_measurements(self, order: Order) -> Measurements:
        try:
            return Measurements.model_validate_json(Path(order.context.staging, MEASURED).read_bytes())
        except (OSError, ValidationError):
            return Measurements()

    def _fault(self, result: StageResult) -> Fault:
        """Why a child gave nothing; its log is gone with its folder, so that the sentence does not name it."""
        fault = result.fault or Fault(code=FaultCode.KILLED, operation=OPERATION, cause="its process was ended", remedy=_AGAIN)
        inside = fault.path is not None and fault.path.startswith(str(self._scratch))
        return fault.model_copy(
            update={
                "path": str(self._export.folder) if inside else fault.path,
                "remedy": _AGAIN if " log" in fault.remedy else fault.remedy,
            }
        )
