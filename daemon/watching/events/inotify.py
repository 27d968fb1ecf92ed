"""Many directories on one inotify instance, each watched by itself: which ones, and what the kernel says of them.

Used by daemon.watching.events.observers, from the watcher's thread alone; the events arrive in the thread of watchdog's `InotifyFD` and
only become hints in a queue. watchdog's observers can't do this: they watch whole trees, training logs and optimizer
folders included, or start a thread for each directory. Linux only, as inotify is.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import queue
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from watchdog.observers.inotify_c import CallbackId, InotifyConstants, InotifyEvent, InotifyFD, Mask, WatchDescriptor

from daemon.checkpoints.names import is_checkpoint_name, is_loose_name, may_make_checkpoint


class Kind(Enum):
    """What a hint is about."""

    CHANGED = "changed"  # the checkpoint directory `path`, or the file `path` that may make one of the directory around it
    FOLDER = "folder"  # the directory `path` came, went, or may be read by others than before
    LINK = "link"  # a link has come: it may lead to a run
    WORKED = "worked"  # the checkpoint directory `path`: what was asked for about it has been done
    LOOK = "look"  # everything


class Hint(NamedTuple):
    """One thing to look at."""

    kind: Kind
    path: str = ""


Hints = queue.SimpleQueue[Hint]


class Role(Enum):
    """What a directory is by its name, and so which of its events matter."""

    CHECKPOINT = "checkpoint"  # every file; what lies in its folders is left alone
    LOOSE = "loose"  # every file, and further directories
    FOLDER = "folder"  # directories, and the few names that make it a checkpoint


@lru_cache(4096)
def role_of(name: str) -> Role:
    """The role of a directory that is no root."""
    return Role.CHECKPOINT if is_checkpoint_name(name) else Role.LOOSE if is_loose_name(name) else Role.FOLDER


_NAMES = (
    InotifyConstants.IN_CREATE | InotifyConstants.IN_DELETE | InotifyConstants.IN_MOVE | InotifyConstants.IN_ATTRIB
    | InotifyConstants.IN_ONLYDIR | InotifyConstants.IN_EXCL_UNLINK
)  # fmt: skip
# Neither opening nor reading is asked for, so our own looks wake nobody. Nor is every single write: a look finds a
# directory that moves and comes back by itself, and the last write is followed by a close.
_FILES = _NAMES | InotifyConstants.IN_CLOSE_WRITE
_COME = InotifyConstants.IN_CREATE | InotifyConstants.IN_MOVED_TO
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)


class _Watch:
    """One watched directory; watchdog calls it back, in its own thread."""

    __slots__ = ("_owner", "_role", "below", "gone", "key", "path")  # there may be a hundred thousand

    def __init__(self, path: str, role: Role, owner: Directories) -> None:
        self.path = path
        self.gone = False
        self.below: set[str] | None = None
        self.key: tuple[WatchDescriptor, CallbackId] | None = None
        self._role = role
        self._owner = owner

    def on_event(self, event: InotifyEvent) -> None:
        """Turn an event into a hint, or into none where it can't matter."""
        name = os.fsdecode(event.name)
        if event.mask & InotifyConstants.IN_UNMOUNT:
            self._owner.lose()
        elif self._role is not Role.CHECKPOINT and event.is_directory:
            self._owner.hints.put(Hint(Kind.FOLDER, os.path.join(self.path, name) if name else self.path))
        elif self._role is not Role.FOLDER:
            self._owner.hints.put(Hint(Kind.CHANGED, self.path))
        elif may_make_checkpoint(name):
            self._owner.hints.put(Hint(Kind.CHANGED, os.path.join(self.path, name)))
        elif name and event.mask & _COME and os.path.islink(path := os.path.join(self.path, name)):
            self._owner.hints.put(Hint(Kind.LINK, path))

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """The directory was deleted, or its file system unmounted."""
        self.gone = True

    def on_queue_overflow(self) -> None:
        """The kernel dropped events."""
        self._owner.lose()


