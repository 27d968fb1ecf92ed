"""The daemon's side of a scheduler: one thread talks to it, one looks into the attempts' folders. Either may hang without the other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime

from daemon.contract.faults.events import Event
from daemon.contract.faults.text import local_time
from daemon.running.cluster.attempt import Clock, ClusterAttempt
from daemon.running.cluster.port import ABSENT, NOT_SEEN, Full, Refused, Scheduler, Unasked, Unsure
from daemon.system.logger import Logger
from daemon.system.processes.threads import Supervised

log = Logger("cluster")

LOOK_SECONDS = 5.0
"""Between questions to the scheduler about all attempts: twelve a minute."""
SUBMISSIONS_A_SECOND = 20.0
FULL_SECONDS = 30.0
"""After the scheduler said that it takes no more, or could not be asked."""
QUICK_SECONDS, SLOW_SECONDS = 0.2, 5.0
"""Between looks into the folders: of a few attempts, and of attempts that have waited in a queue for long or are very many."""
LOOKS_A_SECOND = 200.0


class Link:
    """Carries attempts to a scheduler and back."""

    def __init__(self, scheduler: Scheduler, clock: Clock = time.monotonic) -> None:
        self.scheduler, self._clock = scheduler, clock
        self._looked = float("-inf")
        self.away_since: float | None = None
        """Since when (monotonic) it has given no answer; None while it does."""
        self.away = ""
        """The same in words, with the reason; "" while it does."""
        self._attempts: dict[str, ClusterAttempt] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self.runs = True
        """Whether it has threads of its own; else somebody calls `call` and `watch`."""
        self.pause: Callable[[float], object] = time.sleep
        self._full_until = 0.0
        self._stopping = False
        self._threads: list[Supervised] = []

    def add(self, attempt: ClusterAttempt) -> None:
        """Care for an attempt from now on."""
        with self._lock:
            self._attempts[attempt.orders.token] = attempt
            attempt.away = self.away
            if not self._threads and self.runs:
                name = self.scheduler.name
                self._threads = [Supervised(f"{name}-calls", self._call, log), Supervised(f"{name}-files", self._watch, log)]
                for thread in self._threads:
                    thread.start()
        self._news.set()

    def close(self) -> None:
        """End the threads; what runs there goes on."""
        self._stopping = True
        self._news.set()
        for thread in self._threads:
            thread.join(2 * QUICK_SECONDS)

    def _open(self) -> list[ClusterAttempt]:
        with self._lock:
            for token in [token for token, attempt in self._attempts.items() if attempt.over and not attempt.cancel]:
                del self._attempts[token]
            return list(self._attempts.values())

    # The scheduler's thread

    def _call(self) -> None:
        while not self._stopping:
            self._news.wait(QUICK_SECONDS if self.call() else LOOK_SECONDS)
            self._news.clear()

    def call(self) -> int:
        """Say to the scheduler what there is to say, and ask it where it is time; gives for how many attempts."""
        attempts = self._open()
        self._cancel(attempts)
        for attempt in attempts:
            if attempt.orders.submission == "none" and not attempt.course.stopped and not self._stopping:
                self._submit(attempt)
                self._look_where_due(attempts)
        self._look_where_due(attempts)
        return len(attempts)

    def _look_where_due(self, attempts: Collection[ClusterAttempt]) -> None:
        if self._clock() - self._looked >= LOOK_SECONDS:
            self._looked = self._clock()
            self._look(attempts)

    def _submit(self, attempt: ClusterAttempt) -> None:
        if self._clock() < self._full_until:
            return
        began = self._clock()
        try:
            attempt.note(submission="asked")
        except OSError:
            return  # nothing was asked; the folder's look says what is wrong with it
        try:
            id = self.scheduler.submit(attempt.orders.token, attempt.script, attempt.resources)
            self._answered()
            with contextlib.suppress(OSError):  # a look finds the job by its name
                attempt.note(submission="taken", id=id)
        except (Full, Unasked) as error:
            with contextlib.suppress(OSError):
                attempt.note(submission="none")
            self._full_until = self._clock() + FULL_SECONDS
            if isinstance(error, Unasked):
                self._no_answer(str(error))
            else:
                log.warning(f"{self.scheduler.name} takes no more jobs now: {error}", event_id=Event.SCHEDULER_FULL)
        except Refused as error:
            attempt.refuse(str(error))
        except Unsure as error:
            self._no_answer(str(error))
        self.pause(max(0.0, 1 / SUBMISSIONS_A_SECOND - (self._clock() - began)))

    def _look(self, attempts: Iterable[ClusterAttempt]) -> None:
        """Ask about all that were handed in."""
        asked = [attempt for attempt in attempts if attempt.orders.submission != "none" and not attempt.over]
        if not asked:
            return
        try:
            seen = self.scheduler.look([attempt.orders.token for attempt in asked])
        except Unsure as error:
            self._no_answer(str(error))
            for attempt in asked:
                attempt.sighting = NOT_SEEN
            return
        self._answered()
        for attempt in asked:
            attempt.sighting = seen.get(attempt.orders.token, ABSENT)

    def _cancel(self, attempts: Iterable[ClusterAttempt]) -> None:
        wanted = [attempt for attempt in attempts if attempt.cancel]
        if not wanted:
            return
        try:
            self.scheduler.cancel({attempt.orders.token: attempt.orders.id or attempt.sighting.id for attempt in wanted})
        except Unsure as error:
            self._no_answer(str(error))
            return
        for attempt in wanted:
            attempt.cancel = False

    def _no_answer(self, why: str) -> None:
        if self.away_since is None:
            self.away_since = self._clock()
            self._tell(f"{self.scheduler.name} gives no answer since {local_time(datetime.now(UTC).isoformat())} ({why})")
            log.warning(
                f"{self.scheduler.name} gives no answer ({why}); what runs there goes on, and it is asked again",
                event_id=Event.SCHEDULER_AWAY,
            )

    def _answered(self) -> None:
        if self.away_since is not None:
            log.info(f"{self.scheduler.name} answers again", event_id=Event.SCHEDULER_BACK, seconds=round(self._clock() - self.away_since))
            self.away_since = None
            self._tell("")

    def _tell(self, away: str) -> None:
        """Let the attempts know whether the scheduler answers."""
        with self._lock:
            self.away = away
            for attempt in self._attempts.values():
                attempt.away = away

    # The folders' thread

    def _watch(self) -> None:
        while not self._stopping:
            time.sleep(min(SLOW_SECONDS, max(QUICK_SECONDS, self.watch() / LOOKS_A_SECOND)))

    def watch(self) -> int:
        """Look into the folders where it is time, and do what is to be done; gives how many attempts there are."""
        attempts = [attempt for attempt in self._open() if not attempt.over]
        for attempt in attempts:
            if self._clock() - attempt.looked >= min(SLOW_SECONDS, attempt.patience):
                attempt.looked = self._clock()
                self._advance(attempt)
        return len(attempts)

    def _advance(self, attempt: ClusterAttempt) -> None:
        try:
            attempt.advance(attempt.look())
            attempt.unreachable = False
        except OSError as error:
            if not attempt.unreachable:
                attempt.unreachable = True
                log.warning(
                    f"the folder of an attempt can't be read ({error.strerror}); it is looked at again, and nothing is concluded from that",
                    event_id=Event.ATTEMPT_UNREACHABLE, id=attempt.id,
                )  # fmt: skip
