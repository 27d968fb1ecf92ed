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
from daemon.contract.light import dataclass
from daemon.operating.monitoring.live import STILL_SECONDS, LiveFile, read_live
from daemon.operating.monitoring.status import Snapshot, snapshot

T = TypeVar("T")
FRESH_SECONDS = 1.0
MOST_KEPT = 64
"""Answers that are kept; the oldest goes first."""


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

    @property
    def state(self) -> Path:
        """The state directory."""
        return self._settings().state_directory

    def status(self, jobs: int = 50) -> Snapshot:
        """As `ckptd status`, with at most so many jobs."""
        return self._once(("status", jobs), lambda: replace(snapshot(self.state, limit=jobs, anywhere=True), config=self._config()))

    def daemon(self) -> Signs:
        """How the daemon is, by its live file alone, which is read without the journal."""
        return self._once(("daemon",), lambda: Signs.of(read_live(StatePaths(self.state).live)))

    def stamp(self) -> tuple[int, ...]:
        """Something else than before, whenever journal or live file were written."""
        paths = StatePaths(self.state)
        return tuple(part for path in (paths.journal, paths.live) for part in _times(path))

    def _once(self, key: tuple[Any, ...], read: Callable[[], T]) -> T:
        """What was read for this within the last second, else what `read` gives; who asks meanwhile waits for the same answer."""
        with self._lock:
            reading = self._reading.setdefault(key, threading.Lock())
        with reading:
            with self._lock:
                kept = self._kept.get(key)
            if kept is None or time.monotonic() - kept[0] >= FRESH_SECONDS:
                kept = (time.monotonic(), read())
                with self._lock:
                    self._kept.pop(key, None)
                    self._kept[key] = kept
                    while len(self._kept) > MOST_KEPT:
                        oldest = next(iter(self._kept))
                        del self._kept[oldest]
                        self._reading.pop(oldest, None)
        value: T = kept[1]
        return value


def _times(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
