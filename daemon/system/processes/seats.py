"""One of many threads at a time runs Python: a thread at work has the seat, and leaves it while it waits for a disk or another thread.

The interpreter's own lock changes hands at every call of the system while others want it, and each time the next thread has to be woken
first: sixteen threads that pin checkpoints side by side then take longer than one after the other. With the seat they wait for the disk
side by side and for the interpreter in turn. Used by the threads that read and pin (`daemon.watching.apart`) and by what these call; for
every other thread `left` does nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LONG_SECONDS = 0.05
"""Whoever has the seat for so long, as with a large file or a mount that does not answer, keeps nobody from it any more."""


class Seats:
    """The seat, and since when each thread has it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._since: dict[int, float] = {}

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the seat until the end of the context."""
        self._sit()
        try:
            yield
        finally:
            self._rise()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave the seat to others until the end of the context, which waits."""
        if threading.get_ident() not in self._since:
            yield
            return
        self._rise()
        try:
            yield
        finally:
            self._sit()

    def _sit(self) -> None:
        with self._changed:
            while (wait := max(self._since.values(), default=0.0) + LONG_SECONDS - time.monotonic()) > 0:
                self._changed.wait(wait)
            self._since[threading.get_ident()] = time.monotonic()

    def _rise(self) -> None:
        with self._changed:
            del self._since[threading.get_ident()]
            self._changed.notify()


SEATS = Seats()
"""Those of this process."""
