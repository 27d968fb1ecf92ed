"""`ckptd logs --stage`, `--target`: what the attempts at a stage, or at a delivery, print, on whichever machine they run.

An attempt's log is a file of its folder. Where it runs elsewhere and nothing of that file can be seen here, what its scheduler says of the
job stands in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from daemon.contract.disk.answers import ask
from daemon.contract.disk.files import open_plain
from daemon.contract.light import dataclass

LOOK_SECONDS = 0.5
_BLOCK = 1 << 20
"""Bytes of the log's end that its last lines are looked for in, and that are read at a time."""


@dataclass(frozen=True)
class Attempted:
    """The latest attempt at a stage, as the journal has it."""

    number: int
    """0 where there was none yet."""
    log: Path
    over: bool
    """Whether the stage has ended: no other attempt follows."""
    doing: str = ""
    """What it does, or waits for."""


@dataclass(frozen=True)
class LogLine:
    """A line of an attempt's log."""

    attempt: int
    text: str


def follow_stage(
    look: Callable[[], Attempted], said: Callable[[Path], str], *, tail: int, forever: bool, pause: Callable[[float], object] = time.sleep
) -> Iterator[LogLine]:
    """Yield the last `tail` lines of the stage's latest attempt, then, if asked, each new one of this and of later attempts until the
    stage has ended. `said`: what a scheduler says of the attempt with that log."""
    reader: _Reader | None = None
    while True:
        attempt = look()  # before the file: what an attempt that is over has written is read
        if reader is not None and reader.number != attempt.number:
            yield from reader.news()
            reader = None
        if reader is None and attempt.number:
            reader = _Reader(attempt.number, attempt.log, said, tail)
        if reader is not None:
            yield from reader.news(last=not forever or attempt.over)
        if not forever or attempt.over:
            return
        pause(LOOK_SECONDS)


class _Reader:
    """Reads the log of one attempt. It is opened anew at each look: only that lets a client of NFS see what another one has written."""

    def __init__(self, number: int, log: Path, said: Callable[[Path], str], tail: int) -> None:
        self.number, self._log, self._scheduler, self._tail = number, log, said, tail
        self._offset: int | None = None
        self._half = b""
        self._said = ""

    def news(self, *, last: bool = True) -> Iterator[LogLine]:
        """Yield the lines that are new. `last`: nothing is added to a line without an end."""
        lines = self._lines(last=last)
        for line in self._words_of_scheduler() if self._offset is None else lines:
            yield LogLine(self.number, line)

    def _lines(self, *, last: bool) -> list[str]:
        try:
            first, data, end = ask(str(self._log), self._read)
        except (OSError, TimeoutError, ValueError):
            return []
        if not end:
            return []
        self._offset = end  # here, not where it is read: an answer that comes too late is asked for again
        *lines, self._half = ((b"" if first else self._half) + data.replace(b"\0", b"")).split(b"\n")  # zeros of a hole in its middle
        if last and self._half:
            lines, self._half = [*lines, self._half], b""
        whole = [line.decode(errors="replace") for line in lines]
        return whole[len(whole) - min(self._tail, len(whole)) :] if first else whole

    def _read(self) -> tuple[bool, bytes, int]:
        """Whether it is read for the first time, what is new, and where that ends. Raises OSError; ValueError where it is no plain file."""
        with open_plain(self._log, links=False) as stream:
            size = stream.seek(0, 2)
            first = self._offset is None or size < self._offset  # not read yet, or its middle was cut out
            stream.seek(max(0, size - _BLOCK) if first else self._offset or 0)
            data = stream.read() if size else b""
            return first, data, stream.tell() if size else 0

    def _words_of_scheduler(self) -> list[str]:
        before, self._said = self._said, self._scheduler(self._log)
        new = self._said[len(before) :] if self._said.startswith(before) else self._said
        return new.splitlines()
