"""Where a disk can be full: every call that needs room, by its place, and a disk that is full at chosen ones of them.

A place is a kind of call on a name below the state or the output, without what changes from run to run; a point is the n-th call there
within an export. Used by `tests.faults.fills`.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = ("write", "fsync", "rename", "link", "symlink", "mkdir", "open-to-write", "truncate")
HALVES = ("state", "exports")
IN_PLACE = frozenset({"state/live.json", "state/lock", "state/ended.json"})
"""What is overwritten within the room that it has, for which a full disk needs none."""
_CHANGING = (
    (r"run-\d+-4-[0-9a-f]+", "JOB"),
    (r"run-\d+", "RUN"),
    (r"\.\d+\.tmp", ".TMP"),
    (r"[0-9a-f]{64}", "KEY"),
    (r"exports/\.(\w+)/[0-9a-f]+", r"exports/.\1/INSTANCE"),
    (r"\.incoming-\d+", ".incoming"),
    (r"(/[a-z0-9-]+)\.\d+(?=/|$)", r"\1.N"),
    (r"\d{4}-?\d\d-?\d\dT[0-9:.]+Z?", "TIME"),
)
_FILE_KINDS = (
    (r"state/journal\.sqlite3.*", "journal"),
    (r"state/backups.*", "backup"),
    (r"state/pins.*", "pin"),
    (r"state/ckptd\.log|.*/log\.txt", "log"),
    (r".*MANIFEST\.json.*", "manifest"),
    (r"exports/\.staging/.*/report\.N.*", "report"),
    (r"exports/\.staging/INSTANCE/JOB/publish.*|exports|exports/RUN.*", "publication"),
    (r"exports/\.kept.*|.*\.lent\.json.*", "kept output"),
    (r"exports/\.staging.*", "staging"),
    (r"state/jobs.*", "job folder"),
    (r"state.*", "state"),
)


@dataclass(frozen=True)
class Place:
    """Calls of a kind on a name."""

    kind: str
    what: str

    @property
    def half(self) -> str:
        """`state` or `exports`."""
        return self.what.split("/")[0]

    @property
    def file_kind(self) -> str:
        """What the file is for: pin, journal, staging, …"""
        return next(kind for pattern, kind in _FILE_KINDS if re.fullmatch(pattern, self.what))


@dataclass(frozen=True)
class Point:
    """The n-th call at a place within an export, from 1."""

    place: Place
    nth: int


class FillingDisk:
    """Answers the fault layer: which calls a disk refuses. `folder`: that of the service."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self._lock = threading.Lock()
        self.begin()

    def begin(self, wanted: Collection[Point] = (), number: int = 0, *, lasting: bool = False) -> None:
        """For another export: the `wanted` points are refused with the errno `number`; `lasting`: all after them in that half too, until
        `free`, and then on to the next of them."""
        with self._lock:
            self._wanted, self._number, self._lasting = set(wanted), number, lasting
            self._counts: Counter[Place] = Counter()
            self.seen: list[Point] = []
            """All that was done, in its order, but for what was refused while a half was full."""
            self.met: list[Point] = []
            """The wanted ones that were refused."""
            self.refused = 0
            self.full: str | None = None
            """The half that has no room now."""

    def free(self) -> None:
        """There is room again."""
        with self._lock:
            self.full = None

    def __call__(self, kinds: Collection[str], paths: tuple[str, ...]) -> int | None:
        """The errno of a call, None where there is room for it."""
        kind = next((kind for kind in reversed(tuple(kinds)) if kind in KINDS), None)
        name = next((found for path in paths if (found := self._name(path)) is not None), None)
        if kind is None or name is None:
            return None
        if kind == "open-to-write" and any(os.path.lexists(path) for path in paths):
            return None  # what is there already needs no room before it is written to
        place = Place(kind, name)
        with self._lock:
            if self.full is not None:
                if place.half != self.full or name in IN_PLACE:
                    return None
            else:
                self._counts[place] += 1
                point = Point(place, self._counts[place])
                self.seen.append(point)
                if point not in self._wanted:
                    return None
                self._wanted.remove(point)
                self.met.append(point)
                self.full = place.half if self._lasting else None
            self.refused += 1
            return self._number

    def _name(self, path: str) -> str | None:
        """A path without what changes from run to run; None where it lies in neither half."""
        name = path.removeprefix(self._folder)
        if name == path or name.split("/")[0] not in HALVES:
            return None
        for pattern, word in _CHANGING:
            name = re.sub(pattern, word, name)
        return name


def ends(points: Iterable[Point]) -> list[Point]:
    """The first and the last point of each place, in the order of the points."""
    points = list(points)
    last = {point.place: point for point in points}
    return [point for point in points if point.nth == 1 or point == last[point.place]]


def one_of_each(points: Iterable[Point], generator: random.Random) -> list[Point]:
    """A point of each place, in the order of the places: the first, the last, or any, as drawn."""
    of: dict[Place, list[Point]] = {}
    for point in points:
        of.setdefault(point.place, []).append(point)
    return [generator.choice((found[0], found[-1], generator.choice(found))) for found in of.values()]


def combs(points: Sequence[Point], teeth: int) -> list[list[Point]]:
    """The points in groups of at most `teeth`, those of each group as far from one another as can be."""
    stride = max(1, -(-len(points) // teeth))
    return [list(points[first::stride]) for first in range(min(stride, len(points)))]
