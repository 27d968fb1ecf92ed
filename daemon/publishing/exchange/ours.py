"""What of a folder at an export's place is ours, and so may be removed: what we remember to have published, or what a true manifest says.

A name, or a file that looks like a manifest, proves nothing: others may write in an output. Ours is a folder
- whose manifest is the very file that this state published there (inode, size and time of every file are remembered in the state), or
- whose manifest is followed to the letter: each file that it names is there with its digest, and it names at least one.
And of such a folder ours are these files alone. Whatever else lies in it stays, under a name beside the export's. To compare inodes costs
nothing; digests are taken only where the state does not know the export, since another state or version published it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pydantic import Field, ValidationError

from daemon.contract.disk import failpoints
from daemon.contract.disk.export_layout import MANIFEST, holds_exports, read_manifest
from daemon.contract.disk.files import fsync_directory, make_folders, remove_tree, rename_new, write_atomic
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Frozen, digest_of
from daemon.publishing.exchange.beneath import Spot
from daemon.publishing.verification import verify
from daemon.system.logger import Logger

log = Logger("publish")

SET_ASIDE = ".before-ckptd-"
NEW, OLD = ".ckptd-new", ".ckptd-old"
"""Endings of the hidden names beside a target: what comes, and what goes. Before them are random letters, so that nobody else has them."""
GONE = ".ckptd-gone"
"""Ending of the hidden name of what is being removed where staging is on another file system."""
RECORD = ".swap"
BESIDE_OURS = frozenset({"extra", "symlink", "special", "inside"})
"""Differences from a manifest that leave all that it names as it is."""
Mark: TypeAlias = tuple[int, int, int]
"""Inode, size in bytes, time of the last change in ns: what tells a file from one that was put in its place or written into."""
Known: TypeAlias = Mapping[str, Mark]
"""Path below a folder → the mark of a file there that is ours."""


_PASSING = {os.strerror(number): number for number in (errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM)}
"""Text and number of errors that say nothing about whose a file is: it is read again."""


class _Remembered(Frozen):
    target: str
    files: dict[str, Mark]


@dataclass(frozen=True)
class Looked:
    """What lay at a place when it was looked at. `inode`: of it; `known`: its files that are ours, None where it is not ours."""

    inode: int
    known: Known | None


def look(place: Path, name: Path, records: Path | None) -> Looked | None:
    """What lies at `place`, known to people as `name`; None for nothing, or an empty folder. `records`: where the state remembers exports.

    Raises OSError where it can't be found out: what can't be read now is not for that reason somebody else's.
    """
    try:
        status = os.lstat(place)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return Looked(status.st_ino, None)
    if not os.listdir(place):
        return None
    return Looked(status.st_ino, known_files(place, name, records))


def known_files(place: Path, name: Path, records: Path | None) -> Known | None:
    """The files in the real folder `place` that are ours, None where it is no export of ours. Raises OSError."""
    marks = marks_below(place)
    if MANIFEST not in marks:
        return None
    remembered = None if records is None else _read(records, name)
    if remembered is not None and remembered.get(MANIFEST) == marks[MANIFEST]:
        return remembered
    proof = verify(place)
    if unread := next((problem for problem in proof.problems if problem.text in _PASSING), None):
        raise OSError(_PASSING[unread.text], unread.text, str(place / unread.path))
    if proof.files == 0 or any(problem.code not in BESIDE_OURS for problem in proof.problems):
        return None
    manifest = read_manifest(place)
    rows = manifest["files"] if isinstance(manifest, dict) else []
    return {path: marks[path] for path in [MANIFEST, *(str(row["path"]) for row in rows)] if path in marks}


def is_export(path: Path) -> bool:
    """Whether a real folder with a manifest of ours lies there. A link to one is no export, but somebody's link.

    Raises OSError where that can't be found out: what can't be read now is not for that reason somebody else's.
    """
    try:
        manifest = read_manifest(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return not path.is_symlink() and isinstance(manifest, dict) and "manifest_version" in manifest


def marks_below(folder: Path) -> dict[str, Mark]:
    """The mark of every regular file below a folder; links are not followed. Raises OSError."""
    marks = {}

    def fail(error: OSError) -> None:
        raise error

    for directory, _, names, handle in os.fwalk(folder, onerror=fail):
        for name in names:
            status = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                marks[os.path.relpath(os.path.join(directory, name), folder)] = mark_of(status)
    return marks


def mark_of(status: os.stat_result) -> Mark:
    """The mark of a file."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def remember(records: Path, target: Path, at: Path) -> None:
    """Note what lies at `at`, which has just been published as `target`; durable. Raises OSError."""
    if not records.is_dir():
        make_folders(records)
        records.chmod(0o700)
    write_atomic(_record(records, target), _Remembered(target=str(target), files=marks_below(at)).model_dump_json(), mode=0o600)


