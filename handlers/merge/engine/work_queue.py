"""Distributing the pieces of a merge's files among threads: some begin with the first file, the others with the last one.

Called by the streaming merge. Two threads that write the same file wait for each other, since a file system lets only one of them write
at a time; and while one thread flushes a finished file to disk, the other continues. With one thread on each side two files are unfinished
at any time, which is what an interruption costs.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from handlers.merge.weights.file_io import ByteRange

Plan = TypeVar("Plan")
"""Describes how a file is made."""
Buffers = TypeVar("Buffers")
"""The memory that a thread uses for all its pieces."""
Item = TypeVar("Item")
"""One unit of work for a thread."""

AHEAD = 4
"""Number of pieces whose bytes the kernel is asked to read ahead."""


@dataclass(frozen=True)
class Piece(Generic[Buffers]):
    """Work that is independent of all other pieces."""

    do: Callable[[Buffers], None]
    source: ByteRange | None = None
    """The bytes that it reads, if they lie in one range."""

    def read_ahead(self) -> None:
        """Ask the kernel to read the bytes."""
        if self.source is not None:
            self.source.read_ahead()


class FileInProgress(Generic[Buffers]):
    """A file that is being written: the pieces that no thread has taken yet, and what to close after the last one is done."""

    def __init__(self, name: str, pieces: Iterable[Piece[Buffers]], closing: contextlib.ExitStack) -> None:
        self.name, self.closing = name, closing
        self.waiting = collections.deque(pieces)
        self.unfinished = len(self.waiting)
        for piece in itertools.islice(self.waiting, AHEAD):
            piece.read_ahead()

    def take(self, *, last: bool = False) -> Piece[Buffers]:
        """The first or the last piece that no thread has taken. The bytes of the piece AHEAD pieces later are requested now."""
        piece = self.waiting.pop() if last else self.waiting.popleft()
        if len(self.waiting) >= AHEAD:
            self.waiting[-AHEAD if last else AHEAD - 1].read_ahead()
        return piece


class PieceQueue(Generic[Plan, Buffers]):
    """The pieces of all files of `plans`; `begin` creates the file for one of them. May be used by several threads."""

    def __init__(self, plans: Sequence[Plan], begin: Callable[[Plan], FileInProgress[Buffers]]) -> None:
        self._plans = collections.deque(plans)
        self._begin = begin
        self._sides: list[FileInProgress[Buffers] | None] = [None, None]
        self._unfinished: list[FileInProgress[Buffers]] = []
        self._lock = threading.Lock()

    def take(self, worker: int) -> tuple[FileInProgress[Buffers], Piece[Buffers]] | None:
        """The next piece for worker number `worker`, counted from 0, and its file; None when all pieces have been taken.

        Workers with an even number begin the first file that is not begun yet, the others the last one. When no such file is left, a
        worker takes pieces of the other side's file, from its end.
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

    def done(self, file: FileInProgress[Buffers]) -> bool:
        """Record that one piece of a file is done. True if it was the last one; the file is closed then."""
        with self._lock:
            file.unfinished -= 1
            if file.unfinished:
                return False
            self._unfinished.remove(file)
        file.closing.close()
        return True

    def close(self) -> None:
        """Close the files that an error left unfinished. No thread may still work on them."""
        for file in self._unfinished:
            file.closing.close()


def run_workers(take: Callable[[int], Item | None], workers: Sequence[Callable[[Item], None]]) -> None:
    """Run each worker in a thread of its own on the items that `take` returns for its number, until `take` returns None.

    `take` is called by several threads. Worker 0 runs in the calling thread. An item that is read, computed and written by one thread
    stays in its core's cache, and while one thread waits for the disk another computes. After an error the items in progress are
    finished and no further one is begun; the first error is raised.
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
