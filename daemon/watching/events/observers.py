"""What is watched by events, and whether that can still be trusted: roots, the directories below them, mounts.

Owned by the watcher's thread. Below each root that gives events the directories that scans go into are watched, and
the checkpoint directories without what lies in them; hidden and temporary ones are not. Where events can't be had (network
and FUSE file systems, a limit of the kernel) a root is polled, and whoever asks `polled` scans it.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from daemon.checkpoints.names import may_make_checkpoint
from daemon.config.settings import WatchSettings
from daemon.contract.faults.events import Event
from daemon.system.filesystems.mounts import file_system_type, is_remote, mount_of, mounts
from daemon.system.logger import Logger
from daemon.watching.entries import innermost_first, is_ignored
from daemon.watching.events.inotify import Directories, Hints, Role, limit_behind, role_of

log = Logger("watch")

NEVER_HOLDS_RUNS = frozenset({"wandb", "mlruns", "__pycache__"})
"""Directories that trackers of experiments fill by the hundred; a checkpoint in one is found by the scans alone."""
MOST_WATCHED = 20_000
"""Directories that events are asked for: each costs about a kilobyte of the kernel's memory and half of that here. Level by level, so that
what lies deepest is left to the scans."""
RETRY_SECONDS = 1800.0
"""After a limit was hit, events are tried again this much later: other programs may have ended."""

Identity = tuple[int, int]


class Observers:
    """The watches of all roots; `roots` maps each to its device and inode, None while it does not exist."""

    def __init__(
        self, settings: WatchSettings, hints: Hints, say_once: Callable[[str, Event, str], None], elsewhere: Collection[str] = ()
    ) -> None:
        self._backend = settings.backend
        self._depth = settings.depth or sys.maxsize
        self._hints = hints
        self._say_once = say_once
        self._directories: Directories | None = None
        self._mounts = _MountTable()
        self._mounted: frozenset[tuple[str, Identity | None]] = frozenset()
        self._retry_at: float | None = None
        self._all = innermost_first(settings.roots)
        self.roots: dict[Path, Identity | None] = dict.fromkeys(self._all)
        self._elsewhere = frozenset(elsewhere)
        self._names = self._elsewhere
        table = mounts()  # asks no file system: one that does not answer from the start is told as what it is
        kinds = {root: mount.fstype if (mount := mount_of(str(root), table)) else "" for root in self._all}
        self._polled = {root: self._backend == "poll" or (self._backend == "auto" and is_remote(kind)) for root, kind in kinds.items()}

    def backend_of(self, root: Path) -> str:
        """"inotify" or "poll": how this root is watched."""  # fmt: skip
        return "poll" if self._polled[root] else "inotify"

    def polled(self) -> list[Path]:
        """The roots that give no events."""
        return [root for root in self.roots if self._polled[root]]

    def __len__(self) -> int:
        """How many directories are watched."""
        return len(self._directories) if self._directories is not None else 0

    def renew(self) -> None:
        """Watch everything afresh. Roots may come later: `why_unsound` notices them."""
        self._close()
        self._retry_at = None
        self._mounts.changed()
        self.roots = {root: _identity(root) for root in self._without_aliases()}
        self._names = self._elsewhere | frozenset(map(str, self.roots))
        self._mounted = self._mounts_below()
        self._polled = {root: self._must_poll(root) for root in self._all}
        if all(self._polled[root] for root in self.roots):
            return
        try:
            self._directories = Directories(self._hints)
        except OSError as error:
            for root in self.roots:
                self._poll_instead(root, error)
            return
        for root, identity in self.roots.items():
            self.cover(str(root))
            if identity is not None and not self._polled[root] and str(root) not in self._directories:
                self._polled[root] = True  # not readable: the scan says so, and sees when that changes

    def cover(self, path: str) -> list[str]:
        """Watch the directory `path` and those below it; gives the paths among them that hint at a checkpoint.

        Each directory is registered before it is listed, so that what appears meanwhile is seen by one of the two.
        """
        root = self._root_of(path)
        if root is None or self._directories is None or self._polled[root]:
            return []
        hints: list[str] = []
        level = len(Path(path).relative_to(root).parts)
        waiting = deque([(path, level, role_of(os.path.basename(path)) if level else Role.FOLDER)])
        try:
            while waiting:
                folder, level, role = waiting.popleft()
                if self._matters(folder, level, role):
                    self._directories.watch(folder, role, follow=level == 0)
                    if role is not Role.FOLDER:
                        hints.append(folder)
                    if role is not Role.CHECKPOINT:
                        waiting.extend(_list(folder, level + 1, hints))
        except OSError as error:
            self._poll_instead(root, error)
        return hints

    def uncover(self, path: str) -> None:
        """The directory `path` is no longer there, or another one is: watch neither it nor what was below."""
        if self._directories is not None:
            self._directories.forget(path)

    def why_unsound(self) -> str | None:
        """Why the watches can't be trusted any more; None while they can. A few stats, cheap enough for every second."""
        if self._directories is not None:
            if not self._directories.is_alive():
                return "the thread that reads events has ended"
            if self._directories.lost:
                return "events were lost: the kernel's queue overflowed, or a file system was unmounted"
        for root, known in self.roots.items():
            if _identity(root) != known:
                return f"the root {root} {'appeared' if known is None else 'was replaced or deleted'}"
            if known is not None and not self._polled[root] and (self._directories is None or str(root) not in self._directories):
                return f"the root {root} is no longer watched"
        if self._mounts.changed() and self._mounts_below() != self._mounted:
            return "a mount below a root came or went"
        if self._retry_at is not None and time.monotonic() >= self._retry_at:
            return "events are tried again after a limit was hit"
        return None

    def stop(self) -> None:
        """End the thread that reads events."""
        self._close()
        self._mounts.close()

    def _close(self) -> None:
        old, self._directories = self._directories, None
        if old is not None:
            old.close()

    def _matters(self, folder: str, level: int, role: Role) -> bool:
        """Whether a directory is watched: as scans do, and a root inside another one only for itself, to its own depth."""
        if level == 0:
            return True
        if folder in self._names or level > self._depth:
            return False
        if role is Role.CHECKPOINT:
            return True
        name = os.path.basename(folder)
        if not (level < self._depth or role is Role.LOOSE) or name in NEVER_HOLDS_RUNS or is_ignored(name):
            return False
        if len(self) < MOST_WATCHED:
            return True
        self._say_once(
            "watched",
            Event.WATCH_TOO_MANY,
            f"More than {MOST_WATCHED:,} directories lie below the watched roots; those that lie deepest are found by"
            " scans alone. Name the directories of the runs in watch.roots for quick detection.",
        )
        return False

    def _root_of(self, path: str) -> Path | None:
        return next((root for root in self.roots if path == str(root) or path.startswith(str(root).rstrip("/") + "/")), None)

    def _must_poll(self, root: Path) -> bool:
        """Whether no events can be had: as configured, or because a file system at or below the root may change remotely."""
        if self._backend != "auto":
            return self._backend == "poll"
        if is_remote(file_system_type(root)):
            return True
        below = _real(root).rstrip("/") + "/"
        return any(mount.startswith(below) and is_remote(file_system_type(Path(mount))) for mount, _ in self._mounted)

    def _poll_instead(self, root: Path, error: OSError) -> None:
        """Give the root's watches back, scan it from now on, and say which limit was hit."""
        self.uncover(str(root))
        self._polled[root] = True
        self._retry_at = time.monotonic() + RETRY_SECONDS
        limit = limit_behind(error)
        if limit is None:
            cause = "this process can't open more files; raise LimitNOFILE" if error.errno == errno.EMFILE else error.strerror
            self._say_once(
                f"watch:{root}", Event.ROOT_POLLED, f"Cannot watch {root} by events ({cause}); it is scanned every few seconds instead."
            )
            return
        more = max(4 * (limit.value or 0), _ENOUGH[limit.counted])
        self._say_once(
            f"limit:{limit.sysctl}",
            Event.ROOT_POLLED,
            f"Cannot watch {root} by events: this user's limit of {limit.value} inotify {limit.counted} is used up; "
            f"it is scanned every few seconds instead. Fix: raise the limit: sysctl -w {limit.sysctl}={more}",
        )

    def _mounts_below(self) -> frozenset[tuple[str, Identity | None]]:
        """The mount points below the roots, each with its identity."""
        prefixes = tuple(_real(root).rstrip("/") + "/" for root in self.roots)
        parts = [part for part in psutil.disk_partitions(all=True) if part.mountpoint.startswith(prefixes)]
        # A dead server's mount would hold whoever asks for its inode.
        return frozenset((part.mountpoint, None if is_remote(part.fstype) else _identity(Path(part.mountpoint))) for part in parts)

    def _without_aliases(self) -> list[Path]:
        """The roots without those that lead, through a link, into another one: what is there would be taken twice."""
        kept: list[Path] = []
        for root in sorted(self._all, key=lambda path: len(Path(_real(path)).parts)):
            other = next((around for around in kept if _is_alias(root, around)), None)
            if other is None:
                kept.append(root)
            else:
                self._say_once(
                    f"alias:{root}",
                    Event.ROOT_LEFT_OUT,
                    f"The watched root {root} leads into {other} through a link; it is left out, since every "
                    "checkpoint would be taken twice. Name one of the two in watch.roots.",
                )
        return innermost_first(tuple(kept))


