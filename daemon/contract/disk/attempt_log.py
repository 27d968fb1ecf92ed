"""The log of one attempt: a file that the child's standard error is appended to, kept within a size while it is written.

The child writes the file itself, so that nothing is lost when the daemon dies. While it does, `trim` gives
the middle back to the file system as a hole, which takes no line from a writer; `finish` closes the hole when nobody writes
any more. Between two calls the file may grow past its limit by as much as the child writes in that time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

TAIL = 2000
_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_STACK = b"Fatal Python error"
_STACK_WINDOW = 1 << 16
_STACK_LIMIT = 6000


class AttemptLog:
    """A log file of at most about `limit` bytes: its beginning and its end are kept."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self._limit = limit
        self._head = 0
        self._hole_end = 0
        self._lost = 0

    def trim(self) -> None:
        """Give the middle back if what the file holds is larger than its limit; half of the limit stays."""
        with contextlib.suppress(OSError):
            size = os.stat(self.path).st_size
            if size - max(0, self._hole_end - self._head) <= self._limit:
                return
            with open(self.path, "r+b", buffering=0) as stream:
                self._find_head(stream.fileno())
                start = size - self._limit // 4
                try:
                    _punch(stream.fileno(), self._head, start - self._head)
                    self._hole_end = start
                except OSError:  # a file system without holes: lines that are written within these milliseconds may be lost
                    self._cut(stream.fileno(), size, start)

    def finish(self) -> None:
        """Nobody writes any more: cut the middle out for good."""
        with contextlib.suppress(OSError):
            size = os.stat(self.path).st_size
            if not self._hole_end and size <= self._limit:
                return
            with open(self.path, "r+b", buffering=0) as stream:
                self._find_head(stream.fileno())
                self._cut(stream.fileno(), size, max(self._hole_end, size - self._limit // 2))

    def _find_head(self, file: int) -> None:
        if not self._head:
            self._head = _whole_lines(os.pread(file, self._limit // 4, 0))

    def _cut(self, file: int, size: int, start: int) -> None:
        """Let the end, from the first whole line after `start`, follow the head. The writer appends, and goes on after it."""
        end = os.pread(file, size - start, start)
        end = end[end.find(b"\n") + 1 :]
        self._lost += max(size, os.fstat(file).st_size) - self._head - len(end)
        self._hole_end = 0
        note = f"\n[… about {self._lost:,} bytes were removed here: the log had reached {self._limit:,} bytes …]\n"
        os.ftruncate(file, self._head)
        with open(self.path, "ab", buffering=0) as stream:
            stream.write(note.encode() + end)

    def end(self) -> str:
        """The end of the log for a fault's details; the whole of the interpreter's last stack, where it left one."""
        text = _last(self.path, _STACK_WINDOW)
        place = text.rfind(_STACK)
        return (text[place:][:_STACK_LIMIT] if place >= 0 else text[-TAIL:]).decode(errors="replace")

    def last_line(self) -> str:
        """The last line that says something, "" where there is none."""
        lines = _last(self.path, 4096).decode(errors="replace").splitlines()
        return next((line.strip()[:400] for line in reversed(lines) if line.strip()), "")


def _punch(file: int, start: int, length: int) -> None:
    """Turn a range of a file into a hole. Raises OSError where the file system has none."""
    offset, size = ctypes.c_int64(start), ctypes.c_int64(length)
    if ctypes.CDLL(None, use_errno=True).fallocate64(file, _PUNCH_HOLE | _KEEP_SIZE, offset, size) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def _whole_lines(block: bytes) -> int:
    """Length of the whole lines at the beginning of `block`; all of it where there is only one."""
    return block.rfind(b"\n") + 1 or len(block)


def _last(path: Path, limit: int) -> bytes:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - limit))
            return stream.read(limit)
    except OSError:
        return b""
