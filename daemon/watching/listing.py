"""What people are told of directories: what can't be read, what is refused, not watched or can't be pinned, each said once in the log.

Used by the tracker's thread alone; what is listed is replaced as a whole, since other threads read it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from daemon.checkpoints.names import run_of
from daemon.checkpoints.readable import closed_directory
from daemon.contract.faults.errors import Fault, from_oserror
from daemon.contract.faults.events import Event
from daemon.system.logger import Logger
from daemon.watching.resting import Incomplete

log = Logger("watch")


class Listing:
    """The directories that are not taken, and why."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self.incomplete: dict[Path, Incomplete] = {}
        self.unreadable: dict[Path, Fault] = {}
        """Directory that can't be read → why: mostly who lacks which right, and the command."""
        self._refused: dict[Path, str] = {}
        """Directory in a layout that is not exported, or that met an error → why, and the command."""
        self._passed: dict[Path, dict[Path, str]] = {}
        """Root → what its last scan saw and did not take, and what it could not come to."""
        self.delayed: dict[Path, Fault] = {}
        """Complete checkpoint that could not be pinned at the last try → why: it waits, for room on a disk for example. May be read from
        any thread."""

    @property
    def passed_over(self) -> dict[Path, str]:
        """Directory that holds a checkpoint → why it is not taken, and what to set. May be read from any thread."""
        return {path: why for group in (self._refused, *self._passed.values()) for path, why in group.items()}

    def refuse(self, path: Path, fault: Fault) -> bool:
        """List a directory that is refused; give whether that is new."""
        why = why_of(fault)
        if self._refused.get(path) == why:
            return False
        self._refused = {**self._refused, path: why}
        return True

    def unlist(self, path: Path) -> None:
        """What kept a directory from being taken does so no longer."""
        self._refused = {other: why for other, why in self._refused.items() if other != path}

    def note_delayed(self, path: Path, fault: Fault) -> None:
        """A directory could not be pinned; the next rescan tries again."""
        self.delayed = {**self.delayed, path: fault}

    def forget(self, path: Path) -> None:
        """A directory is gone, or decided upon. What was refused stays listed."""
        if path in self.delayed:
            self.delayed = {other: fault for other, fault in self.delayed.items() if other != path}
        self.open(path)
        self.incomplete.pop(path, None)

    def note_scan(self, root: Path, seen: Collection[Path], passed: Mapping[Path, str], left_out: str | None) -> None:
        """Remember, and say once, what a scan saw and does not take, and what it could not come to. What has gone is no longer listed."""
        for path, why in passed.items():
            self.say_once(f"passed:{path}", Event.CHECKPOINT_NOT_WATCHED, f"Seen, not watched: {path}: {why}")
        if left_out:
            passed = {**passed, root: left_out}
            self.say_once(f"left-out:{root}", Event.WATCH_BOUNDED, f"Not everything is watched: {left_out}")
        else:
            self.unsay(f"left-out:{root}")
        self._refused = {path: why for path, why in self._refused.items() if path in seen or root not in path.parents}
        self._passed = {**self._passed, root: {**passed}}

    def note_closed(self, root: Path, seen: Collection[Path], errors: Sequence[OSError]) -> None:
        """Remember which directories a scan could not list; what can be read again, or is gone, is listed no longer."""
        said = set[Path]()
        for error in errors:
            path = Path(os.fsdecode(error.filename or root))
            fault = closed_directory(path)
            self.note_unreadable(path, fault, error)
            said.add(path)
        for path in [path for path in self.unreadable if path not in said and path not in seen and (path == root or root in path.parents)]:
            self.open(path)

    def is_closed(self, root: Path) -> bool:
        """Return whether a root can't be come to for want of a right, which is listed then."""
        fault = closed_directory(root)
        if fault is None:
            self.open(root)
        else:
            self.note_unreadable(root, fault)
        return fault is not None

    def note_unreadable(self, path: Path, fault: Fault | None, error: OSError | None = None) -> None:
        """List a directory that can't be read, and say it once; what no right is lacking for is an error of the disk."""
        if fault is None:
            why = error.strerror if error else ""
            self.say_once(f"read:{path}", Event.CHECKPOINT_UNREADABLE, f"Cannot read {path} ({why}); it is passed over until that changes")
            if error is not None and not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                self.unreadable = {**self.unreadable, path: from_oserror(error, "read the checkpoint", str(path)).fault}
            return
        if self.unreadable.get(path) != fault:
            # One sentence a run: a training that ends with fifty such checkpoints has one cause.
            known = any(run_of(other) == run_of(path) and other != path for other in self.unreadable)
            (log.debug if known else log.warning)(fault.sentence(), event_id=Event.CHECKPOINT_UNREADABLE, path=str(path), code=fault.code)
        self.unreadable = {**self.unreadable, path: fault}

    def open(self, path: Path) -> None:
        """A directory can be read: whatever was said of it no longer holds."""
        self.unsay(f"read:{path}")
        if path in self.unreadable:
            self.unreadable = {other: why for other, why in self.unreadable.items() if other != path}

    def say_once(self, key: str, event_id: Event, message: str) -> None:
        """Log a warning unless the same `key` has been said already."""
        if key not in self._said:
            self._said.add(key)
            log.warning(message, event_id=event_id)

    def unsay(self, key: str) -> None:
        """The cause of a warning is gone: say it again when it comes back."""
        self._said.discard(key)


def why_of(refusal: Fault) -> str:
    """Return cause and remedy of a fault, as lists show them."""
    return f"{refusal.cause}; {refusal.remedy}"
