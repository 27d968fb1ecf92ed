"""The progress channel: JSON lines that a child writes to its standard output, read without trusting them.

Nothing depends on a line, so everything that is not progress is dropped. Memory and time are bounded, whatever the child writes: one `read`
takes at most `READ_LIMIT` bytes and parses at most `LINES` lines of them, the last ones.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

from daemon.contract.faults.events import Event
from daemon.contract.values import Json
from daemon.running.attempts.executor import Progress
from daemon.system.logger import Logger

log = Logger("worker")

READ_LIMIT = 1 << 20
LINE_LIMIT = 1 << 16
LINES = 200
WARNINGS = 200
_BLOCK = 1 << 16


class Progressing:
    """What an attempt has said so far, of blocks of its progress channel."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.warnings: list[str] = []
        self._buffer = b""
        self._too_long = False
        self._dropped = False

    def take(self, block: bytes) -> bool:
        """Take in the next bytes of the channel; whether there was a sign of life: a line that is a JSON object."""
        *lines, self._buffer = (self._buffer + block).split(b"\n")
        if lines and self._too_long:
            lines, self._too_long = lines[1:], False
        if len(self._buffer) > LINE_LIMIT:
            self._buffer, self._too_long = b"", True
        alive = False
        for line in lines[-LINES:]:
            alive = self._take(line) or alive
        return alive

    def _take(self, line: bytes) -> bool:
        try:
            value: Any = json.loads(line)
            if not isinstance(value, dict):
                raise TypeError
            self._understand(value)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            if not self._dropped:
                self._dropped = True
                log.debug(
                    "the child writes to the progress channel what is no progress; it is dropped",
                    event_id=Event.ATTEMPT_NOISE,
                    line=repr(line[:80]),
                )
            return False
        return True

    def _understand(self, value: Json) -> None:
        if "heartbeat" in value:
            return
        if "warning" in value:
            if len(self.warnings) < WARNINGS:
                self.warnings.append(_printable(value["warning"], 500))
            return
        fraction = float(value["fraction"])
        if not math.isfinite(fraction):
            raise ValueError
        self.progress = Progress(min(max(fraction, 0.0), 1.0), _printable(value["message"], 200))


class Channel(Progressing):
    """The reading end of a child's pipe, which must not block."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self.pipe = pipe

    def read(self) -> bool:
        """Take in what is there; whether there was a sign of life."""
        alive, taken = False, 0
        while taken < READ_LIMIT:
            try:
                block = os.read(self.pipe, _BLOCK)
            except OSError:
                break
            if not block:
                break
            taken += len(block)
            alive = self.take(block) or alive
        return alive


def _printable(value: Any, limit: int) -> str:
    """Text for a terminal: no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in str(value)[:limit])
