"""Reads and pins checkpoints apart from the thread that watches, so that a large or slow one delays no other run's.

A look into a long training log, a pin of thousands of files or of a whole model takes seconds to minutes. The thread that owns the tracker
asks for such a piece of work and goes on; when the work has ended it looks at the directory again, and asks again: then the answer is
there. One run's checkpoints are worked on one after the other, in the order in which they were asked for; roots take turns, and so do the
runs of a root. Of what is known to be large one piece is done at a time; what turns out to take long gets a thread in its place.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from daemon.checkpoints.files import Fingerprint
from daemon.checkpoints.names import run_of
from daemon.contract.sharded.dcp import METADATA
from daemon.system.processes.seats import SEATS

THREADS, MOST_THREADS = 16, 24
"""Threads at work, and with those that have been at one piece of work for LONG_SECONDS and count no more. Most of a small pin is waiting
for the disk, and a file system makes durable at once what several threads ask of it at the same time."""
LONG_SECONDS = 1.0
IDLE_SECONDS = 30.0
"""A thread that has had nothing to do for so long ends."""

MANY_FILES, MUCH_PARSED, MUCH_READ = 300, 8 << 20, 1 << 30
"""Files of a directory, bytes of its JSON, and bytes of all its files, above which it takes a second and more."""


class Pending(Exception):
    """The answer is not there yet."""


class Apart(Protocol):
    """Does work on checkpoint directories. Asked by one thread."""

    def do(self, root: Path, path: Path, state: Hashable, work: Callable[[int], Any], *, large: bool = False) -> Any:
        """What `work` gives, or raises, for a directory in this state. Raises Pending while it is being done: ask again later, in the
        same way. `work` gets the number of the thread that does it. `large`: it is known to take long."""

    def is_busy(self, path: Path) -> bool:
        """Whether work on a directory waits or is being done, in whatever state it was."""

    def forget(self, path: Path) -> None:
        """Nobody will ask for what was found out about a directory: it is gone, or decided upon."""


class AtOnce:
    """Does all work when it is asked for: for commands and simulations, which have one thread."""

    def do(self, root: Path, path: Path, state: Hashable, work: Callable[[int], Any], *, large: bool = False) -> Any:
        """See `Apart.do`."""
        return work(0)

    def is_busy(self, path: Path) -> bool:
        """See `Apart.is_busy`."""
        return False

    def forget(self, path: Path) -> None:
        """See `Apart.forget`."""


@dataclass(eq=False)
class _Task:
    root: str
    path: Path
    state: Hashable
    work: Callable[[int], Any]
    large: bool
    run: str = field(init=False)
    since: float | None = None
    """When it was begun, by the monotonic clock."""
    ended: bool = False
    result: Any = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.run = str(run_of(self.path))

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class Hands:
    """A few threads. They are started when there is work, and end when there is none for a while."""

    def __init__(self, ended: Callable[[Path], object], threads: int = THREADS) -> None:
        """`ended` is called, in any thread, with the directory whose work has ended."""
        self._ended, self._count = ended, threads
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._latest: dict[Path, _Task] = {}
        """Directory → what was asked for last."""
        self._running: dict[int, _Task] = {}
        """Thread's number → what it is at."""
        self._threads: dict[int, threading.Thread] = {}
        self._served: dict[str, float] = {}
        """Root, and run → when it had its last turn."""
        self._stopping = False

    def do(self, root: Path, path: Path, state: Hashable, work: Callable[[int], Any], *, large: bool = False) -> Any:
        """See `Apart.do`."""
        with self._changed:
            before = self._latest.get(path)
            if before is not None and before.state == state:
                if not before.ended:
                    raise Pending
                del self._latest[path]
                return before.get()
            if before is not None and before in self._waiting:
                self._waiting.remove(before)  # nobody asks for that any more
            task = self._latest[path] = _Task(str(root), path, state, work, large)
            self._waiting.append(task)
            self._start_threads()
            self._changed.notify()
        raise Pending

    def look(self) -> None:
        """Have other threads do what waits for those that have been at one piece of work for long. Called now and then."""
        with self._changed:
            self._start_threads()

    def _start_threads(self) -> None:
        long, idle = time.monotonic() - LONG_SECONDS, len(self._threads) - len(self._running)
        busy = sum(task.since is None or task.since > long for task in self._running.values())
        wanted = min(len(self._waiting) - idle, self._count - busy - idle, MOST_THREADS - len(self._threads))
        numbers = (number for number in range(1, MOST_THREADS + 1) if number not in self._threads)
        for number in list(numbers)[: max(0, 0 if self._stopping else wanted)]:
            self._threads[number] = threading.Thread(target=self._serve, args=(number,), name=f"apart-{number}", daemon=True)
            try:
                self._threads[number].start()
            except (RuntimeError, MemoryError):  # no thread can be had now; the next look tries again
                del self._threads[number]
                break

    def is_busy(self, path: Path) -> bool:
        """See `Apart.is_busy`."""
        with self._changed:
            return any(task.path == path for task in (*self._waiting, *self._running.values()))

    def forget(self, path: Path) -> None:
        """See `Apart.forget`."""
        with self._changed:
            task = self._latest.get(path)
            if task is not None and task.ended:
                del self._latest[path]

    def at(self) -> dict[Path, float]:
        """Directory that is being worked on → since when, by the monotonic clock. May be asked by any thread."""
        with self._changed:
            return {task.path: task.since for task in self._running.values() if task.since is not None}

    def stop(self, patience: float) -> bool:
        """Begin nothing more, and wait for what is being done; whether all of it has ended within so many seconds."""
        deadline = time.monotonic() + patience
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify_all()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _serve(self, number: int) -> None:
        while (task := self._next(number)) is not None:
            try:
                with SEATS.taken():
                    task.result = task.work(number)
            except BaseException as error:  # whoever asked gets it
                task.error = error
            with self._changed:
                task.ended = True
                self._running.pop(number, None)
                self._changed.notify()  # what waited for this run, or for what is large, may be another thread's
            self._ended(task.path)

    def _next(self, number: int) -> _Task | None:
        """The task whose root, and then whose run, had its last turn longest ago, of runs on which no other thread works."""
        deadline, late = time.monotonic() + IDLE_SECONDS, False
        with self._changed:
            while not self._stopping:
                taken = {task.run for task in self._running.values()}
                large = any(task.large for task in self._running.values())
                free = [task for task in self._waiting if task.run not in taken and not (task.large and large)]
                if free:
                    task = min(free, key=lambda asked: (self._turn(asked.root), self._turn(asked.run)))
                    self._waiting.remove(task)
                    task.since = time.monotonic()
                    self._running[number] = task
                    self._served[task.root] = self._served[task.run] = task.since
                    return task
                if late:
                    break
                late = not self._changed.wait(max(0.0, deadline - time.monotonic()))  # and look once more: it may just have come
            del self._threads[number]
            if not self._threads and not self._waiting:
                self._served.clear()
            return None

    def _turn(self, place: str) -> float:
        return self._served.get(place, 0.0)


def is_large(seen: Fingerprint) -> bool:
    """Whether a directory takes long to read or to pin: many files, much to parse, or much to copy and hash."""
    parsed = sum(size for name, _, size, _ in seen if name.endswith((".json", METADATA)))
    return len(seen) > MANY_FILES or parsed > MUCH_PARSED or sum(size for _, _, size, _ in seen) > MUCH_READ
