"""Writes to the journal that wait at the same time: one transaction, so that they share its five fsyncs.

Each is answered after that commit, and whatever is read meanwhile waits for it too: nobody acts on what a power cut could take back. If one
of them fails, all of them are undone and done again, each in a transaction of its own; not where a reader kept the file, which each would
wait for again. Used by `daemon.journal.file.database`.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Write:
    """A change of the journal, and what became of it."""

    name: str
    function: Callable[[sqlite3.Connection], Any]
    ended: bool = False
    value: Any = None
    error: Exception | None = None

    @property
    def operation(self) -> str:
        """What is done, for people."""
        return f"write to the journal ({self.name})"


class Groups:
    """The writes that wait. `transact` does some of them in one transaction, or raises and leaves everything as it was."""

    def __init__(self, transact: Callable[[Sequence[Write]], None]) -> None:
        self._transact = transact
        self.waiting: deque[Write] = deque()

    def add(self, write: Write) -> None:
        """Let a write wait for the next `do`."""
        self.waiting.append(write)

    def drop(self, write: Write) -> None:
        """Nobody waits for it any more: where the thread died before it came to this, it is not done."""
        with suppress(ValueError):
            self.waiting.remove(write)

    def do(self) -> None:
        """Do all writes that wait; none where another call has done them."""
        group = [self.waiting.popleft() for _ in range(len(self.waiting))]
        try:
            if group:
                self._transact(group)
        except Exception as error:
            if len(group) == 1 or _is_busy(error):
                for write in group:
                    write.error = error
                return
            for write in group:
                if write.ended:
                    continue  # committed: never twice
                try:
                    self._transact([write])
                except Exception as own:
                    write.error = own


def _is_busy(error: Exception) -> bool:
    return getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
