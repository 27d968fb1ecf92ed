"""An attempt on another machine, as the runner knows it: all that it says was seen by the link's threads, so that no call ever blocks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import BEGUN, CLAIM, END, FENCE, ORDERS, SAID, SCRIPT, STOP, Claim, End, Orders, Stop
from daemon.running.attempts.executor import Bounds, Progress, Whereabouts
from daemon.running.attempts.progress_channel import READ_LIMIT, Progressing
from daemon.running.attempts.result_file import examine
from daemon.running.cluster.conclusion import Case, result_of
from daemon.running.cluster.course import Act, Course, Over, Signs
from daemon.running.cluster.port import NOT_SEEN, Resources, Scheduler, Sighting, State

Clock = Callable[[], float]
"""Seconds, monotonic."""
LOOKS_A_WAIT = 20.0
"""Looks into the folder of an attempt while its time in the queue doubles, about."""


class ClusterAttempt:
    """An attempt with its course. `look` and `advance` are the link's, one thread at a time; the rest may be called from any other."""

    memory = 0
    wait_handle = cpu = None

    def __init__(
        self, scheduler: Scheduler, context: StageContext, folder: Path, bounds: Bounds, orders: Orders, late: float,
        resources: Resources, *, adopted: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        self.context, self.folder, self.bounds, self.orders = context, folder, bounds, orders
        self.scheduler, self._tail = scheduler.name, scheduler.tail
        self.id = f"{scheduler.name}:{orders.token}"
        self.peak = 0
        self.course = Course(bounds.timeout, bounds.grace, bounds.silence, late)
        self._clock, self._since = clock, clock()
        self.resources, self.script = resources, folder / SCRIPT
        self.unreachable = False
        """Its folder can't be read, and that was said."""
        self.looked = float("-inf")
        """When its folder was looked into last."""
        self.sighting: Sighting = NOT_SEEN
        """As the link's last call to the scheduler gave it."""
        self.cancel = False
        """The scheduler is to be told to end it."""
        self.away = ""
        """As `Link.away`."""
        self._talk = Progressing()
        self._offset = 0
        self._signs = Signs()
        self._whole = False
        """Its result was seen whole, and so were the files that it names: another machine's are seen one after the other."""
        self._result: StageResult | None = None
        self._lock = threading.Lock()
        self._adopted = adopted
        if adopted:
            self._catch_up()

    # For the runner

    @property
    def progress(self) -> Progress:
        """The last thing that it said; where it is until then."""
        place, said = self.place, self._talk.progress
        if self.course.begun_at is None:
            return Progress(0.0, self._in_the_queue(place))
        paused = f"; {self.sighting.reason}" if self.sighting.paused else ""
        return Progress(said.fraction, f"{said.message} (on {place.host}, {self.scheduler} job {place.id}{paused})")

    def _in_the_queue(self, place: Whereabouts) -> str:
        submission = self.orders.submission
        if place.away:
            if submission == "none":
                return f"{place.away}; not handed in yet"
            return f"{place.away}; job {place.id} was handed in" if place.id else f"{place.away}; not known whether it was handed in"
        if submission == "none":
            return f"not handed in to {self.scheduler} yet"
        job, reason = f", job {place.id}" if place.id else "", f": {place.reason}" if place.reason else ""
        return f"waits in the queue of {self.scheduler}{job}{reason}"

    @property
    def warnings(self) -> list[str]:
        """As `Attempt.warnings`."""
        return self._talk.warnings

    @property
    def place(self) -> Whereabouts:
        """Where it is."""
        known, claim = self.sighting, self._signs.claim
        if known.state not in (State.PENDING, State.RUNNING):
            known = self.course.last_known
        state = "running" if self.course.begun_at is not None else str(self.sighting.state)
        host = claim.host if claim is not None else known.host
        return Whereabouts(self.scheduler, self.orders.id or known.id, state, known.word, known.reason, host, self.away)

    def poll(self) -> StageResult | None:
        """As `Attempt.poll`."""
        return self._result

    def stop(self, fault: Fault | None = None) -> None:
        """As `Attempt.stop`."""
        with self._lock:
            self.course.stop(self._clock(), fault)

    def hurry(self) -> None:
        """As `Attempt.hurry`."""
        with self._lock:
            self.course.hurry(self._clock())

    # For the link

    @property
    def over(self) -> bool:
        """Whether the course is over."""
        return self._result is not None

    @property
    def patience(self) -> float:
        """Seconds that its folder may go without a look. What waits in the queue can't show anything there soon, the less the longer it has
        waited."""
        if self.course.begun_at is not None or self.sighting.state is not State.PENDING or self.course.stopped:
            return 0.0
        return (self._clock() - self._since) / LOOKS_A_WAIT

    def look(self) -> Signs:
        """What lies in the folder now. Listing it lets a client of NFS see what another one has written. Raises OSError."""
        names = set(os.listdir(self.folder))
        claim, end = self._signs.claim, self._signs.end
        if claim is None and CLAIM in names:
            claim = elsewhere.get(self.folder, CLAIM, Claim)
        if end is None and END in names:
            end = elsewhere.get(self.folder, END, End)
        said = self._listen() if SAID in names else 0
        if not self._whole and Path(self.context.result).name in names:
            self._whole = examine(self.context)[0] is not None
        return Signs(claim, end, self._whole, said)

    def advance(self, signs: Signs) -> None:
        """Take in the signs, and do what is to be done. Raises OSError; nothing is lost by that."""
        with self._lock:
            self._signs = signs
            first = self.course.begun_at is None
            self.course.unconfirmed = self.orders.submission == "asked" and not self._adopted
            acts = self.course.step(self._clock(), signs, self.sighting)
        if first and self.course.begun_at is not None and signs.claim is not None and signs.claim.by == "worker":
            self._mark_begun()
        for act in acts:
            self._do(act)
        if self.course.over is not None and self._result is None:
            self.peak = max(self.peak, signs.end.peak if signs.end else 0)
            if signs.end is None or signs.end.terminated:
                self.note(ending=self.course.ending)
            began = self.course.begun_at
            seconds = round(self._clock() - began + self.course.ran, 3) if began is not None else 0.0
            case = Case(
                self.context, self.folder, self.bounds, self.orders, self.course, signs.end, self.scheduler, seconds,
                self._tail(self.orders.token, self.folder),
            )  # fmt: skip
            self._result = result_of(case)

    def _do(self, act: Act) -> None:
        if act is Act.CANCEL:
            self.cancel = self.orders.submission != "none"
        elif act is Act.TAKE_BACK:
            elsewhere.take(self.folder, Claim(by="daemon"))
        elif act is Act.STOP:
            elsewhere.put(self.folder, STOP, Stop(fault=self.course.stop_fault))
        else:
            elsewhere.put(self.folder, FENCE, Stop())

    def note(self, **changes: object) -> None:
        """Record what is known of the submission, before anything follows from it. Raises OSError."""
        orders = self.orders.model_copy(update=changes)
        elsewhere.put(self.folder, ORDERS, orders)
        self.orders = orders

    def refuse(self, why: str) -> None:
        """The scheduler does not take it."""
        with self._lock:
            self.course.refusal = why

    @property
    def ended_surely(self) -> bool:
        """Whether nothing of it can run any more: its worker said so, or never began."""
        return self._signs.end is not None or self.course.over is Over.NOT_BEGUN

    def _mark_begun(self) -> None:
        with contextlib.suppress(OSError), open(self.folder / BEGUN, "xb"):
            pass

    def _listen(self) -> int:
        """Take in what it says; how much that is so far, in bytes."""
        with open(self.folder / SAID, "rb") as stream:
            stream.seek(self._offset)
            block = stream.read(READ_LIMIT)
        self._talk.take(block)
        self._offset += len(block)
        return self._offset

    def _catch_up(self) -> None:
        """What an attempt of an earlier daemon has said is in the log already; since when it was seen to run, `BEGUN` says."""
        with contextlib.suppress(OSError):
            while self._offset < os.stat(self.folder / SAID).st_size:
                self._listen()
        self._talk.warnings.clear()
        with contextlib.suppress(OSError):
            begun = os.stat(self.folder / BEGUN).st_mtime
            now = self.folder / f"{BEGUN}.now"
            now.touch()  # both times are a daemon's: a worker's clock may be wrong, and so are the times that Lustre has from it
            self.course.ran = max(0.0, os.stat(now).st_mtime - begun)
            now.unlink()
        stop = elsewhere.get(self.folder, STOP, Stop)
        if stop is not None:
            self.stop(stop.fault)
