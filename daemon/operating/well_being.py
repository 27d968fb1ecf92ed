"""What of the daemon's condition is told, and when: neither a moment's trouble, nor the same twice.

Called by the daemon's main loop in each round. Signs of life (heartbeats) stop while the daemon is not well, and where this loop hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from daemon.config.notify import NotifySettings
from daemon.contract import units
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.journal import Journal
from daemon.journal.progress import idle_since
from daemon.operating.announcements import BEGUN, Announcements
from daemon.operating.monitoring.live import Condition
from daemon.running.runner import Runner

LASTING_SECONDS = 60.0
"""What is over sooner is not told, neither as trouble nor as its end."""
LOOK_SECONDS = 60.0
"""Between looks at the queue."""
HANGING_SECONDS = 180.0
"""Without a round the main loop hangs."""
DEATH_SECONDS = 600.0
"""Between two messages of threads that died."""


def why_stuck(settings: NotifySettings, journal: Journal, runner: Runner) -> str:
    """Why no open export makes progress, as a sentence; "" where one does, or where what they wait for is told already or is meant so."""
    limit = 3600 * settings.stuck_hours
    if not limit or journal.controls.paused_since() is not None:
        return ""
    starving = [(seconds, running) for running, seconds in runner.children.starved() if seconds >= limit]
    if starving:
        seconds, running = max(starving, key=lambda pair: pair[0])
        return f"For {units.duration(seconds)} the stage {running.stage} of {running.job.id} has got next to no CPU time."
    since = idle_since(journal.database)
    idle = 0.0 if since is None else (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()
    waits = dict(runner.waits.of)
    if idle < limit or runner.away.episodes or any(wait.fault.code in _TOLD for wait in waits.values()):
        return ""
    said = "".join(f" {job}: {wait.fault.sentence()}" for job, wait in list(waits.items())[:1])
    return f"For {units.duration(idle)} nothing has gone on though exports are open.{said}"


_TOLD = frozenset({FaultCode.WINDOW_CLOSED, FaultCode.DISK_FULL, FaultCode.DISK_NOW})
"""What exports wait for by a person's wish, or that is told as an event of its own."""


@dataclass
class WellBeing:
    """Follows the condition. `stuck`: says why no open export makes progress, "" where one does; asked now and then."""

    announcements: Announcements
    stuck: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    is_told: bool | None = None
    """Whether people were told that it is not well; None: not known yet."""
    _since: float | None = None
    """Since when the condition is another one than what was told."""
    _looked: float = field(default_factory=time.monotonic)
    _stuck_at: float | None = None
    _deaths: set[str] = field(default_factory=set)
    _death_at: float | None = None

    def is_well(self) -> bool:
        """Whether there may be a sign of life. From any thread."""
        return not self.is_told and self.clock() - self._looked < HANGING_SECONDS

    def look(self, condition: Condition) -> None:
        """One round."""
        now = self._looked = self.clock()
        if self.is_told is None:
            self.is_told = self.announcements.state_of("unwell") == BEGUN
        if bool(condition.unwell) == self.is_told:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= LASTING_SECONDS:
            self.announcements.tell_unwell(condition.unwell, over=self.is_told)
            self.is_told, self._since = not self.is_told, None
        self._look_at_threads(condition, now)
        if self._stuck_at is None or now - self._stuck_at >= LOOK_SECONDS:
            self._stuck_at = now
            sentence = self.stuck()
            if bool(sentence) != (self.announcements.state_of("stuck") == BEGUN):
                self.announcements.tell_stuck(sentence, over=not sentence)

    def _look_at_threads(self, condition: Condition, now: float) -> None:
        for death in condition.deaths:
            name = f"{death.thread} {death.at}"
            if name not in self._deaths and (self._death_at is None or now - self._death_at >= DEATH_SECONDS):
                self._death_at = now
                self.announcements.tell_death(death.thread, death.at, death.why)
            self._deaths.add(name)
