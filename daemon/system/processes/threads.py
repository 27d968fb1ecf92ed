"""Threads that do not end unnoticed: `Supervised` begins its work again when it dies of an error, `Owner` is replaced by another thread.

Used by the watcher, the runner and the notifier, and by what must be done in one thread, one call after the other: the journal, and the
reading of finished outputs. What a round of work can foresee is said by `daemon.system.processes.rounds` and never comes here.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from daemon.contract.faults.events import Event
from daemon.contract.faults.secrets import censored
from daemon.contract.light import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Future

MOST_DEATHS = 5
DEATH_SECONDS = 60.0
"""A thread that dies so often within so many seconds is given up: whatever kills it is not going to pass by itself."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds before work that died begins again; doubled from death to death."""
LOOK_SECONDS = 1.0
"""How often whoever waits for an answer of an owner sees whether its thread still lives."""

T = TypeVar("T")


class ThreadDied(Exception):
    """The thread that was asked died before it had an answer. Whether the work was done is not known."""


@dataclass(frozen=True)
class Death:
    """A thread that ended with an error. `at`: ISO 8601 in UTC; `count`: number of times until now."""

    thread: str
    at: str
    why: str
    count: int

    def sentence(self) -> str:
        """The death in one sentence."""
        times = f", for the {self.count}th time" if self.count > 3 else ("", ", again", ", for the third time")[self.count - 1]
        return f"The thread {self.thread} died of an error{times}: {self.why}."


def reason_of(error: BaseException) -> str:
    """An error in a few words, on one line."""
    text = " ".join(censored(str(error)).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


class Supervised:
    """A thread that does `work` until that returns, and begins it again, in the same thread, where it raises.

    `stop` lets `work` return soon; `lost` is called when the thread was given up: what is left to do in order, it then does once more.
    """

    def __init__(self, name: str, work: Callable[[], None], log: Any, *, stop: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.lost: Callable[[], object] = lambda: None
        self.deaths: tuple[Death, ...] = ()
        """The latest ones, oldest first. Replaced as a whole: other threads read it."""
        self.given_up: Death | None = None
        """Its last death, where it is not begun again."""
        self._work, self._log, self._stop = work, log, stop
        self._count = 0
        self._times: list[float] = []
        self._started = self._ended = False
        self._thread = self._make()

    def _make(self) -> threading.Thread:
        return threading.Thread(target=self._live, name=self.name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._started = True
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the thread has ended, at most so many seconds; not for one that never began."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def revive(self) -> bool:
        """Begin with another thread where this one is gone though its work has not ended; whether that was so."""
        if not self._started or self._ended or self.given_up is not None or self._thread.is_alive():
            return False
        death = self._note(RuntimeError("it ended without an error message"))
        if self._is_given_up():
            self.given_up = death
            return False
        self._thread = self._make()
        self._thread.start()
        return True

    def _live(self) -> None:
        while True:
            try:
                self._work()
                self._ended = True
                return
            except BaseException as error:
                death = self._note(error)
                if self._is_given_up():
                    self._give_up(death)
                    return
                self._say(f"{death.sentence()} It begins again.", error)
                with contextlib.suppress(BaseException):
                    time.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (len(self._times) - 1)))

    def _note(self, error: BaseException) -> Death:
        now = time.monotonic()
        self._times = [*(moment for moment in self._times if now - moment < DEATH_SECONDS), now]
        self._count += 1
        death = Death(self.name, datetime.now(UTC).isoformat(timespec="seconds"), reason_of(error), self._count)
        self.deaths = (*self.deaths[1 - MOST_DEATHS :], death)
        return death

    def _is_given_up(self) -> bool:
        return len(self._times) >= MOST_DEATHS

    def _give_up(self, death: Death) -> None:
        self.given_up = death
        with contextlib.suppress(BaseException):
            self._stop()
            self._work()
        with contextlib.suppress(BaseException):
            self.lost()

    def _say(self, sentence: str, error: BaseException) -> None:
        with contextlib.suppress(Exception):  # without memory nothing can be said, and the work goes on all the same
            self._log.error(sentence, event_id=Event.THREAD_DIED, exc_info=error)


class Owner:
    """Does calls one after the other in a thread of its own; where that thread dies another takes its place and goes on with the rest."""

    def __init__(self, name: str) -> None:
        self.deaths = 0
        self._name = name
        self._lock = threading.Lock()
        self._closed = False
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._current: Future[Any] | None = None
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Do this when its turn comes; gives where the answer will be. Raises RuntimeError after `close`."""
        from concurrent.futures import Future

        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the thread {self._name} has been closed")
            self._calls.put((future, function, arguments))
            self._see()
        return future

    def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """Do this and wait for the answer. Raises what the function raises, ThreadDied where the thread died meanwhile."""
        future = self.submit(function, *arguments)
        while True:
            try:
                return future.result(LOOK_SECONDS)
            except TimeoutError:
                if future.done():
                    return future.result()  # it came in this instant, or is the function's own error
            self.see()

    def is_current(self) -> bool:
        """Whether it is this thread, which answers itself at once."""
        return threading.current_thread() is self._thread

    def see(self) -> None:
        """Where the thread has died, answer who waits for what it did with ThreadDied, and let another thread do the rest."""
        with self._lock:
            self._see()

    def close(self, *, drop: bool = False) -> None:
        """End the thread after what was asked before; with `drop` after what it does now. Waits for it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if drop:
                with contextlib.suppress(queue.Empty):
                    while (call := self._calls.get_nowait()) is not None:
                        call[0].cancel()
            if self._thread is not None:
                self._see()  # before its last call: a thread that has ended by that is not dead
            self._calls.put(None)
        if self._thread is not None:
            self._thread.join()

    def _see(self) -> None:
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self.deaths += 1
            self._fail_current()
        self._thread = threading.Thread(target=self._live, name=self._name, daemon=True)
        self._thread.start()

    def _fail_current(self) -> None:
        current, self._current = self._current, None
        if current is not None and not current.done():
            current.set_exception(ThreadDied(f"the thread {self._name} died in the meantime"))

    def _live(self) -> None:
        with contextlib.suppress(BaseException):  # whoever waits for an answer sees that the thread is gone
            while (call := self._calls.get()) is not None:
                self._current = call[0]
                self._do(*call)
                del call

    def _do(self, future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                value = function(*arguments)
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:  # meant to end a thread: it must not end the one that asks
                future.set_exception(ThreadDied(f"the thread {self._name} was to end: {reason_of(error)}"))
            else:
                future.set_result(value)
        self._current = None
