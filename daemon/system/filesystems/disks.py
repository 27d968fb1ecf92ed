"""Where ckptd writes, and whether there is room: free space, free inodes, and writes that are refused all the same (quotas).

Pure looks, and `probe`, which writes. Used by the daemon's watch over its disks, by `ckptd status` and `ckptd check`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from daemon.contract import units
from daemon.contract.disk.files import fsync_directory, remove_tree, write_atomic
from daemon.contract.faults.errors import FULL_DISK, Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.light import dataclass

LEAST_BYTES = 1 << 20
"""Free bytes without which not even the journal can be written to for long; what counts where `limits.disk_reserve` is smaller."""
LEAST_INODES = 64
"""Free inodes without which an export can't be begun: a pin, its attempts and its outputs have some dozens of files."""
PROBE = ".ckptd-probe"
PROBE_BYTES = 1 << 16
ROOM_BYTES = 1 << 14
"""What is overwritten when the disk is full has a multiple of so many bytes."""


@dataclass(frozen=True)
class Place:
    """A folder that ckptd writes into. `key`: of the configuration, "" for one below such; `needed`: bytes that must be free."""

    key: str
    folder: str
    needed: int


@dataclass(frozen=True)
class Shortage:
    """A file system with too little free space. Sizes in bytes."""

    folder: str
    keys: tuple[str, ...]
    """Keys of the configuration whose folders are on it."""
    free: int
    needed: int
    inodes: int | None = None
    """Free inodes, if there are too few of them."""
    refused: str | None = None
    """The error of the system, if it refuses writes although it reports free space, for example because of a quota."""
    delete: str = ""
    """The files that can be deleted there, as a sentence."""

    def sentence(self) -> str:
        """What is lacking where, in one sentence."""
        where = f"{self.folder} ({', '.join(self.keys)})"
        if self.inodes is not None:
            return f"{where} has {self.inodes} free inodes, but {LEAST_INODES} are needed"
        if self.refused is not None:
            return f"{where} refuses writes ({self.refused}), although {units.size(self.free)} are free: a quota is used up"
        return f"{where} has {units.size(self.free)} free, but {units.size(self.needed)} are needed"


def nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists. Raises OSError where that can't be found out."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def free_inodes(folder: Path) -> int | None:
    """Free inodes, for this user, where the file system of `folder` has a number of them that can run out."""
    status = os.statvfs(nearest_existing(folder))
    return status.f_favail if status.f_files else None


def short_of_room(where: Iterable[Place], needs: Sequence[Place] = (), refused: dict[str, str] | None = None) -> tuple[Shortage, ...]:
    """The file systems with too little room, each once. `needs`: what waits for room beyond `where`; `refused`: folder → what was said."""
    groups: dict[int, list[Place]] = {}
    for place in (*where, *needs):
        with contextlib.suppress(OSError):  # what can't be reached is not full; whoever needs it says so
            groups.setdefault(os.stat(nearest_existing(Path(place.folder))).st_dev, []).append(place)
    shortages = []
    for group in groups.values():
        status = os.statvfs(nearest_existing(Path(group[0].folder)))
        free, needed = status.f_bavail * status.f_frsize, max(place.needed for place in group)
        said = next((refused[place.folder] for place in group if place.folder in refused), None) if refused else None
        keys = tuple(dict.fromkeys(place.key for place in group if place.key))
        if free < needed:
            shortages.append(Shortage(group[0].folder, keys, free, needed))
        elif status.f_files and status.f_favail < LEAST_INODES:
            shortages.append(Shortage(group[0].folder, keys, free, needed, inodes=status.f_favail))
        elif said is not None:
            shortages.append(Shortage(group[0].folder, keys, free, needed, refused=said))
    return tuple(shortages)


def unwritable(where: Iterable[Place]) -> tuple[str, ...]:
    """The folders that this process may not write into now, each as a sentence; full ones are not among them."""
    sentences = []
    for place in where:
        with contextlib.suppress(OSError):  # what can't be reached is not closed; whoever needs it says so
            folder = nearest_existing(Path(place.folder))
            if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
                read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
                why = "its file system is mounted for reading only" if read_only else "this user has no right to"
                sentences.append(f"Nothing can be written to {place.folder} ({place.key or 'a folder below it'}): {why}; work waits.")
    return tuple(sentences)


def probe(folder: Path) -> OSError | None:
    """Write below `folder` in every way that exports do, and take it away again; gives the error of a full disk, else None."""
    place = folder / PROBE
    first, second, link = (place / name for name in ("first", "second", "link"))
    try:
        remove_tree(place)
        place.mkdir()
        with open(first, "wb") as stream:
            stream.write(b"\1" * PROBE_BYTES)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(first, second)
        os.link(second, first)
        os.symlink("second", link)
        fsync_directory(place)
    except OSError as error:
        return error if error.errno in FULL_DISK else None
    finally:  # by their names, since a folder can't be listed where no more files can be opened
        for path in (first, second, link):
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            place.rmdir()
        with contextlib.suppress(OSError):
            remove_tree(place)
    return None


def write_padded(file: Path, text: str) -> OSError | None:
    """Replace a small file of JSON; where the disk is full it is overwritten in the room that it has, for which it ends in blanks.

    A reader may then see some of both for an instant. Gives the error of the full disk then. Raises OSError where it has no room for that
    either.
    """
    data = text.encode()
    data += b" " * (-len(data) % ROOM_BYTES)
    try:
        write_atomic(file, data, durable=False)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if len(data) > size:
                raise
            os.pwrite(descriptor, data + b" " * (size - len(data)), 0)
        finally:
            os.close(descriptor)
        return error
    return None


class Refusals:
    """Faults that may mean a full disk, from all threads, for the one that watches over the disks."""

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        self._lock, self._wake = threading.Lock(), wake
        self._noted: list[Fault] = []

    def note(self, fault: Fault | None) -> None:
        """A write failed like this. What has nothing to do with a disk is passed over."""
        if fault is not None and fault.code in (FaultCode.DISK_FULL, FaultCode.JOURNAL_UNAVAILABLE):
            with self._lock:
                self._noted = [*self._noted[-100:], fault]
            self._wake()

    def take(self) -> list[Fault]:
        """What was noted since the last time."""
        with self._lock:
            noted, self._noted = self._noted, []
        return noted
