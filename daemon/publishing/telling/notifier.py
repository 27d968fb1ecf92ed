"""Delivers the outbox: each message to each target of `[notify]`, in order, at least once, with retries that survive restarts.

One thread; the journal holds what is left to do, for each target by itself, so that one that fails or hangs delays no other and none is
told again because of another. Messages are sent by another process (`daemon.publishing.telling.sender`), the end of each is recorded
afterwards: where the daemon is killed in between, that target is told once more, after each such kill, with the same id. In its quiet
hours a target gets what is urgent alone; the rest is held in the journal, and comes afterwards as one message.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from daemon.config.notify import NotifySettings
from daemon.config.receivers import Receiver
from daemon.contract.faults.secret_url import SecretUrl
from daemon.journal.journal import Journal
from daemon.journal.outbox import Due, Target
from daemon.journal.rows import Message, Notice
from daemon.publishing.telling import entries
from daemon.publishing.telling.heartbeats import Heartbeats
from daemon.publishing.telling.outcome import NO_SERVICE, Attempt, Outcome
from daemon.publishing.telling.quiet import is_quiet, together
from daemon.publishing.telling.sender import Sender
from daemon.publishing.telling.targets import keyed, targets_of
from daemon.publishing.telling.untold import Untold
from daemon.system.logger import Logger
from daemon.system.processes.rounds import Complaints
from daemon.system.processes.threads import Supervised

log = Logger("notify")

FIRST_PAUSE = 5.0
LONGEST_PAUSE = 3600.0
MAX_ATTEMPTS = 60
"""Attempts at one message, about two days with the pauses between them: a service may be away for a whole one."""
MAX_AGE = 172_800.0
"""Seconds after which a message is given up, with all that waits for the same service and is as old."""
PATIENCE = 10
"""Attempts that a message of any age has."""
REJECTIONS = 3
"""Attempts at a message that a service answers and does not take: it holds up the next ones."""
AT_ONCE = 16
"""Services that are told at the same time, each of them one message: those that do not answer keep no place from the others."""
STOP_SECONDS = 5.0
LOOK_SECONDS = 0.5
"""Pause between looks at what is being sent; its end wakes the thread at once."""
SAFE_SECONDS = 30.0
"""Longest pause: not everybody who enters a message says so."""


@dataclass(frozen=True)
class _Flight:
    due: Due
    attempt: Attempt


def pause_after(failures: int) -> float:
    """Seconds until the next attempt after so many failed ones in a row."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 20))