def forget(records: Path, target: Path) -> None:
    """The export is gone."""
    _record(records, target).unlink(missing_ok=True)


def _record(records: Path, target: Path) -> Path:
    return records / f"{digest_of(ascii(target))[:24]}.json"


def _read(records: Path, target: Path) -> Known | None:
    try:
        remembered = _Remembered.model_validate_json(_record(records, target).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return remembered.files if remembered.target == str(target) else None


def retire(folder: Path, known: Known, target: Spot) -> None:
    """Remove the files of an export that has left its place `target`; what else is in its folder is set aside beside the place.

    `folder`: where it lies now. Can be repeated after a crash. Raises OSError.
    """
    if not os.path.lexists(folder):
        return
    parents = {parent for path in known for parent in _parents(path)}

    def fail(error: OSError) -> None:
        raise error

    left = not stat.S_ISDIR(os.lstat(folder).st_mode)
    for directory, folders, names, handle in os.fwalk(folder, topdown=False, onerror=fail) if not left else ():
        inner = os.path.relpath(directory, folder)
        for name in names:
            path = os.path.normpath(os.path.join(inner, name))
            if path in known and mark_of(os.stat(name, dir_fd=handle, follow_symlinks=False)) == known[path]:
                os.unlink(name, dir_fd=handle)
            else:
                left = True
        for name in folders:
            path = os.path.normpath(os.path.join(inner, name))
            if path not in parents or not _is_removed(name, handle):
                left = True
    failpoints.point("publish.retired")
    if left:
        set_aside(folder, target, "an export that went held files that are not its own; they were set aside")
    else:
        os.rmdir(folder)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _is_removed(name: str, handle: int) -> bool:
    try:
        os.rmdir(name, dir_fd=handle)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # it holds something, or is a link
            return False
        raise
    return True


def remove_any(path: Path) -> None:
    """Remove a folder, a file or a link of ours, whichever is there."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def make_way(target: Spot, looked: Looked) -> None:
    """Rename what is not ours at the place `target`, so that its name is free and its content stays.

    Raises Permanent where it holds exports of others, Retryable where it is not what was `looked` at any more, OSError.
    """
    if not target.at.is_symlink() and holds_exports(target.at, itself=False):
        raise Permanent(
            FaultCode.TARGET_TAKEN, "publish the export", "the folder contains exports of another run, which would be moved with it",
            "move that folder away and run `ckptd queue retry` on the job, or `ckptd export` on its checkpoint, which uses another folder",
            path=target.path,
        )  # fmt: skip
    if os.lstat(target.at).st_ino != looked.inode:
        raise Retryable(
            FaultCode.TARGET_TAKEN, "publish the export", "something else was put into its place while it was being published",
            "nothing; ckptd looks again and tries again", path=target.path,
        )  # fmt: skip
    set_aside(target.at, target, "what lay at the export's place is no export of this ckptd, or was changed; it was set aside")
    failpoints.point("publish.set-aside")


def set_aside(path: Path, target: Spot, why: str) -> Spot:
    """Give what lies at `path` a name beside the place `target` that nothing has, and say so; gives the new place. Raises OSError."""
    stem = f"{target.path.name}{SET_ASIDE}{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    for number in range(1000):
        aside = target.beside(stem if number == 0 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            rename_new(path, aside.at)
            break
    fsync_directory(aside.at.parent)
    log.warning(why, event_id=Event.PUBLISH_SET_ASIDE, path=str(target.path), now=str(aside.path))
    return aside


class SwapRecord(Frozen):
    """What a start must know of a replacement that was cut off; without `new`, of a removal. It lies beside the staged folder."""

    target: str
    top: str
    new: int = 0
    """Inode of the folder that comes; 0 while it is copied."""
    old: int = 0
    """Inode of what goes; 0 where there was nothing."""
    known: dict[str, Mark] = Field(default_factory=dict)
    """What of that is ours."""
    copy_name: str = ""
    """Hidden name of a copy beside the target; "": the staged folder itself comes."""
    away: str = ""
    """Hidden name of what goes, where two renames are needed; "": it goes where the other one comes from."""

    def write(self, staged: Path) -> None:
        """Write the record of the folder `staged`, durable. Raises OSError."""
        write_atomic(record_of(staged), self.model_dump_json())

    @classmethod
    def read(cls, staged: Path) -> SwapRecord | None:
        """Return the record of a staged folder; None where there is none, or one of another version, which is removed. Raises OSError."""
        path = record_of(staged)
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            log.warning(
                "a record of a publication can't be read", event_id=Event.PUBLISH_REPAIRED, path=str(path), why="it is another version's"
            )
            path.unlink()
            return None


def inode_of(path: Path) -> int:
    """The inode of what lies there; 0 for nothing."""
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return 0


def record_of(staged: Path) -> Path:
    """Where the record of a staged folder lies."""
    return staged.with_name(staged.name + RECORD)
