"""What exports, and checkpoints on their way in, wait for because it is away: since when, for which of them, and what was told of it.

The runner has one, used by its thread alone, and the intake another for the adapters that it adds. Remembered over restarts in a small
file, so that a restart neither tells it again nor begins the time anew for which an export waits (`limits.away_hours`). That time is no
wall clock's, which somebody may set: a box without a battery begins in another year. It goes on from what the file says, by the time
since the machine's start. After a reboot it goes on from where the file was last written.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from daemon.contract.disk.files import boot_id, write_atomic
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.system.logger import Logger

log = Logger("runner")

FIRST_LOOKS, LONGEST_PAUSE = 2.0, 60.0
"""Seconds between two looks at what is away: at first, and at most."""
LOOKS = 15
"""A look is made after another such part of the time that it has been away already."""
LONGEST_THERE, TRIES_THERE = 900.0, 3
"""The same where only another attempt can look, which costs a job of another machine: longest pause, and part of the time. The shortest
is the longest one between looks."""
SAME_SECONDS = 600.0
"""What is away again so soon after it was back is told of no second time: a server that comes and goes is one story."""


class Episode(BaseModel):
    """A time in which something is away. Times are seconds of `Away`'s own clock, about those since the epoch."""

    since: float
    back: float | None = None
    """When it was there again; it is forgotten a while later."""
    jobs: dict[str, float] = {}
    """Export that waits for it → since when."""
    kind: str = ""
    """Of the looks that can find it there."""
    others: set[str] = set()
    """Exports that waited for it, have not found it there since, and wait for something else first, or have come further meanwhile."""


class _Kept(BaseModel):
    """What the file holds."""

    clock: float
    """When it was written, by the clock of `Away`."""
    boot: str
    uptime: float
    """The same since that start of the machine, sleep included."""
    episodes: dict[str, Episode] = {}


class Away:
    """The things that are away, by what names each: a path, or the name of a base. `patience`: seconds that an export waits."""

    def __init__(self, file: Path, patience: float, clock: Callable[[], float] | None = None) -> None:
        """`clock`: seconds since the epoch, for tests; by default steady, and going on where the file ends."""
        self._file, self.patience = file, patience
        self.tell: Callable[[Fault, bool], object] = lambda fault, over: None
        """Called with what is waited for as that begins, and (True) as it is over."""
        self.episodes: dict[str, Episode] = {}
        self._faults: dict[str, Fault] = {}
        kept = None
        with contextlib.suppress(OSError, ValidationError):
            kept = _Kept.model_validate_json(file.read_bytes())
            self.episodes = kept.episodes
        began = _goes_on(kept) - _uptime()
        self._clock = clock or (lambda: began + _uptime())

    def waits(self, job: str, key: str, fault: Fault, kind: str = "", *, there: bool = False) -> float | None:
        """An export finds something away: how long it waits until the next look, in seconds; None where it has waited long enough.

        `kind`: of the look that found it, and that alone can find it again. `there`: it is away for another machine, where only an
        attempt can look.
        """
        if self.patience <= 0:
            return None
        now, before = self._clock(), self.episodes.get(key)
        episode = self.episodes.setdefault(key, Episode(since=now))
        episode.back, episode.kind = None, kind
        self._faults.setdefault(key, fault)  # as it was told, so that its end is told of the same path
        known = job in episode.jobs
        since = min(now, episode.jobs.setdefault(job, now))  # a clock that was set back does not let it wait longer
        episode.others.discard(job)
        self._put_off(job, [other for other in self.episodes if other != key])
        if before is None:
            log.warning(f"waiting: {fault.sentence()}", event_id=Event.EXPORT_WAITING, code=fault.code, path=fault.path)
            self.tell(fault, False)
        if not known:
            self._keep()
        if now - since >= self.patience:
            return None
        if there:
            return min(LONGEST_THERE, max(LONGEST_PAUSE, (now - since) / TRIES_THERE))
        return min(LONGEST_PAUSE, max(FIRST_LOOKS, (now - since) / LOOKS))

    def there(self, job: str, kind: str = "", only: Collection[str] | None = None) -> None:
        """Note that all that a kind of look asks for is there (`only`: these of it): what the export waited for is back. Its time goes on
        where the next attempt says otherwise."""
        for key in [
            key for key, episode in self.episodes.items() if (job in episode.jobs or job in episode.others) and episode.back is None
        ]:
            episode = self.episodes[key]
            # By a look at all, what was waited for long enough counts as there: nothing is waited for any more.
            if episode.kind != kind or (self.is_over(job, key) if only is None else key not in only):
                continue
            episode.back, episode.others = self._clock(), set()
            fault = self._faults.pop(key, None)
            log.info("what exports waited for is there again", event_id=Event.SOURCE_BACK, what=key, since=round(episode.since))
            if fault is not None:
                self.tell(fault, True)
            self._keep()
        self._forget()

    def is_over(self, job: str, key: str) -> bool:
        """Whether an export has waited for something long enough."""
        if self.patience <= 0:
            return True
        since = self.episodes[key].jobs.get(job) if key in self.episodes else None
        return since is not None and self._clock() - since >= self.patience

    def further(self, job: str) -> None:
        """An export has come further: its time begins anew, but for what it waits for no longer."""
        self._put_off(job, [key for key in self.episodes if not self.is_over(job, key)])
        self._forget()

    def ended(self, job: str) -> None:
        """An export is over: it waits for nothing."""
        for episode in self.episodes.values():
            if episode.jobs.pop(job, None) is not None or job in episode.others:
                episode.others.discard(job)
                self._keep()
        self._forget()

    def _put_off(self, job: str, keys: Sequence[str]) -> None:
        """An export waits for these no longer, and its time with them is over; whether they are back it will find out later."""
        for episode in [self.episodes[key] for key in keys if job in self.episodes[key].jobs]:
            del episode.jobs[job]
            if episode.back is None:
                episode.others.add(job)
            self._keep()

    def _forget(self) -> None:
        """Drop episodes for which nobody waits any more, or whose source has been back for long."""
        now = self._clock()
        for key, episode in list(self.episodes.items()):
            if not episode.jobs and not episode.others and (episode.back is None or abs(now - episode.back) > SAME_SECONDS):
                del self.episodes[key]
                self._faults.pop(key, None)
                self._keep()

    def _keep(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk it is told once more after a restart
            kept = _Kept(clock=self._clock(), boot=boot_id(), uptime=_uptime(), episodes=self.episodes)
            write_atomic(self._file, kept.model_dump_json(), durable=False)


def _goes_on(kept: _Kept | None) -> float:
    """What the clock says now: the wall clock's time where nothing was kept."""
    if kept is None or not kept.episodes:
        return time.time()
    same_boot = kept.boot and kept.boot == boot_id()
    return kept.clock + (max(0.0, _uptime() - kept.uptime) if same_boot else 0.0)


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