class Notifier:
    """Empties the outbox."""

    def __init__(
        self, settings: NotifySettings, journal: Journal, begin: Callable[[Receiver, Message], Attempt] | None = None,
        clock: Callable[[], float] = time.time, look: Callable[[SecretUrl], Attempt] | None = None,
    ) -> None:  # fmt: skip
        """`begin`: starts to send a message, raises OSError where it can't. `look`: starts to find out whether a URL names a service.
        By default both in a process; with another `begin` alone, nothing is looked at. `clock`: seconds since the epoch."""
        self._settings = settings
        self._journal = journal
        self._sender = Sender()
        self._begin, self._clock = begin or self._sender.begin, clock
        self._look = look or (None if begin else self._sender.look)
        self._unseen: list[str] = []
        """Digests of targets of which it is not known yet whether they are services."""
        self._looks: dict[str, Attempt] = {}
        """Digest → the look at it."""
        self._adopted: NotifySettings | None = None
        self._targets: dict[str, tuple[Target, Receiver]] = {}
        """By digest."""
        self._salt = b""
        self._unknown: dict[str, str] = {}
        """Digest of a target that is no service → why; said once, until the configuration is read again."""
        self._flights: dict[str, _Flight] = {}
        """By the target's digest. One that has ended stays until the journal has taken how, lest the message be sent again."""
        self._hint = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping, self._next_pause = False, 1.0
        self._untold = Untold(self._begin)
        self.heartbeats = Heartbeats(self._sender.beat)
        self.complaints = Complaints(log, "the notifier")
        self.thread = Supervised("notify", self._run, log, stop=self._end)

    def start(self) -> None:
        """Begin delivering, first what an earlier daemon left. What ends from now on is for the services that the configuration names."""
        self.complaints.during(self.know_targets)
        self.thread.start()

    def stop(self) -> None:
        """End after what is being sent, as long as that does not take long."""
        self._end()
        self.thread.join(15)

    def _end(self) -> None:
        self._stopping = True
        self.wake()

    @property
    def sending(self) -> bool:
        """Whether a message is on its way."""
        return bool(self._flights or self._untold or any(self.heartbeats.attempts()))

    def wake(self) -> None:
        """There may be something to deliver; may be called from any thread."""
        os.eventfd_write(self._hint, 1)

    def tell(self, notice: Notice) -> None:
        """Send this without the journal, which can't be written now; it is tried until it arrives or the daemon ends. From any thread."""
        self._untold.add(notice, self._settings.receivers)
        self.wake()

    def _run(self) -> None:
        while not self._stopping:
            self.wait(self._next_pause if self.complaints.during(self._round) else 1.0)
        end = time.monotonic() + STOP_SECONDS
        while self._flights and time.monotonic() < end and self.complaints.during(self._collect):
            self.wait(LOOK_SECONDS)
        for attempt in self._attempts():
            attempt.end()
        self._untold.end()
        self._sender.end()

    def wait(self, seconds: float) -> None:
        """Until `wake`, news of what is being sent, or so long."""
        poll = select.poll()
        handles = [self._hint, *(attempt.wait_handle for attempt in self._attempts())]
        for handle in handles:
            if handle is not None:
                poll.register(handle, select.POLLIN)
        poll.poll(1000 * seconds)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._hint)

    def _attempts(self) -> Iterator[Attempt]:
        yield from (flight.attempt for flight in self._flights.values())
        yield from self._looks.values()
        yield from self.heartbeats.attempts()

    def adopt(self, settings: NotifySettings) -> None:
        """Use other targets from now on; may be called from any thread."""
        self._settings = settings
        self.wake()

    def clock_jumped(self) -> None:
        """The wall clock was set: whatever waits for a time is tried now."""
        self._journal.outbox.hasten()
        self.wake()

    def _round(self) -> None:
        self.tick()
        self._next_pause = self._pause()

    def tick(self) -> None:
        """One round: take in what ended, begin to send what is due."""
        self.heartbeats.tick(self._settings.receivers)  # first: it needs no journal
        self._untold.tick()
        self.know_targets()
        self._keep_news()
        self._look_at_targets()
        self._collect()
        if any(receiver.quiet for _, receiver in self._targets.values()):
            self._release(self._targets)
        self._begin_due()
        self._sender.tidy()

    def know_targets(self) -> None:
        """Let the journal know who is told, as the configuration says it now; what waits for others is dropped."""
        settings, outbox = self._settings, self._journal.outbox
        if self._adopted is settings and not outbox.unaddressed():
            return
        self._salt = outbox.salt() if settings.receivers else b""
        targets = targets_of(settings.receivers, self._salt)
        for gone in outbox.adopt([target for target, _ in targets.values()]):
            entries.dropped(gone.place, gone.messages)
        for digest in self._flights.keys() - targets.keys():
            self._flights.pop(digest).attempt.end()
        for digest in self._looks.keys() - targets.keys():
            self._looks.pop(digest).end()
        if self._adopted is not settings:
            by_url = [digest for digest, (_, receiver) in targets.items() if receiver.kind == "url"]
            self._unknown, self._unseen = {}, [digest for digest in by_url if digest not in self._looks] if self._look else []
            self._release(targets)
        self._adopted, self._targets = settings, targets

    def _keep_news(self) -> None:
        """What heartbeats found out, for who asks the journal."""
        for digest, (_, receiver) in self._targets.items() if self.heartbeats.news else ():
            if receiver.name not in self.heartbeats.news:
                continue
            if (error := self.heartbeats.news[receiver.name]) is None:
                self._journal.outbox.answered(digest)
            else:
                self._journal.outbox.undelivered(digest, error, 0.0)
            del self.heartbeats.news[receiver.name]

    def _look_at_targets(self) -> None:
        """Find out which targets are no services, so that this is told before the first message is lost there."""
        while self._look and self._unseen and len(self._looks) < AT_ONCE:
            try:
                self._looks[self._unseen[0]] = self._look(self._targets[self._unseen[0]][1].url)
            except OSError:
                break  # no process can be started now
            del self._unseen[0]
        for digest, look in list(self._looks.items()):
            if (outcome := look.poll()) is None:
                continue
            if outcome.unknown or outcome.error is None:
                self._journal.outbox.looked_at(digest, outcome.error, NO_SERVICE)
            if outcome.unknown and digest not in self._unknown:
                self._say_unknown(digest, str(outcome.error), 0)
            del self._looks[digest]

    def _pause(self) -> float:
        """Seconds until there is something to do, unless somebody says so earlier."""
        if self._unseen or self._untold or any(self._attempts()):
            return LOOK_SECONDS
        following = self._journal.outbox.next_due() if self._targets else None
        most = self.heartbeats.pause(SAFE_SECONDS)
        return most if following is None else min(most, max(0.0, following - self._clock()))

    def _collect(self) -> None:
        for digest, flight in list(self._flights.items()):
            outcome = flight.attempt.poll()
            if outcome is not None:
                following = self._record(flight.due, outcome)
                del self._flights[digest]
                if following is not None:
                    self._begin_claimed(following)

    def _begin_due(self) -> None:
        for due in self._journal.outbox.due(self._clock(), LONGEST_PAUSE) if self._targets else ():
            if self._stopping:
                return
            if due.target in self._flights:
                continue
            if self._is_to_be_held(due):
                self._journal.letters.hold(due.target, self._targets[due.target][1].urgent)
                self.wake()  # something urgent may wait behind it
            elif due.target in self._unknown:
                self._record(due, Outcome(self._unknown[due.target], unknown=True))
            elif len(self._flights) < AT_ONCE:
                self._send(due)

    def _is_to_be_held(self, due: Due) -> bool:
        receiver = self._targets[due.target][1]
        return self._is_quiet(receiver) and receiver.urgent.isdisjoint(due.message.about.get("events") or (due.message.kind,))

    def _is_quiet(self, receiver: Receiver) -> bool:
        return bool(receiver.quiet) and is_quiet(receiver.quiet, self._clock())

    def _release(self, targets: Mapping[str, tuple[Target, Receiver]]) -> None:
        """Let go of what was held for targets that have no quiet hours now."""
        for digest in self._journal.letters.holding():
            if digest in targets and not self._is_quiet(targets[digest][1]):
                self._journal.letters.release(digest, together)

    def _send(self, due: Due) -> None:
        self._journal.outbox.claim(due.message.id, due.target)
        self._begin_claimed(due)

    def _begin_claimed(self, due: Due) -> None:
        try:
            self._flights[due.target] = _Flight(due, self._begin(self._targets[due.target][1], keyed(due.message, due.target, self._salt)))
        except OSError as error:
            self._record(due, Outcome(f"no process could be started to send it: {error.strerror}"))

    def _record(self, due: Due, outcome: Outcome) -> Due | None:
        """Let the journal know how an attempt ended; gives the next one for that service, where it has been claimed already."""
        outbox, message, (target, receiver) = self._journal.outbox, due.message, self._targets[due.target]
        if outcome.error is None:
            # One commit for both, since a disk takes longer for it than many a service for a message; not where others wait for a place.
            go_on = not self._stopping and len(self._targets) <= AT_ONCE and not self._is_quiet(receiver)
            following = outbox.delivered(message.id, due.target, go_on=go_on)
            entries.sent(target.place, message)
            return following
        now, attempts, failures = self._clock(), due.attempts + 1, due.failures + 1
        asked = min(LONGEST_PAUSE, outcome.retry_after or 0.0)
        pause = 0.0 if outcome.rejected and attempts >= REJECTIONS else max(asked, pause_after(failures))
        if outcome.unknown:
            self._give_up_unknown(due, outcome.error)
        elif pause == 0.0 or attempts >= MAX_ATTEMPTS or (attempts >= PATIENCE and now - message.created >= MAX_AGE):
            count = outbox.give_up(due.target, message.id, outcome.error, now + pause, 0.0 if pause == 0.0 else now - MAX_AGE)
            entries.given_up(target.place, outcome.error, attempts, count)
        else:
            outbox.undelivered(due.target, outcome.error, now + pause)
            entries.not_arrived(target.place, message, outcome.error, attempts, pause)
        return None

    def _give_up_unknown(self, due: Due, error: str) -> None:
        """A URL that is no service takes nothing, and disables itself alone."""
        count = self._journal.outbox.give_up(due.target, due.message.id, error, 0.0, self._clock() + 1)
        if due.target not in self._unknown:
            self._say_unknown(due.target, error, count)

    def _say_unknown(self, target: str, error: str, messages: int) -> None:
        """Say once that a URL is no service."""
        entries.no_service(self._targets[target][0].place, error, messages)
        self._unknown[target] = error
