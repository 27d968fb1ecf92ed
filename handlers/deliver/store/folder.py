"""A folder of this machine, or a share that is mounted here. A version is put together in a hidden folder and renamed into its place.

While a version is hidden, the keys of its files lead into the hidden folder; so two deliveries of it work at the same folder, and either
may rename it. A file is written below another hidden name, under a lock, and goes on from what was noted there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from daemon.contract.disk.files import fsync_directory, make_folders, read_bounded, sweep_temporaries, walk, write_atomic
from daemon.contract.faults.errors import CkptdError, Permanent, Retryable, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.locks import has_name, locked
from handlers.deliver.store.backend import MANIFEST, MOST, Document
from handlers.deliver.store.layout import begun
from handlers.deliver.target import Resume
from handlers.deliver.version import BLOCK, SourceFile

PART = 64 << 20
"""Bytes after which what was written is made durable and noted."""
WRITE = "write into the folder of the target"


class Folder:
    """The store."""

    def __init__(self, path: str, resume: Resume) -> None:
        self._base, self._resume = Path(path), resume
        self.place = str(self._base).rstrip("/") + "/"

    def close(self) -> None:
        """It holds nothing."""

    def look(self) -> None:
        """Find out whether it is there and can be written."""
        if not self._base.is_dir():
            raise Retryable(
                FaultCode.DELIVERY_FAR_END, WRITE, "it is not there", "make or mount it; the delivery is tried again by itself",
                path=self._base,
            )  # fmt: skip
        if not os.access(self._base, os.W_OK | os.X_OK):
            remedy = "give the service's user the right to write there (`ReadWritePaths=` too), or name another folder"
            raise Permanent(FaultCode.DELIVERY_REFUSED, WRITE, "it can't be written", remedy, path=self._base)

    def _path(self, key: str) -> Path:
        """Where a key's value lies now."""
        run, _, rest = key.partition("/")
        version, _, inside = rest.partition("/")
        if inside and not version.startswith(".") and not (self._base / run / version).is_dir():
            return self._base / run / f".{version}.new" / inside
        return self._base / key

    def has(self, key: str, file: SourceFile) -> bool:
        """By its size: nothing gets there before it is written whole."""
        path = self._path(key)
        return path.is_file() and path.stat().st_size == file.size

    def send(self, key: str, file: SourceFile, sent: Callable[[int], None], *, anew: bool = False) -> int:
        """Write it below a hidden name, then rename it."""
        with _errors(self._base):
            run, version = key.split("/")[:2]
            part = self._base / run / f".{version}.parts" / file.sha256
            while True:
                self.look()
                make_folders(part.parent)
                with contextlib.suppress(FileNotFoundError), locked(part) as handle:
                    if not anew and self.has(key, file):  # another process wrote it meanwhile
                        return file.size
                    if has_name(handle, part):
                        return self._fill(key, handle, part, file, sent)

    def _fill(self, key: str, handle: int, part: Path, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Write what is missing of it; gives what was there."""
        note = f"part {key}"
        known = self._resume.get(note)
        start = min(int(known.get("bytes", 0)), os.fstat(handle).st_size) if known.get("sha256") == file.sha256 else 0
        os.ftruncate(handle, start)
        at = start
        for block in file.parts(BLOCK, start):
            at = _written(handle, block, at)
            sent(len(block))
            if at % PART < len(block):
                os.fsync(handle)
                self._resume.keep(note, {"bytes": at, "sha256": file.sha256})
        os.fchmod(handle, file.source.stat().st_mode & 0o666)  # others may read what they may read of the export
        os.fsync(handle)
        goal = self._path(key)
        make_folders(goal.parent)
        part.replace(goal)
        self._resume.keep(note, None)
        return start

    def copy(self, source: str, key: str, file: SourceFile) -> bool:
        """By a link: both are never written again."""
        old, goal = self._path(source), self._path(key)
        with _errors(self._base):
            make_folders(goal.parent)
            goal.unlink(missing_ok=True)
            try:
                if old.stat().st_size == file.size:
                    os.link(old, goal)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EEXIST, errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
                    raise
        return self.has(key, file)

    def stream(self, key: str) -> Iterator[bytes]:
        """The contents."""
        with _errors(self._base), self._path(key).open("rb") as source:
            while block := source.read(BLOCK):
                yield block

    def read(self, key: str) -> Document | None:
        """A small value, by its digest."""
        path = self._path(key)
        if path.name == MANIFEST and path.parent.name.startswith("."):  # of a version that has not got its name yet
            return None
        with _errors(self._base):
            try:
                body = read_bounded(path, MOST)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except ValueError:  # no plain file, or a large one: none of ours
                return Document(b"", "?")
        return Document(body, hashlib.sha256(body).hexdigest())

    def write(self, key: str, data: bytes, tag: str | None) -> bool:
        """Replace it, alone among deliveries."""
        path = self._path(key)
        with _errors(self._base):
            self.look()
            make_folders(path.parent)
            with locked(self._base / key.partition("/")[0] / ".lock"):
                there = self.read(key) if tag is not None else None
                if tag is not None and (there.tag if there else "") != tag:
                    return False
                write_atomic(path, data)
        return True

    def publish(self, folder: str, data: bytes) -> bool:
        """Rename the hidden folder, manifest and all."""
        final, hidden = self._base / folder, self._path(f"{folder}/{MANIFEST}").parent
        with _errors(self._base):
            if hidden != final:
                make_folders(part := final.with_name(f".{final.name}.parts"))
                write_atomic(part / MANIFEST, data)  # what a kill leaves of it must not become visible
                (part / MANIFEST).replace(hidden / MANIFEST)
                for path, _, _ in walk(hidden):
                    fsync_directory(Path(path))
                if _renamed(hidden, final):
                    return True
        return self.write(f"{folder}/{MANIFEST}", data, "")

    def clear(self, folder: str) -> None:
        """Remove hidden folders of a version, and what killed processes left half written in those that stay."""
        path = self._base / folder
        for ending in ("new", "parts"):
            shutil.rmtree(path.with_name(f".{path.name}.{ending}"), ignore_errors=True)
        for each in (path, path.parent, (self._base / begun(folder)).parent):
            sweep_temporaries(each)

    def folders(self, prefix: str) -> Sequence[str]:
        """Folders, no links."""
        return [entry.name for entry in self._below(prefix) if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")]

    def files(self, prefix: str) -> Sequence[str]:
        """Plain files."""
        return [entry.name for entry in self._below(prefix) if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")]

    def _below(self, prefix: str) -> Sequence[os.DirEntry[str]]:
        with _errors(self._base):
            if not self._base.is_dir():
                self.look()
            try:
                return list(os.scandir(self._base / prefix))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, key: str) -> None:
        """Remove a file, and folders that are empty then."""
        path, run = self._path(key), self._base / key.partition("/")[0]
        with _errors(self._base):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
            with contextlib.suppress(OSError):
                while path.parent != run:
                    path = path.parent
                    path.rmdir()


def _written(handle: int, block: bytearray, at: int) -> int:
    """Write a block to a place, whole: a disk that is almost full takes a part of it. Gives where it ends."""
    with memoryview(block) as left:
        while left:
            count = os.pwrite(handle, left, at)
            left, at = left[count:], at + count
    return at


def _renamed(hidden: Path, final: Path) -> bool:
    """Let a folder have its name; False where another process was faster. Raises OSError where something else has the name."""
    try:
        hidden.rename(final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) or (error.errno == errno.ENOENT and final.is_dir()):
            return False
        if os.path.lexists(final) and not final.is_dir():
            remedy = "look at it, take it away, and run `ckptd deliver` again"
            raise Permanent(FaultCode.DELIVERY_CONFLICT, "write a version", "something else has its name", remedy, path=final) from error
        raise
    fsync_directory(final.parent)
    return True


@contextlib.contextmanager
def _errors(folder: Path) -> Iterator[None]:
    """The system's errors as those of a delivery."""
    try:
        yield
    except CkptdError:
        raise
    except OSError as error:
        ours = from_oserror(error, WRITE, str(folder))
        if ours.fault.code == FaultCode.DISK_FULL:
            remedy = "free space there, or let the target's `keep` remove older versions"
            raise Retryable(FaultCode.DELIVERY_FULL, WRITE, ours.fault.cause, remedy, path=folder) from error
        if isinstance(error, FileNotFoundError):
            remedy = "mount or make the folder; the delivery is tried again by itself"
            raise Retryable(FaultCode.DELIVERY_FAR_END, WRITE, f"{error.filename} is gone", remedy, path=folder) from error
        raise ours from error
