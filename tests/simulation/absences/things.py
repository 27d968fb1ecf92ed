"""What a world moves away and brings back: its places on a real file system, and when each was where, which is the oracle's knowledge."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.disk import EPOCH_NS

MISSING, UNREADABLE, DANGLING, EMPTY, PARTLY = "missing", "unreadable", "dangling", "empty", "partly"
FOREVER = math.inf
WEIGHTS_OF_BASE = "model.safetensors"
"""The file that is gone where something is away `PARTLY`."""


@dataclass
class Spell:
    """A time in which a thing is away, in virtual seconds."""

    since: float
    until: float = FOREVER


@dataclass
class Thing:
    """Something that exports read or write, and that goes away as a whole, or (`PARTLY`) only its weights."""

    name: str
    path: Path
    aside: Path
    """Folder in which nobody looks."""
    ways: tuple[str, ...]
    write: Callable[[int], dict[str, bytes]] | None = None
    """Generation → the files, by name, as they are then ("" for the thing itself); None for what only comes back as it was."""
    generation: int = 0
    changed: list[float] = field(default_factory=list)
    """When it became another one."""
    spells: list[Spell] = field(default_factory=list)
    back_at: float = FOREVER
    way: str = ""
    """How it is away now; "" where it is there."""
    mounted: bool = False
    """It is a mount of its own, and its place is what the mount covers."""
    _moved: Path = Path()
    """Where what was put aside belongs."""

    @property
    def is_away(self) -> bool:
        """Whether it is away now, as a whole or partly."""
        return bool(self.way)

    @property
    def stays_away(self) -> bool:
        """Whether it is away and will never be back."""
        return self.is_away and self.back_at == FOREVER

    def away_in(self, since: float, until: float) -> bool:
        """Whether it was away at any moment of that time."""
        return any(spell.since <= until and spell.until >= since for spell in self.spells)

    def longest(self, now: float, gap: float) -> float:
        """Its longest time away until now, in seconds; two with less than `gap` between them count as one."""
        longest, since, until = 0.0, -FOREVER, -FOREVER
        for spell in self.spells:
            since = spell.since if spell.since - until > gap else since
            until = min(spell.until, now)
            longest = max(longest, until - since)
        return longest

    def make(self, now: float) -> None:
        """Write it as its generation is."""
        for name, data in (self.write(self.generation) if self.write else {}).items():
            file = self.path / name if name else self.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            moment = EPOCH_NS + int(now * 1e9)
            os.utime(file, ns=(moment, moment))

    def leave(self, way: str, now: float, back_at: float) -> None:
        """Go away."""
        self.way, self.back_at = way, back_at
        self.spells.append(Spell(now))
        if way == UNREADABLE:
            self.path.chmod(0)
        else:
            self._moved = self.path / WEIGHTS_OF_BASE if way == PARTLY else self.path
            self._moved.rename(self._aside())
        if way == DANGLING:
            self.path.symlink_to(self.path.with_name("nowhere"))
        elif way == EMPTY:
            self.path.mkdir()

    def come_back(self, now: float, *, other: bool = False) -> list[str]:
        """Come back, as it was or (`other`) as another one; gives what was left meanwhile in the place that its mount covers."""
        left: list[str] = []
        if self.way == UNREADABLE:
            self.path.chmod(0o755)
        else:
            if self.way == DANGLING:
                self.path.unlink()
            elif self.mounted and self.path.is_dir():
                left = sorted(str(one.relative_to(self.path)) for one in self.path.rglob("*"))
                self._clear()
            elif self.way == EMPTY:
                self._clear()
            self._aside().rename(self._moved)
        self.way, self.back_at = "", FOREVER
        self.spells[-1].until = now
        if other:
            self.generation += 1
            self.changed.append(now)
            self.make(now)
        return left

    def _clear(self) -> None:
        for path in sorted(self.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        self.path.rmdir()

    def _aside(self) -> Path:
        self.aside.mkdir(exist_ok=True)
        return self.aside / self.name
