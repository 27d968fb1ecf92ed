"""The course of one attempt on another machine: what is to be done about it, decided from what its folder and its scheduler show. Pure.

The clock is an argument, the daemon's own and monotonic: no time that another machine wrote is ever compared with it. Rules:
- the files decide: `END`, or a result file, is how an attempt ended, whatever its scheduler says;
- a scheduler that gives no answer ends nothing;
- one that says "gone" is believed only when nothing was heard of the attempt for `late` seconds more, since a file may be seen late; an
  attempt that somebody has claimed is fenced then, and one that nobody has is taken back by the claim;
- one that waits again after it ran was requeued by somebody: that ends the attempt as if it were gone, since its claim is made for good;
- one that its scheduler has suspended is neither silent nor at work meanwhile;
- nothing is submitted twice: where the answer to a submission was lost, the job is looked for by its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.processes.elsewhere import Claim, End
from daemon.running.cluster.port import NOT_SEEN, Ending, Sighting, State

UNCONFIRMED_SECONDS = 5.0
"""That a stopped attempt which its scheduler no longer knows is waited for: its result matters only where it was complete by then. So long
also one is waited for that nobody has claimed, whose submission got no answer, and whose name the scheduler does not know: whatever comes
late of it finds the claim taken, and ends."""


class Act(Enum):
    """What the caller has to do now."""

    CANCEL = auto()
    """Tell the scheduler to end the job."""
    TAKE_BACK = auto()
    """Make the claim, so that no worker can any more; what comes of it is in the next signs."""
    STOP = auto()
    """Write the file that asks the worker to stop."""
    FENCE = auto()
    """Write the file at which the worker ends at once."""


class Breach(Enum):
    """A bound that an attempt broke."""

    TIMEOUT = auto()
    SILENCE = auto()


class Over(Enum):
    """How a course ended."""

    EXITED = auto()
    """By itself: result file and exit code say how."""
    NOT_BEGUN = auto()
    """It was taken back before any worker had it."""
    LOST = auto()
    """It began, is gone, and left nothing."""


@dataclass(frozen=True)
class Signs:
    """What lies in the attempt's folder."""

    claim: Claim | None = None
    end: End | None = None
    result: bool = False
    """Whole, with the files that it names."""
    said: int = 0
    """Bytes of the progress channel: that they grow is a sign of life."""