class Directories:
    """The watched directories. `lost`: events were dropped, so that nothing here can be trusted any more."""

    def __init__(self, hints: Hints) -> None:
        """Raises OSError (EMFILE) at the limit of inotify instances or of open files."""
        self.hints = hints
        self.lost = False
        self._watches: dict[str, _Watch] = {}
        self._numbers = itertools.count(1)
        self._inotify = InotifyFD()
        self._inotify.name = "inotify"
        self._inotify.start()

    def __len__(self) -> int:
        return len(self._watches)

    def __contains__(self, path: str) -> bool:
        """Whether a directory is watched, as far as the kernel has told."""
        watch = self._watches.get(path)
        return watch is not None and not watch.gone

    def is_alive(self) -> bool:
        """Whether the thread that reads the events lives."""
        return self._inotify.is_alive()

    def lose(self) -> None:
        """Events were dropped: ask, once, for a look at everything."""
        if not self.lost:
            self.lost = True
            self.hints.put(Hint(Kind.LOOK))

    def watch(self, path: str, role: Role, *, follow: bool = False) -> bool:
        """Watch one directory, without those in it; a link only with `follow`. False where it can't be read or is gone.

        Raises OSError (ENOSPC) at the limit of watches.
        """
        known = self._watches.get(path)
        if known is not None and not known.gone:
            return True
        if known is not None:
            self.forget(path)
        watch = _Watch(path, role, self)
        mask = Mask((_NAMES if role is Role.FOLDER else _FILES) | (0 if follow else InotifyConstants.IN_DONT_FOLLOW))
        number = CallbackId(next(self._numbers))
        try:
            watch.key = (self._inotify.add_callback(os.fsencode(path), mask, watch, number), number)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
        if watch.key[0] < 0:  # watchdog's way to say that reading is not permitted
            self._inotify.remove_callbacks([watch.key])
            return False
        self._watches[path] = watch
        parent = self._watches.get(os.path.dirname(path))
        if parent is not None:
            parent.below = parent.below or set()
            parent.below.add(path)
        return True

    def forget(self, path: str) -> None:
        """Stop watching a directory and all below it."""
        parent = self._watches.get(os.path.dirname(path))
        if parent is not None and parent.below:
            parent.below.discard(path)
        waiting = [path]
        while waiting:
            watch = self._watches.pop(waiting.pop(), None)
            if watch is None:
                continue
            waiting.extend(watch.below or ())
            if not watch.gone and watch.key is not None:
                with contextlib.suppress(OSError):  # the kernel was quicker
                    self._inotify.remove_callbacks([watch.key])

    def close(self) -> None:
        """End the thread and give all watches back."""
        self._inotify.stop()
        self._inotify.join(5)


class Limit(NamedTuple):
    """A limit of the kernel that was hit: what is counted, the sysctl that holds it, and its value."""

    counted: str
    sysctl: str
    value: int | None


def limit_behind(error: OSError) -> Limit | None:
    """The inotify limit that `error` means; None where it means something else."""
    counted = {errno.ENOSPC: "watches", errno.EMFILE: "instances"}.get(error.errno or 0)
    if counted is None or (counted == "instances" and not _can_open()):
        return None
    # The same counter has two names. In a user namespace, as in a container, only the second one is its own.
    limits = [Limit(counted, name, _sysctl(name)) for name in (f"fs.inotify.max_user_{counted}", f"user.max_inotify_{counted}")]
    return min((limit for limit in limits if limit.value is not None), key=lambda limit: limit.value or 0, default=limits[0])


def _can_open() -> bool:
    """Whether this process may open another file: else EMFILE speaks of its own limit."""
    try:
        os.close(os.open("/", os.O_RDONLY))
    except OSError:
        return False
    return True


def _sysctl(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", *name.split(".")).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
