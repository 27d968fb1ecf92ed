"""Why jobs wait: for memory, for disk, for a window, for their next attempt.

A part of the runner; the live view copies `of` to show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.rows import JobRow
from daemon.running.attempts.children import Children
from daemon.running.rules import ready
from daemon.system.box import memory
from daemon.system.logger import Logger

log = Logger("runner")

SHORTEST_PAUSE = 0.1
PATIENCE_SECONDS = 120.0
"""After so long a job that waits for memory gets the next that comes free, though smaller stages would fit before it."""
MEMORY = FaultCode.MEMORY_NOW
FOR_ROOM = frozenset({FaultCode.DISK_FULL, FaultCode.DISK_NOW, FaultCode.JOURNAL_UNAVAILABLE})
"""What a job waits for that room on a disk may end."""


@dataclass
class Waiting:
    """Why a job waits, since when, and when (monotonic) it is checked again."""

    fault: Fault
    since: float
    until: float
    need: int = 0
    """Bytes of memory that it waits for."""
    room: int = 0
    """Bytes of disk that must be free where its fault says, where it waits for them."""
    said_last: tuple[str, float] | None = None
    """Code of what was said last in the log, and since when the job has waited for that, with short waits in between."""

    @property
    def is_long(self) -> bool:
        """Whether it may take long, so that another job may be begun meanwhile."""
        return self.fault.code not in ready.SOON


class Waits:
    """The waiting jobs by id."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self.of: dict[str, Waiting] = {}
        self.refused: Callable[[Fault | None], object] = lambda fault: None
        """Called with what kept something from being written."""
        self.alone: dict[tuple[str, str], float] = {}
        """(job, stage) that waits to run alone → since when (monotonic). A changed configuration does not begin its patience again."""

    def __contains__(self, job: object) -> bool:
        return job in self.of

    def __len__(self) -> int:
        return len(self.of)

    def may_move(self, job: str) -> bool:
        """Whether it is time to look at a job."""
        waiting = self.of.get(job)
        return waiting is None or time.monotonic() >= waiting.until

    def due(self, jobs: Iterable[JobRow]) -> Iterator[JobRow]:
        """Of these jobs those that it is time to look at, each as its turn comes."""
        for job in jobs:
            if self.may_move(job.id):
                yield job

    def pause(self, most: float) -> float:
        """Seconds until a job is to be looked at again, at most `most`."""
        return min(most, max(SHORTEST_PAUSE, min(waiting.until for waiting in self.of.values()) - time.monotonic()))

    def add(self, job: str, fault: Fault, seconds: float, need: int = 0, room: int = 0, *, said: bool = False) -> None:
        """The job waits: say it once, and ask again after `seconds`. One that has children is not waiting. `said`: it is in the log
        already, as what several jobs wait for."""
        if self._children.of(job):
            return
        before, now = self.of.get(job), time.monotonic()
        said_last = before.said_last if before else None
        if fault.code in ready.SOON:
            since = before.since if before and before.fault.code == fault.code else now
        else:
            if said_last is None or said_last[0] != fault.code:
                if not said:
                    log.warning(f"waiting: {fault.sentence()}", event_id=Event.EXPORT_WAITING, code=fault.code)
                said_last = (fault.code, now)
            since = said_last[1]
        self.of[job] = Waiting(fault, since, now + seconds, need, room, said_last)

    def end(self, job: str) -> None:
        """The job does not wait any more, or has ended."""
        self.of.pop(job, None)

    def forget_alone(self, job: str, but: Collection[str] = ()) -> None:
        """Hold nothing back for the sake of a job that has ended or waits for something else, `but` for these of its stages."""
        for key in [key for key in self.alone if key[0] == job and key[1] not in but]:
            del self.alone[key]

    def room_again(self) -> None:
        """There is room on the disks again: what waits for some is looked at at once."""
        for waiting in self.of.values():
            if waiting.fault.code in FOR_ROOM:
                waiting.until = 0.0

    def held_for_others(self, job: str) -> int:
        """Bytes of memory that `job` has to leave alone, since another one has waited for them too long."""
        now = time.monotonic()
        others = [
            waiting for owner, waiting in self.of.items()
            if owner != job and waiting.fault.code == MEMORY and now - waiting.since > PATIENCE_SECONDS
        ]  # fmt: skip
        oldest = min(others, key=lambda waiting: waiting.since, default=None)
        mine = self.of.get(job)
        if oldest is None or (mine is not None and mine.fault.code == MEMORY and mine.since < oldest.since):
            return 0
        # It must be memory that our own children hold, or holding back would help nobody.
        reachable = memory()[1] + sum(running.memory for running in self._children.running.values())
        return oldest.need if oldest.need <= reachable else 0