@dataclass
class Course:
    """An attempt's course. Feed `step` until it is `over`; what it gives is to be done before the next."""

    timeout: float
    grace: float
    silence: float
    late: float
    """Seconds that a file may be seen late."""
    ran: float = 0.0
    """Seconds for which it had run when it was taken over."""
    over: Over | None = None
    sighting: Sighting = NOT_SEEN
    """The last answer of the scheduler."""
    last_known: Sighting = NOT_SEEN
    """The last that knew the job."""
    stop_fault: Fault | None = None
    breach: Breach | None = None
    """The bound for which it was stopped."""
    stopped_at: float | None = None
    hurried: bool = False
    refusal: str = ""
    """Why the scheduler does not take it."""
    begun_at: float | None = None
    unconfirmed: bool = False
    """Whether its submission got no answer."""
    requeued: bool = False
    """Whether the scheduler lets it wait again after it ran."""
    _said: int = -1
    _heard_at: float = 0.0
    _stepped_at: float = 0.0
    _gone_at: float | None = None
    _complete_at: float | None = None
    """Since when there are the last words, or a result without them."""
    _done: set[Act] = field(default_factory=set)

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self.stopped_at is not None

    def stop(self, now: float, fault: Fault | None = None) -> None:
        """As `Attempt.stop`."""
        if self.stopped_at is None:
            self.stopped_at, self.stop_fault = now, fault

    def hurry(self, now: float) -> None:
        """As `Attempt.hurry`."""
        self.stop(now)
        self.hurried = True

    def step(self, now: float, signs: Signs, sighting: Sighting) -> list[Act]:
        """Take in what is seen at the time `now`; gives what is to be done. `sighting`: of a look that began after the submission."""
        if self.over is not None:
            return []
        self._take_in(now, signs, sighting)
        if signs.claim is not None and signs.claim.by == "daemon":
            self.over = Over.NOT_BEGUN
            return self._first(Act.CANCEL) if not self.refusal else []
        if signs.end is not None or signs.result:
            return self._complete(now, signs)
        self._complete_at = None
        if self.refusal:
            return [Act.TAKE_BACK]
        if self._is_lost(now):
            if signs.claim is None:
                return [Act.TAKE_BACK]
            self.over = Over.LOST
            return [*self._first(Act.FENCE), *self._no_more()]
        return self._bounded(now, signs)

    def _take_in(self, now: float, signs: Signs, sighting: Sighting) -> None:
        if signs.said != self._said or self._said < 0:
            self._said, self._heard_at = signs.said, now
        if signs.claim is not None and signs.claim.by == "worker" and self.begun_at is None:
            self.begun_at = self._heard_at = now
        elif sighting.paused and self.begun_at is not None:
            self._heard_at, self.begun_at = now, self.begun_at + now - self._stepped_at
        self._stepped_at = now
        self.sighting = sighting
        if sighting.state is State.PENDING and (self.requeued or self.last_known.state is State.RUNNING):
            self.requeued = True
            self._gone_at = now if self._gone_at is None else self._gone_at
        elif sighting.state in (State.PENDING, State.RUNNING):
            self._gone_at, self.last_known = None, sighting
        elif sighting.state is State.GONE:
            self._gone_at = now if self._gone_at is None else self._gone_at
            if sighting.word:
                self.last_known = sighting

    def _complete(self, now: float, signs: Signs) -> list[Act]:
        """It has ended, or written a result and is about to."""
        self._complete_at = now if self._complete_at is None else self._complete_at
        waited = now - max(self._complete_at, self._heard_at)
        if signs.end is not None:
            whole = signs.result or not signs.end.result
            if signs.end.terminated and not self.stopped:
                whole = self._gone_at is not None  # the scheduler's word for why it ended the job comes a little later
        else:
            whole = self._gone_at is not None  # nothing but its supervisor's last words was lost
        if whole or waited >= self.late:
            self.over = Over.EXITED
            return [*([] if signs.end is not None else self._first(Act.FENCE)), *self._no_more()]
        return []

    def _is_lost(self, now: float) -> bool:
        if self._gone_at is None:
            return False
        never_seen = self.unconfirmed and self.begun_at is None and self.last_known is NOT_SEEN
        patience = min(self.late, UNCONFIRMED_SECONDS) if self.stopped or never_seen else self.late
        return now - max(self._gone_at, self._heard_at) >= patience

    def _bounded(self, now: float, signs: Signs) -> list[Act]:
        """Keep to the bounds, and carry out a stop."""
        if self.begun_at is not None and not self.stopped:
            if now - self.begun_at + self.ran > self.timeout:
                self.stopped_at, self.breach = now, Breach.TIMEOUT
            elif now - self._heard_at > self.silence and self.sighting.state is not State.UNKNOWN:
                self.stopped_at, self.breach = now, Breach.SILENCE
        if self.stopped_at is None:
            return []
        if signs.claim is None:
            return [Act.TAKE_BACK]
        acts = self._first(Act.STOP)
        waited = now - self.stopped_at
        if self.hurried or waited > self.grace:
            acts += self._first(Act.FENCE) + self._first(Act.CANCEL)
        return acts

    def _no_more(self) -> list[Act]:
        """What waits in the queue again is to leave it."""
        return self._first(Act.CANCEL) if self.requeued else []

    def _first(self, act: Act) -> list[Act]:
        """The act, where it has not been given yet."""
        if act in self._done:
            return []
        self._done.add(act)
        return [act]

    @property
    def ending(self) -> Ending:
        """What the scheduler says of the end of it."""
        ending = self.last_known.ending if self.last_known.state is State.GONE else Ending.ENDED
        return Ending.REQUEUED if self.requeued and ending in (Ending.ENDED, Ending.CANCELLED) else ending
