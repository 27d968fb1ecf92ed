"""Checkpoints that have content and are not decided upon: when they were seen, whether they are known again under another name, or lost.

A part of the tracker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from daemon.checkpoints.files import Fingerprint, fingerprint
from daemon.contract.away import problem_of_whole
from daemon.contract.events import Event
from daemon.contract.fault_codes import FaultCode
from daemon.journal.rows import now as wall_clock
from daemon.journal.sightings import Sightings
from daemon.system.births import Identity, identity_of
from daemon.watching.settle import Settler

log = structlog.get_logger("watch")


@dataclass
class Sighting:
    """A checkpoint that has content and is not decided upon: when it was looked at, by the wall clock for people."""

    first: str
    last: str
    since: float
    marks: frozenset[Identity] = frozenset()
    """By what it is known again where it was renamed."""


class Undecided:
    """The sightings by directory."""

    def __init__(self, roots: Sequence[Path], settler: Settler, lost: Sightings, is_watched: Callable[[Path], bool]) -> None:
        """`lost`: where a checkpoint is recorded that was deleted too early."""
        self._roots, self._settler, self._lost, self._is_watched = roots, settler, lost, is_watched
        self.sighted: dict[Path, Sighting] = {}
        self.runs: set[Path] = set()
        """Directories of runs with an adapter's configuration and no weights: no checkpoints yet, and none is lost when they go."""

    def note(self, path: Path, marks: frozenset[Identity], now: float) -> None:
        """A directory was looked at."""
        moment = wall_clock()
        sighting = self.sighted.setdefault(path, Sighting(moment, moment, now))
        sighting.last, sighting.marks = moment, marks

    def note_gone(self, path: Path, now: float) -> None:
        """A directory is gone: say so where it was never decided upon. A root that went as a whole, and perhaps left its empty mount
        point, is no loss of one."""
        entry = self.sighted.get(path)
        if entry is None or path in self.runs or all(root not in path.parents or problem_of_whole(root) for root in self._roots):
            return
        if (elsewhere := self._renamed(path, entry.marks)) is not None:
            known = self.sighted.setdefault(elsewhere, entry)
            known.first, known.since = min((known.first, known.since), (entry.first, entry.since), key=lambda times: times[1])
            self._settler.hint(str(elsewhere), now)  # what was decided upon there is forgotten again
            return
        lived = round(now - entry.since, 3)
        log.warning(
            f"The checkpoint {path} was deleted before it could be pinned: first seen {entry.first}, last seen {entry.last}, "
            f"lived {lived:.1f} s; raise save_total_limit or lower watch.settle_seconds", event_id=Event.CHECKPOINT_LOST,
            path=str(path), code=FaultCode.CHECKPOINT_LOST,
        )  # fmt: skip
        self._lost.add_lost(str(path), entry.first, entry.last, lived)

    def forget(self, path: Path) -> None:
        """A directory is gone, or decided upon."""
        self.sighted.pop(path, None)
        self.runs.discard(path)

    def _renamed(self, path: Path, marks: Collection[Identity]) -> Path | None:
        """Return the other, watched name under which a directory that is gone lives on, as does one that is renamed when it is finished.

        Looked for beside it, and among what moves: a renaming is followed by a hint at the new name.
        """
        beside: list[str] = []
        with suppress(OSError), os.scandir(path.parent) as entries:
            beside = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for other in map(Path, dict.fromkeys([*beside, *self._settler.moving(), *map(str, self.sighted)])):
            with suppress(OSError):
                if (
                    other != path
                    and not marks_of(other, identity_of(other), fingerprint(other)).isdisjoint(marks)
                    and self._is_watched(other)
                ):
                    return other
        return None


def marks_of(path: Path, itself: Identity | None, seen: Fingerprint) -> frozenset[Identity]:
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