_ENOUGH = {"watches": 524_288, "instances": 512}


class _MountTable:
    """Tells when the table of mounts has changed since it was last asked, without reading it."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._poll = select.poll()

    def changed(self) -> bool:
        if self._file is None:
            try:
                self._file = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
            self._poll.register(self._file, select.POLLPRI)
        return any(events & (select.POLLPRI | select.POLLERR) for _, events in self._poll.poll(0))

    def close(self) -> None:
        if self._file is not None:
            self._poll.unregister(self._file)
            os.close(self._file)
            self._file = None


def _list(folder: str, level: int, hints: list[str]) -> list[tuple[str, int, Role]]:
    """The directories in a directory, links left out; a file that may make it a checkpoint is added to `hints`."""
    below: list[tuple[str, int, Role]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append((entry.path, level, role_of(entry.name)))
                elif may_make_checkpoint(entry.name):
                    hints.append(entry.path)
    except OSError:
        pass  # the scan that follows says so
    return below


def _is_alias(root: Path, other: Path) -> bool:
    """Whether `root` lies at or below `other`, but not by its name."""
    real, around = Path(_real(root)), Path(_real(other))
    if real != around and around not in real.parents:
        return False
    return other not in root.parents or real.relative_to(around) != root.relative_to(other)


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _identity(path: Path) -> Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino)
