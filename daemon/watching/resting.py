"""Directories that are known to be incomplete: whether a scan may pass one over since nothing in it has changed.

Used by the tracker. A directory that changes causes an event; scans have to notice the same without it, and at a cost that hundreds of
such directories may have in every scan. So a scan compares what can be known without opening a file.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.checkpoints.inspection import Inspection, inspect
from daemon.checkpoints.names import run_of

MAPPED_SECONDS = 60.0
"""So long after a change more may have been written through a mapping than a file's time tells: until the kernel has written its pages."""
LOOK_AGAIN_SECONDS = 600.0
"""How often scans have a directory looked at though nothing in it seems to have changed."""


@dataclass(frozen=True)
class State:
    """What can be known of a directory's entries without reading them, permissions included."""

    digest: int
    rested: bool
    """By the clock of the files' times nothing had changed for MAPPED_SECONDS."""


@dataclass
class Incomplete:
    """A quiet directory that is not whole."""

    missing: tuple[str, ...]
    since: float
    reported: bool = False
    state: State | None = None
    """What its files looked like when it was last looked through, or at a later scan; None where that can't be known."""
    state_since: float = 0.0
    """Since when they are known to look so; far in the past where they had rested already."""
    look_again: float = 0.0
    """When a scan has it looked at though its files look the same."""

    def note(self, path: Path, state: State | None, now: float) -> None:
        """It has been looked through, and was in this state before that."""
        if state is None or self.state is None or state.digest != self.state.digest:
            self._see(state, now)
        self._put_off(path, now)

    def is_at_rest(self, path: Path, now: float) -> bool:
        """Whether a scan may pass it over: no file in it has changed in any way since it was looked through.

        What changed lately is looked at all the same, since writes through a mapping show late, and so is everything now and then.
        """
        state = _state_of(path)
        if state is None or self.state is None or state.digest != self.state.digest:
            # Its times may be another machine's, so that they count only for what a look has seen.
            self._see(None if state is None else State(state.digest, rested=False), now)
        elif now - self.state_since >= MAPPED_SECONDS and now < self.look_again:
            return True
        self._put_off(path, now)
        return False

    def _see(self, state: State | None, now: float) -> None:
        self.state, self.state_since = state, now - MAPPED_SECONDS if state is not None and state.rested else now

    def _put_off(self, path: Path, now: float) -> None:
        self.look_again = now + LOOK_AGAIN_SECONDS * (0.75 + (hash(path) % 1024) / 2048)  # not all in one scan


def look_through(path: Path) -> tuple[State | None, Inspection]:
    """Return the state of a directory and, looked at after that, what is in it. Raises OSError when it is gone or can't be read."""
    return _state_of(path), inspect(path)


def _state_of(path: Path) -> State | None:
    """The state of a directory now. None where a part of it can't be known: something in it is no plain file, or can't be asked."""
    at, rows, folder = time.time_ns(), list[tuple[str, int, int, int, int]](), str(path)
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    return None
                rows.append(_row(entry.name, entry.stat(follow_symlinks=False)))
        run = str(run_of(path))
        # What it lacks may be put into its run's directory.
        rows += [_row(place, os.stat(place)) for place in (folder, run)]
        for name in ("adapter_config.json", "config.json"):
            with suppress(FileNotFoundError):
                rows.append(_row(name, os.lstat(f"{run}/{name}")))
    except OSError:
        return None
    newest = max(max(row[3:]) for row in rows)
    return State(hash(tuple(sorted(rows))), newest + int(MAPPED_SECONDS * 1e9) <= at)


def _row(name: str, status: os.stat_result) -> tuple[str, int, int, int, int]:
    """Name, inode, size in bytes, and the times of its content and of itself, in ns."""
    return name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
