"""Priorities for systemd's journal: each line that goes there by standard error begins with its own, as sd-daemon(3) says.

Without a prefix journald takes every line for a piece of information. `ckptd` itself sets this up where its standard error is the
journal, and the log's handler names the priority of each record.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

ERROR = 3
_LINE_BYTES = 48 * 1024 - 16
"""journald breaks a line of 48 KiB, and what follows the break would have no priority."""
_PIECE = 12_000
"""Characters, of four bytes at most."""


def prefixed(text: str, priority: int) -> str:
    """The text with the priority before each of its lines: journald makes an entry of every line, and of each piece of an endless one."""
    return "\n".join(f"<{priority}>{piece}" for line in text.split("\n") for piece in _pieces(line))


def _pieces(line: str) -> list[str]:
    if len(line.encode(errors="surrogateescape")) <= _LINE_BYTES:
        return [line]
    return [line[start : start + _PIECE] for start in range(0, len(line), _PIECE)]


def is_journal(stream: TextIO) -> bool:
    """Whether a stream is the one that systemd connected with the journal: it names device and inode in $JOURNAL_STREAM."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class JournalStream(io.TextIOBase):
    """Standard error where that is the journal. What is written to it as plain text (a traceback, a sentence of a verb) is an error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begins = True

    def write(self, text: str) -> int:
        """Pass text on, with the priority of errors before each line that begins in it."""
        for line in text.splitlines(keepends=True):
            self._stream.write(f"<{ERROR}>{line}" if self._begins else line)
            self._begins = line.endswith("\n")
        return len(text)

    def write_line(self, text: str, priority: int) -> None:
        """Write lines of their own with a priority."""
        self._stream.write(("" if self._begins else "\n") + prefixed(text, priority) + "\n")
        self._begins = True
        self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream itself."""
        return self._stream.encoding


def set_up() -> None:
    """Give what this process writes to standard error its priorities, if that is the journal."""
    if sys.stderr is not None and is_journal(sys.stderr):
        sys.stderr = JournalStream(sys.stderr)
