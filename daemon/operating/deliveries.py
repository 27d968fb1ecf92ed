"""The queue of deliveries beside the daemon's other threads: there while the configuration has a `[[deliver]]`, else nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from daemon.contract.delivering.orders import Progress
from daemon.contract.faults.errors import Fault
from daemon.operating.engine import Engine
from daemon.system.processes.rounds import Complaints
from daemon.system.processes.threads import Supervised

if TYPE_CHECKING:
    from daemon.delivering.queue import Deliveries


class Delivering:
    """Begins, changes and ends the queue as the configuration says."""

    def __init__(self, parts: Engine, noted: Callable[[Fault], object]) -> None:
        """`noted`: as of `Complaints`."""
        self._parts, self._noted = parts, noted
        self._queue: Deliveries | None = None

    def adopt(self) -> None:
        """Go by the configuration as it is now. Raises as the journal does."""
        settings, journal = self._parts.settings, self._parts.journal
        if not settings.deliver:
            self.stop()
            if journal.shipments.exports_in_use():  # its targets left while there was no daemon, or just now
                journal.shipments.adopt(())
            return
        from daemon.delivering.queue import Deliveries, Wanted  # for nobody who delivers nothing

        wanted = Wanted(settings.deliver, tuple(settings.limits.pass_environment), settings.notify.wants)
        if self._queue is not None:
            self._queue.adopt(wanted)
            return
        self._queue = Deliveries(wanted, journal, self._parts.paths.deliveries, self._parts.paths.output)
        self._queue.complaints.noted = self._noted
        self._queue.thread.lost = self._parts.attention.set
        self._queue.start()

    def stop(self) -> None:
        """End the thread with what it carries; the next one goes on with that."""
        if self._queue is not None:
            self._queue.stop()
            self._queue = None

    def wake(self) -> None:
        """There may be something to deliver."""
        if self._queue is not None:
            self._queue.wake()

    def clock_jumped(self) -> None:
        """The wall clock was set."""
        if self._queue is not None:
            self._queue.clock_jumped()

    def progress(self) -> tuple[Progress, ...]:
        """How far what is carried is."""
        return self._queue.progress() if self._queue is not None else ()

    @property
    def threads(self) -> tuple[Supervised, ...]:
        """Its thread, while there is one."""
        return (self._queue.thread,) if self._queue is not None else ()

    @property
    def complaints(self) -> tuple[Complaints, ...]:
        """What its rounds met, while there are some."""
        return (self._queue.complaints,) if self._queue is not None else ()
