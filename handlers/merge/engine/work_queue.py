"""Distributing the pieces of a merge's files among threads: some begin with the first file, the others with the last one.

Called by the streaming merge. Two threads that write the same file wait for each other, since a file system lets only one of them write
at a time; and while one thread flushes a finished file to disk, the other continues. With one thread on each side two files are unfinished
at any time, which is what an interruption costs. A file that is written is checked at once, by all threads, before anything else is done.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from handlers.tensors.file_io import ByteRange

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


def joined(pieces: Iterable[Piece[Buffers]], size: int) -> Iterator[Piece[Buffers]]:
    """The same work in fewer pieces: those that read bytes that follow each other are one, up to `size` bytes."""
    group: list[Piece[Buffers]] = []
    for piece in pieces:
        if group and not _follows(group, piece, size):
            yield _one_of(group)
            group = []
        group.append(piece)
    if group:
        yield _one_of(group)


def _follows(group: Sequence[Piece[Buffers]], piece: Piece[Buffers], size: int) -> bool:
    first, last, own = group[0].source, group[-1].source, piece.source
    if first is None or last is None or own is None:
        return False
    end = own.start + own.size
    return own.descriptor == last.descriptor and own.start == last.start + last.size and end - first.start <= size


def _one_of(group: Sequence[Piece[Buffers]]) -> Piece[Buffers]:
    first, last = group[0].source, group[-1].source
    if first is None or last is None or len(group) == 1:
        return group[0]

    def do(buffers: Buffers) -> None:
        for piece in group:
            piece.do(buffers)

    return Piece(do, first.part(0, last.start + last.size - first.start))


class FileInProgress(Generic[Buffers]):
    """A file that is being written: the pieces that no thread has taken yet, and what to close after the last one is done.

    `checks` are pieces that are done after all others, when the file holds all its bytes.
    """

    def __init__(
        self, name: str, pieces: Iterable[Piece[Buffers]], closing: contextlib.ExitStack, checks: Sequence[Piece[Buffers]] = ()
    ) -> None:
        self.name, self.closing, self.checks = name, closing, checks
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
        self._checks: collections.deque[tuple[FileInProgress[Buffers], Piece[Buffers]]] = collections.deque()
        self._stopped = False
        self._changed = threading.Condition()

    def take(self, worker: int) -> tuple[FileInProgress[Buffers], Piece[Buffers]] | None:
        """The next piece for worker number `worker`, counted from 0, and its file; None when all pieces have been taken.

        Checks of written files come first. Workers with an even number begin the first file that is not begun yet, the others the last
        one. When no such file is left, a worker takes pieces of the other side's file, from its end; when there are none either, it waits
        for the checks of the files that others are still writing.
        """
        side = worker % 2
        with self._changed:
            while not self._stopped:
                mine, other = self._sides[side], self._sides[1 - side]
                if self._checks:
                    return self._checks.popleft()
                if mine is not None and mine.waiting:
                    return mine, mine.take()
                if self._plans:
                    begun = self._begin(self._plans.pop() if side else self._plans.popleft())
                    self._sides[side] = begun
                    self._unfinished.append(begun)
                    if not begun.waiting:
                        self._add_checks(begun)
                elif other is not None and other.waiting:
                    return other, other.take(last=True)
                elif any(file.checks for file in self._unfinished):
                    self._changed.wait()
                else:
                    break
        return None

    def _add_checks(self, file: FileInProgress[Buffers]) -> None:
        self._checks.extend((file, check) for check in file.checks)
        file.unfinished, file.checks = len(file.checks), ()
        self._changed.notify_all()

    def done(self, file: FileInProgress[Buffers]) -> bool:
        """Record that one piece of a file is done. True if it was the last one, checks included; the file is closed then."""
        with self._changed:
            file.unfinished -= 1
            if not file.unfinished and file.checks:
                self._add_checks(file)
            if file.unfinished:
                return False
            self._unfinished.remove(file)
        file.closing.close()
        return True

    def stop(self) -> None:
        """Give out no further piece, and let no worker wait: one of them met an error."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

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
