"""Carries exports to the targets of `[[deliver]]`: the journal holds what is left to do, a process does it, this thread sees to both.

One thread, with a few processes at once, one for each target: of a run the oldest step comes first, so that what people follow moves
forward. What may pass is tried again after a pause, what can't is left until a person or the configuration changes something. An attempt
is counted before its process exists, and its end is taken in before another begins: a daemon that is killed anywhere goes on with the
notes that were kept. Without any target there is no such thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.delivering.orders import End, Move, Progress
from daemon.contract.disk import failpoints
from daemon.contract.faults.errors import Fault, from_oserror
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.secrets import keep
from daemon.delivering import entries, rules
from daemon.delivering.attempts import Attempts, Flight
from daemon.delivering.endpoint import Endpoint
from daemon.delivering.entering import enter_lost, is_best
from daemon.delivering.orders import environment_of, source_of, terms_of, unreadable_secret
from daemon.delivering.troubled import Troubled, changed
from daemon.journal.journal import Journal
from daemon.journal.rows import Notice
from daemon.journal.shipment_rows import ShipmentRow
from daemon.journal.shipments import Destination
from daemon.system.logger import Logger
from daemon.system.processes.rounds import Complaints
from daemon.system.processes.threads import Supervised

log = Logger("deliver")

AT_ONCE = 4
"""Targets that something is carried to at the same time."""
LOOK_SECONDS = 1.0
"""Between two looks at what runs; a word of it wakes the thread at once."""
SAFE_SECONDS = 5.0
"""Longest pause: who enters a delivery by hand does not wake the thread."""
SHORTEST_PAUSE = 0.05
"""Between two rounds: a process that writes without end does not keep the processor."""
STOP_SECONDS = 5.0
_ALL_FAIL = frozenset({FaultCode.DELIVERY_FAR_END, FaultCode.DELIVERY_FULL})
"""What is the target's trouble, not one export's: nothing else is carried there meanwhile."""


@dataclass(frozen=True)
class Wanted:
    """What of the configuration the queue goes by."""

    targets: tuple[Endpoint, ...]
    pass_environment: tuple[str, ...] = ()
    """Further variables of the daemon's environment that processes get."""
    wants: Callable[[str], bool] = lambda event: False
    """Whether anybody is to be told of an event."""


