"""When to look at a directory again, and when it has stopped changing: a pure function of hints and clock.

`Settler` never reads a file or a clock. The watcher tells it hints and what it saw, each with the time of a
monotonic clock, and asks which directories to look at. A directory is *quiet* when two looks, at least the
settle time apart, gave the same fingerprint; whether it is also *complete* is the layout's question.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

PEEK_SECONDS = 0.03
"""Shortest time between two looks at a directory: a trainer that writes byte by byte must not keep us busy."""


class Quiet(Enum):
    """What one look means."""

    MOVING = "moving"
    QUIET = "quiet"


@dataclass
class _Pending:
    fingerprint: Hashable = None
    since: float = 0.0
    looked: float = float("-inf")
    next_look: float | None = None


class Settler:
    """Keeps, for each directory that moves, when to look next. Memory is one small record a directory."""

    def __init__(self, settle_seconds: float) -> None:
        self.settle_seconds = settle_seconds
        self._pending: dict[str, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def moving(self) -> list[str]:
        """The directories that have not come to rest, or that rest and were not forgotten."""
        return list(self._pending)

    def hint(self, path: str, now: float) -> None:
        """Something may have changed at `path`: look soon, however often this is said."""
        pending = self._pending.setdefault(path, _Pending())
        soon = max(now, pending.looked + PEEK_SECONDS)
        if pending.next_look is None or soon + PEEK_SECONDS <= pending.next_look:
            pending.next_look = soon  # a look that is due within a peek of it anyway sees the same

    def due(self, now: float) -> list[str]:
        """The directories to look at now, the longest waiting first."""
        ready = [(pending.next_look, path) for path, pending in self._pending.items() if pending.next_look is not None]
        return [path for when, path in sorted(ready) if when <= now]

    def next_due(self) -> float | None:
        """When the next look is due; None while nothing moves."""
        return min((pending.next_look for pending in self._pending.values() if pending.next_look is not None), default=None)

    def looked(self, path: str, fingerprint: Hashable, now: float) -> Quiet:
        """Record what a look saw. QUIET: the same was seen a settle time ago; ask for completeness now.

        After QUIET the directory sleeps until the next hint, so an incomplete one costs nothing.
        """
        pending = self._pending.setdefault(path, _Pending())
        first = pending.looked == float("-inf")
        pending.looked = now
        if first or fingerprint != pending.fingerprint:
            pending.fingerprint, pending.since = fingerprint, now
        if now >= pending.since + self.settle_seconds:
            pending.next_look = None
            return Quiet.QUIET
        pending.next_look = max(pending.since + self.settle_seconds, now + PEEK_SECONDS)
        return Quiet.MOVING

    def rested(self, path: str, extra: float, now: float) -> bool:
        """Whether a quiet directory has been so for `extra` seconds more than the settle time; else it is looked at again then."""
        since = self._pending[path].since
        if now >= since + self.settle_seconds + extra:
            return True
        self._pending[path].next_look = since + self.settle_seconds + extra
        return False

    def forget(self, path: str) -> None:
        """The directory is gone, or taken: start afresh with the next hint."""
        self._pending.pop(path, None)
