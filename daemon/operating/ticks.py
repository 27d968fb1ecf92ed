"""Ticks by APScheduler: the schedule of outbox, metrics, backups and watchdog. The queue itself is in the journal.

Every tick only wakes the thread that does the work, or does little. A late tick still fires, once: APScheduler's default
would drop it after a second. It plans by the wall clock, so a clock that was set back by an hour would silence
it for an hour: `Ticks.look_at_clock` notices, and starts every interval afresh.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from apscheduler.schedulers import SchedulerNotRunningError
from apscheduler.schedulers.background import BackgroundScheduler

from daemon.contract.faults.events import Event
from daemon.system.logger import Logger

log = Logger("schedule")

LATE_ROUNDS = 10
"""So many times its interval the most frequent tick may be late before all are started afresh."""
JUMP_SECONDS = 2.0
"""A smaller step of the clock is the time service's everyday work and delays a tick by no more than itself."""


class Ticks:
    """Ticks by name: (seconds between, function)."""

    def __init__(self, ticks: Mapping[str, tuple[float, Callable[[], object]]]) -> None:
        self._scheduler = BackgroundScheduler(
            timezone="UTC", job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )  # fmt: skip
        self._ticked = time.monotonic()
        self._late = LATE_ROUNDS * min(seconds for seconds, _ in ticks.values())
        for name, (seconds, function) in ticks.items():
            self._scheduler.add_job(self._tick, "interval", (function,), seconds=seconds, id=name, name=name)
        self._offset = _offset()

    def _tick(self, function: Callable[[], object]) -> None:
        self._ticked = time.monotonic()
        function()

    def is_alive(self) -> bool:
        """Whether the thread lives, and something ticked not long ago."""
        thread = self._scheduler._thread
        return thread is not None and thread.is_alive() and time.monotonic() - self._ticked < self._late

    def start(self) -> None:
        """Begin to tick."""
        self._ticked = time.monotonic()
        self._scheduler.start()

    def soon(self, name: str) -> None:
        """Let one tick fire now, besides its regular times."""
        self._scheduler.modify_job(name, next_run_time=datetime.now(UTC))

    def stop(self) -> None:
        """Begin no tick after this."""
        with contextlib.suppress(SchedulerNotRunningError):
            self._scheduler.shutdown(wait=False)

    def look_at_clock(self) -> bool:
        """Whether the wall clock was set (or the box slept) since the last look; all ticks fire now then."""
        offset = _offset()
        jumped = offset - self._offset
        if abs(jumped) < JUMP_SECONDS:
            return False
        self._offset = offset
        log.warning(
            "the clock was set, or the machine was asleep; all timers start again", event_id=Event.CLOCK_JUMPED, seconds=round(jumped, 1)
        )
        for job in self._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC))
        return True


def _offset() -> float:
    return time.time() - time.monotonic()
