"""Directories that are not decided upon: when to look at each again, when it was seen, and whether it is lost or has another name.

A part of the tracker. `Settler` is a pure function of hints and clock: it reads neither. The tracker tells it hints and what it saw, each
with the time of a monotonic clock, and asks which directories to look at. A directory is *quiet* when two looks, at least the settle time
apart, gave the same fingerprint; whether it is also *complete* is the layout's question.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from daemon.checkpoints.files import Fingerprint, fingerprint
from daemon.contract.disk.away import problem_of_whole
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.sightings import Sightings
from daemon.system.filesystems.births import Identity, identity_of
from daemon.system.logger import Logger

log = Logger("watch")

PEEK_SECONDS = 0.03
"""Shortest time between two looks at a directory: a trainer that writes byte by byte must not keep us busy."""


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

    def __contains__(self, path: str) -> bool:
        return path in self._pending

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

    def looked(self, path: str, fingerprint: Hashable, now: float) -> float | None:
        """Record what a look saw. Return since when the directory is quiet, the same having been seen a settle time before; None while it
        moves.

        Once quiet it sleeps until the next hint, so an incomplete one costs nothing.
        """
        pending = self._pending.setdefault(path, _Pending())
        first = pending.looked == float("-inf")
        pending.looked = now
        if first or fingerprint != pending.fingerprint:
            pending.fingerprint, pending.since = fingerprint, now
        quiet = pending.since + self.settle_seconds
        pending.next_look = None if now >= quiet else max(quiet, now + PEEK_SECONDS)
        return quiet if now >= quiet else None

    def look_at(self, path: str, when: float) -> None:
        """Have a quiet directory looked at again at a later time."""
        self._pending[path].next_look = when

    def forget(self, path: str) -> None:
        """The directory is gone, or taken: start afresh with the next hint."""
        self._pending.pop(path, None)


@dataclass
class Sighting:
    """A checkpoint that has content and is not decided upon. The first two by the wall clock, in seconds, for people."""

    first: float
    last: float
    since: float
    """When it was seen first, by the tracker's clock."""
    marks: frozenset[Identity] = frozenset()
    """By what it is known again where it was renamed."""


class Undecided:
    """The sightings by directory."""

    def __init__(self, roots: Sequence[Path], settle_seconds: float, lost: Sightings, is_watched: Callable[[Path], bool]) -> None:
        """`lost`: where a checkpoint is recorded that was deleted too early."""
        self._roots, self._lost, self._is_watched = roots, lost, is_watched
        self.settler = Settler(settle_seconds)
        self.sighted: dict[Path, Sighting] = {}
        self.runs: set[Path] = set()
        """Directories of runs with an adapter's configuration and no weights: no checkpoints yet, and none is lost when they go."""

    def note(self, path: Path, itself: Identity | None, seen: Fingerprint, now: float) -> None:
        """A directory was looked at."""
        moment = time.time()
        sighting = self.sighted.setdefault(path, Sighting(moment, moment, now))
        sighting.last, sighting.marks = moment, _marks_of(path, itself, seen)

    def note_gone(self, path: Path, now: float) -> None:
        """A directory is gone: say so where it was never decided upon. A root that went as a whole, and perhaps left its empty mount
        point, is no loss of one."""
        entry = self.sighted.get(path)
        if entry is None or path in self.runs or all(not path.is_relative_to(root) or problem_of_whole(root) for root in self._roots):
            return
        if (elsewhere := self._renamed(path, entry.marks)) is not None:
            known = self.sighted.setdefault(elsewhere, entry)
            known.first, known.since = min((known.first, known.since), (entry.first, entry.since), key=lambda times: times[1])
            self.settler.hint(str(elsewhere), now)  # what was decided upon there is forgotten again
            return
        lived, first, last = round(now - entry.since, 3), _text_of(entry.first), _text_of(entry.last)
        log.warning(
            f"The checkpoint {path} was deleted before it could be pinned: first seen {first}, last seen {last}, "
            f"lived {lived:.1f} s; raise save_total_limit or lower watch.settle_seconds", event_id=Event.CHECKPOINT_LOST,
            path=str(path), code=FaultCode.CHECKPOINT_LOST,
        )  # fmt: skip
        self._lost.add_lost(str(path), first, last, lived)

    def forget(self, path: Path) -> None:
        """A directory is gone, or decided upon."""
        self.settler.forget(str(path))
        self.sighted.pop(path, None)
        self.runs.discard(path)

    def _renamed(self, path: Path, marks: Collection[Identity]) -> Path | None:
        """Return the other, watched name under which a directory that is gone lives on, as does one that is renamed when it is finished.

        Looked for beside it, and among what moves: a renaming is followed by a hint at the new name.
        """
        beside: list[str] = []
        with suppress(OSError), os.scandir(path.parent) as entries:
            beside = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for other in map(Path, dict.fromkeys([*beside, *self.settler.moving(), *map(str, self.sighted)])):
            with suppress(OSError):
                if (
                    other != path
                    and not _marks_of(other, identity_of(other), fingerprint(other)).isdisjoint(marks)
                    and self._is_watched(other)
                ):
                    return other
        return None


def _marks_of(path: Path, itself: Identity | None, seen: Fingerprint) -> frozenset[Identity]:
    """Return what a directory keeps when it is renamed: itself; where its file system does not tell that, its files and when they last
    changed.

    No inode alone: that of a deleted file is given out again at once. Nobody can set either time.
    """
    if itself is not None:
        return frozenset({itself})
    marks = set()
    for name, *_ in seen:
        if name.startswith("../"):
            continue  # the run's, which all its checkpoints have
        with suppress(OSError):
            status = os.lstat(path / name)
            marks.add((status.st_dev, status.st_ino, status.st_ctime_ns))
    return frozenset(marks)


def _text_of(moment: float) -> str:
    """Return a time of the wall clock as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
