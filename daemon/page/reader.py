"""All that page and API read: from outside, as the commands do, so that neither can hold up the daemon.

An answer is kept for a second: ten open pages cost as many reads as one. Every method may wait for a disk; routes call them by
`Context.call`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from daemon.config.places.paths import StatePaths
from daemon.config.settings import Settings
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.processes.elsewhere import ORDERS
from daemon.contract.language.catalog import language
from daemon.contract.light import dataclass
from daemon.journal.states import told_state
from daemon.operating.log.stage_log import follow_stage
from daemon.operating.monitoring.filter import Filter
from daemon.operating.monitoring.live import STILL_SECONDS, LiveFile, read_live
from daemon.operating.monitoring.meant import attempted_at, find_job
from daemon.operating.monitoring.pages import JobsPage, RunsPage, jobs_page, runs_page
from daemon.operating.monitoring.run_quality import RunQuality, quality_in_journal
from daemon.operating.monitoring.status import JobDetails, Snapshot, snapshot
from daemon.page.screens.outputs import REPORT_JSON, report_of
from daemon.running.cluster.by_stage import tail_of

T = TypeVar("T")
FRESH_SECONDS = 1.0
EVERY_RUN = 1_000_000
MOST_KEPT = 64
"""Answers that are kept; the oldest goes first."""
MOST_BYTES = 256 << 10
"""Of a page that is kept; what is larger is seldom asked for twice."""


@dataclass(frozen=True)
class StageLog:
    """The end of what an attempt printed."""

    attempt: int
    """Its number; 0 where there was none yet."""
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Signs:
    """How the daemon is, for whoever keeps it running."""

    lives: bool
    """Whether its main loop writes what it knows."""
    is_ready: bool
    """Whether it takes work: it is not stopping, and not unwell."""

    @classmethod
    def of(cls, live: LiveFile) -> Signs:
        """What its live file says."""
        age = live.age()
        lives = live.pid == os.getpid() and age is not None and age < STILL_SECONDS
        return cls(lives, lives and live.stopping is None and live.verdict != "unwell")


class Reader:
    """Reads one state directory."""

    def __init__(self, settings: Callable[[], Settings], config: Callable[[], str | None] = lambda: None) -> None:
        """`settings`: those in use; `config`: the configuration file."""
        self._settings, self._config = settings, config
        self._kept: dict[tuple[Any, ...], tuple[float, Any]] = {}
        self._reading: dict[tuple[Any, ...], threading.Lock] = {}
        self._lock = threading.Lock()
        self._forgotten = 0.0

    @property
    def state(self) -> Path:
        """The state directory."""
        return self._settings().state_directory

    def status(self, jobs: int = 50) -> Snapshot:
        """As `ckptd status`, with at most so many jobs."""
        return self.once(("status", jobs), lambda: replace(snapshot(self.state, limit=jobs, anywhere=True), config=self._config()))

    def jobs(self, wanted: Filter, limit: int, before: str | None = None) -> JobsPage:
        """A page of exports, the newest first."""
        return self.once(("jobs", wanted, limit, before), lambda: jobs_page(self.state, wanted, limit, before))

    def job(self, wanted: str, *, now: bool = False) -> JobDetails:
        """As `ckptd show`; `now`: not as it was up to a second ago. Raises UsageError unless it is exactly one job."""
        if now:
            return find_job(self.state, wanted)
        return self.once(("job", wanted), lambda: find_job(self.state, wanted, by_hand=True))

    def runs(self, limit: int, skip: int = 0) -> RunsPage:
        """A page of the runs."""
        every = self.once(("runs",), lambda: runs_page(self.state, EVERY_RUN))  # to count them is as much work as to list them
        return RunsPage(every.runs[skip : skip + limit], every.total)

    def quality(self, run: str, root: str = "") -> RunQuality:
        """As `ckptd quality`, of a run of exactly this name, below `root` where several have it. Raises UsageError where there is none."""
        return self.once(
            ("quality", run, root, language()),
            lambda: quality_in_journal(self.state, run, (select := self._settings().select).best_variant, root, select.best_task),
        )

    def report(self, wanted: str) -> bytes:
        """The report of an export, as JSON. Raises UsageError where there is none."""
        job = self.job(wanted)
        if (report := report_of(job, REPORT_JSON)) is not None:
            return report
        raise UsageError(
            FaultCode.NO_REPORT,
            f"show the report of {job.id}",
            f"it has no report: {told_state(job.activity)}",
            "wait until it has finished",
        )

    def log(self, wanted: str, stage: str, lines: int) -> StageLog:
        """The last lines that the latest attempt at a stage printed. Raises UsageError where there is no such job or stage."""
        attempts = attempted_at(self.state, wanted, stage)
        each = list(follow_stage(attempts, self._words_of_scheduler, tail=lines, forever=False))
        return StageLog(attempts().number, tuple(line.text for line in each))

    def _words_of_scheduler(self, log: Path) -> str:
        return tail_of(self._settings().cluster, log.parent) if (log.parent / ORDERS).exists() else ""

    def daemon(self) -> Signs:
        """How the daemon is, by its live file alone, which is read without the journal."""
        return self.once(("daemon",), lambda: Signs.of(read_live(StatePaths(self.state).live)))

    def stamp(self) -> tuple[int, ...]:
        """Something else than before, whenever journal or live file were written."""
        paths = StatePaths(self.state)
        return tuple(part for path in (paths.journal, paths.live) for part in _times(path))

    def forget(self) -> None:
        """Read everything anew: something was changed. What is being read just now may be of before, and is not kept either."""
        with self._lock:
            self._kept.clear()
            self._forgotten = time.monotonic()

    def once(self, key: tuple[Any, ...], read: Callable[[], T], *, size: Callable[[T], int] = lambda _: 0) -> T:
        """What was read for this within the last second, else what `read` gives; who asks meanwhile waits for the same answer. `size`: its
        bytes, where it may be too large to be kept."""
        with self._lock:
            reading = self._reading.setdefault(key, threading.Lock())
        with reading:
            try:
                with self._lock:
                    kept = self._kept.get(key)
                if kept is None or time.monotonic() - kept[0] >= FRESH_SECONDS:
                    kept = (time.monotonic(), read())
                    if size(kept[1]) <= MOST_BYTES:
                        self._keep(key, kept)
            finally:
                with self._lock:
                    if self._reading.get(key) is reading:
                        del self._reading[key]
        value: T = kept[1]
        return value

    def _keep(self, key: tuple[Any, ...], kept: tuple[float, Any]) -> None:
        with self._lock:
            self._kept.pop(key, None)
            if kept[0] <= self._forgotten:
                return
            self._kept[key] = kept
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]


def _times(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
