"""Handing out the pieces of a merge's files: some workers begin with the first file, the others with the last one.

Called by the streaming merge. Two threads that write one file wait for each other, since a file system lets one of them write at a time;
and while one makes a finished file durable, the other goes on. With one worker on each side two files are unfinished at any time: that is
what an interruption costs.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Plan = TypeVar("Plan")
"""What tells how a file is made."""
Tool = TypeVar("Tool")
"""What a worker does its pieces with."""
Item = TypeVar("Item")
"""What a worker is given."""

AHEAD = 4
"""Pieces whose bytes the kernel is asked to read before their turn."""


@dataclass(frozen=True)
class Piece(Generic[Tool]):
    """Work that needs nothing of any other piece, and the bytes that it reads first."""

    do: Callable[[Tool], None]
    source: int = -1
    """Descriptor of the file that holds the bytes; negative for none."""
    start: int = 0
    size: int = 0

    def expect(self) -> None:
        """Ask the kernel to read the bytes."""
        if self.source >= 0:
            os.posix_fadvise(self.source, self.start, self.size, os.POSIX_FADV_WILLNEED)


class Begun(Generic[Tool]):
    """A file that is being written: the pieces that are left, at least one, and what to close after the last of them."""

    def __init__(self, name: str, pieces: Iterable[Piece[Tool]], closing: contextlib.ExitStack) -> None:
        self.name, self.closing = name, closing
        self.waiting = collections.deque(pieces)
        self.unfinished = len(self.waiting)
        for piece in itertools.islice(self.waiting, AHEAD):
            piece.expect()

    def take(self, *, last: bool = False) -> Piece[Tool]:
        """The first or the last piece that nobody has. What comes some pieces later is on its way by its turn."""
        piece = self.waiting.pop() if last else self.waiting.popleft()
        if len(self.waiting) >= AHEAD:
            self.waiting[-AHEAD if last else AHEAD - 1].expect()
        return piece


class Fronts(Generic[Plan, Tool]):
    """The work on all files of `plans`; `begin` makes the file of one. For several threads."""

    def __init__(self, plans: Sequence[Plan], begin: Callable[[Plan], Begun[Tool]]) -> None:
        self._plans = collections.deque(plans)
        self._begin = begin
        self._sides: list[Begun[Tool] | None] = [None, None]
        self._unfinished: list[Begun[Tool]] = []
        self._lock = threading.Lock()

    def take(self, worker: int) -> tuple[Begun[Tool], Piece[Tool]] | None:
        """The next piece for a worker, counted from 0, and its file; None when nobody has to begin anything any more.

        Even workers take the first file that nobody has begun, odd ones the last. Who finds none left helps with that of the other
        side, beginning at its end.
        """
        side = worker % 2
        with self._lock:
            while True:
                mine, other = self._sides[side], self._sides[1 - side]
                if mine is not None and mine.waiting:
                    return mine, mine.take()
                if self._plans:
                    begun = self._begin(self._plans.pop() if side else self._plans.popleft())
                    self._sides[side] = begun
                    self._unfinished.append(begun)
                elif other is not None and other.waiting:
                    return other, other.take(last=True)
                else:
                    return None

    def done(self, file: Begun[Tool]) -> bool:
        """One piece of a file is done: whether the file is, which is closed then."""
        with self._lock:
            file.unfinished -= 1
            if file.unfinished:
                return False
            self._unfinished.remove(file)
        file.closing.close()
        return True

    def close(self) -> None:
        """Close what an error left unfinished. Nobody may work on it any more."""
        for file in self._unfinished:
            file.closing.close()


def hand_out(take: Callable[[int], Item | None], workers: Sequence[Callable[[Item], None]]) -> None:
    """Let each worker do what `take`, which is called by several threads, gives for its number; until that gives it None.

    The first worker, number 0, runs in the calling thread. A task that is read, computed and written by one thread stays in its core's
    cache, and while one thread waits for the disk another computes. After an error tasks that run are finished, and no further one is
    begun.
    """
    errors: list[BaseException] = []

    def work(number: int, do: Callable[[Item], None]) -> None:
        try:
            while not errors and (task := take(number)) is not None:
                do(task)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(number, worker), name=f"merge-{number + 1}")
        for number, worker in enumerate(workers) if number
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    work(0, workers[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