class Deliveries:
    """The queue."""

    def __init__(self, wanted: Wanted, journal: Journal, folder: Path, output: Path, clock: Callable[[], float] = time.time) -> None:
        """`folder`: for logs and temporary files; `output`: the folder that holds all exports; `clock`: seconds since the epoch."""
        self._wanted = wanted
        self._adopted: Wanted | None = None
        self._targets: dict[str, tuple[Endpoint, str]] = {}
        """By name, with the digest of its settings."""
        self._journal, self._output, self._clock = journal, output, clock
        self._attempts = Attempts(journal, folder, self._environment)
        self._flights: dict[str, Flight] = {}
        """By the target's name. One that has ended stays until the journal has taken how."""
        self._troubled = Troubled(clock)
        self._hint = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = self._recovered = False
        self.complaints = Complaints(log, "the deliveries")
        self.thread = Supervised("deliver", self._run, log, stop=self._end)

    def start(self) -> None:
        """Begin, first with what an earlier daemon left."""
        self.thread.start()

    def stop(self) -> None:
        """End, with the processes that run: what they carried so far is gone on with by the next daemon."""
        self._end()
        self.thread.join(3 * STOP_SECONDS)

    def _end(self) -> None:
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """There may be something to deliver; may be called from any thread."""
        os.eventfd_write(self._hint, 1)

    def adopt(self, wanted: Wanted) -> None:
        """Go by another configuration from now on; may be called from any thread."""
        self._wanted = wanted
        self.wake()

    def clock_jumped(self) -> None:
        """The wall clock was set: whatever waits for a time is tried now. From any thread."""
        self._journal.shipments.hasten()
        self.wake()

    def progress(self) -> tuple[Progress, ...]:
        """How far what runs is; for any thread."""
        return tuple(flight.progress for flight in list(self._flights.values()))

    def _run(self) -> None:
        while not self._stopping:
            self.wait(self._pause() if self.complaints.during(self.tick) else LOOK_SECONDS)
        self._end_flights()

    def wait(self, seconds: float) -> None:
        """Until `wake`, a word of what runs, or so long."""
        poll = select.poll()
        for handle in (
            self._hint,
            *(handle for flight in self._flights.values() if flight.end is None for handle in flight.process.handles),
        ):
            poll.register(handle, select.POLLIN)
        if poll.poll(1000 * seconds) and self._flights:
            time.sleep(SHORTEST_PAUSE)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._hint)

    def _pause(self) -> float:
        if self._flights:
            return LOOK_SECONDS
        due = self._journal.shipments.next_due()
        moments = [moment for moment in (due, *self._troubled.ends()) if moment is not None and moment > self._clock()]
        return min([SAFE_SECONDS, *(moment - self._clock() for moment in moments)])

    def tick(self) -> None:
        """One round: take in what was said and what ended, begin what is due."""
        self._know_targets()
        self._recover()
        for flight in list(self._flights.values()):
            self._see(flight)
        for name in self._targets:
            if not self._stopping and name not in self._flights and len(self._flights) < AT_ONCE:
                self._begin_next(name)

    def _recover(self) -> None:
        """Take up what an earlier daemon had begun."""
        if not self._recovered:
            for shipment in self._journal.shipments.recover(self._clock(), rules.FIRST_PAUSE):
                entries.resumed(shipment)
            self._recovered = True

    def _know_targets(self) -> None:
        """Let the journal know where exports go, as the configuration says it now; what waits for others is dropped."""
        wanted = self._wanted
        if self._adopted is wanted:
            return
        for target in wanted.targets:
            keep(list(target.secrets))
        key = self._journal.outbox.salt()
        targets = {target.name: (target, terms_of(target, key)) for target in wanted.targets}
        for name in self._flights.keys() - targets.keys():
            self._flights[name].process.stop()
        for name in self._journal.shipments.adopt([Destination(name, terms) for name, (_, terms) in targets.items()]):
            entries.left(name)
        self._troubled.forget(*changed(self._targets, targets))
        self._journal.shipments.hasten()  # who corrects something does not wait for it
        if enter_lost(self._journal, {name: target for name, (target, _) in targets.items()}):
            log.info("deliveries that a rebuilt journal had lost are entered again", event_id=Event.DELIVERY_RESUMED)
        self._adopted, self._targets = wanted, targets

    def _see(self, flight: Flight) -> None:
        """Take in what an attempt said, and how it ended."""
        self._attempts.read(flight)
        if flight.end is not None:
            self._record(flight, flight.end)
            self._flights.pop(flight.shipment.target, None)

    def _begin_next(self, name: str) -> None:
        shipment = self._journal.shipments.due(name, self._clock())
        if shipment is None or self._troubled.keeps(shipment):
            return
        target, terms = self._targets[name]
        source = source_of(shipment, self._output)
        if source.replaced:
            self._drop(shipment, f"the export of {source.replaced} has taken its place")
        elif source.gone:
            self._refuse(shipment, source.gone, terms)
        elif (attempt := self._journal.shipments.claim(shipment)) is not None:
            failpoints.point("deliver.claimed")
            if source.away:
                self._retry(shipment, attempt, source.away, None)
            else:
                self._begin(target, shipment, attempt)

    def _begin(self, target: Endpoint, shipment: ShipmentRow, attempt: int) -> None:
        entries.started(shipment, attempt)
        try:
            self._flights[target.name] = self._attempts.begin(target, shipment, attempt, self._move_of(target, shipment))
        except OSError as error:
            self._retry(shipment, attempt, from_oserror(error, f"deliver to {target.name}").fault, None)
        except ValueError as error:
            self._fail(shipment, attempt, unreadable_secret(target, error))
        failpoints.point("deliver.began")

    def _move_of(self, target: Endpoint, shipment: ShipmentRow) -> Move:
        """Whether the name that people follow moves: with `best` to what is the best now, also where its step is the earlier one."""
        if target.policy != "best" or shipment.by_hand:
            return shipment.move
        job = self._journal.jobs.get(shipment.job)
        return "force" if job is not None and is_best(job, shipment.export) else "keep"

    def _record(self, flight: Flight, end: End) -> None:
        shipment, attempt = flight.shipment, flight.attempt
        if end.receipt is not None:
            notice = entries.notice_of_delivered(shipment, end.receipt) if self._wanted.wants("delivered") else None
            if self._journal.shipments.delivered(shipment.id, attempt, end.receipt, notice):
                entries.delivered(shipment, end.receipt)
            self._troubled.forget(shipment.target)
        elif end.fault is None:
            cause, remedy = "its process ended without a receipt", "report it with the attempt's log"
            self._retry(shipment, attempt, Fault(code=FaultCode.UNEXPECTED, operation="deliver", cause=cause, remedy=remedy), None)
        elif not end.permanent:
            self._retry(shipment, attempt, end.fault, end.retry_after)
        elif (source := source_of(shipment, self._output)).replaced:
            self._drop(shipment, f"the export of {source.replaced} has taken its place")
        elif source.away:
            self._retry(shipment, attempt, source.away, None)
        else:
            self._fail(shipment, attempt, source.gone or end.fault)

    def _retry(self, shipment: ShipmentRow, attempt: int, fault: Fault, asked: float | None) -> None:
        """Try again after a pause; what has failed for too long is left to a person."""
        clock, failures = self._clock(), shipment.failures + 1
        if rules.is_given_up(attempt, shipment.failing_since, clock):
            self._fail(shipment, attempt, fault)
            return
        if fault.code in _ALL_FAIL:
            failures = max(failures, self._troubled.failures(shipment.target) + 1)
        delay = max(rules.pause_after(failures), min(asked or 0.0, rules.LONGEST_PAUSE))
        if self._journal.shipments.retry(shipment.id, attempt, fault, clock, delay):
            entries.retried(shipment, fault, attempt, delay)
        if fault.code in _ALL_FAIL:
            self._troubled.hold(shipment.target, failures, delay)

    def _fail(self, shipment: ShipmentRow, attempt: int, fault: Fault) -> None:
        terms = self._terms_of(shipment)
        if self._journal.shipments.failed(shipment.id, attempt, fault, terms, self._notice_of(shipment, fault)):
            entries.failed(shipment, fault)

    def _refuse(self, shipment: ShipmentRow, fault: Fault, terms: str) -> None:
        self._journal.shipments.refuse(shipment.id, fault, terms, self._notice_of(shipment, fault))
        entries.failed(shipment, fault)

    def _notice_of(self, shipment: ShipmentRow, fault: Fault) -> Notice | None:
        """What people are told of a failure: once for all that fail at a target for the same reason."""
        if not self._wanted.wants("delivery_failed"):
            return None
        if fault.code != FaultCode.DELIVERY_SOURCE and self._journal.shipments.fails_already(shipment.target, fault.code):
            return None
        return entries.notice_of_failed(shipment, fault)

    def _terms_of(self, shipment: ShipmentRow) -> str:
        known = self._targets.get(shipment.target)
        return known[1] if known else ""

    def _drop(self, shipment: ShipmentRow, reason: str) -> None:
        self._journal.shipments.drop(shipment.id, reason)
        entries.dropped(shipment, reason)

    def _environment(self, target: Endpoint) -> Mapping[str, str]:
        return environment_of(target, self._wanted.pass_environment)

    def _end_flights(self) -> None:
        """Ask what runs to end, end it where it does not, and record it as interrupted, unless it had ended by itself."""
        for flight in self._flights.values():
            flight.process.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while any(not flight.process.has_ended() for flight in self._flights.values()) and time.monotonic() < deadline:
            self.wait(0.1)
        for flight in list(self._flights.values()):
            flight.process.kill()
            self.complaints.during(lambda flight=flight: self._interrupt(flight))  # type: ignore[misc]
        self._flights.clear()

    def _interrupt(self, flight: Flight) -> None:
        while flight.end is None:
            self._attempts.read(flight)
            time.sleep(0.01)
        if flight.end.receipt is not None:
            self._record(flight, flight.end)
        else:
            self._journal.shipments.interrupted(flight.shipment.id, flight.attempt)
