"""What of a folder at an export's place is ours, and so may be removed: what we remember to have published, or what a true manifest says.

Called by `daemon.publishing.publication`, `.swap` and `.retention`. A name, or a file that looks like a manifest, proves nothing: others
may write in an output. Ours is a folder
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

import structlog
from pydantic import ValidationError

from daemon.contract import failpoints
from daemon.contract.events import Event
from daemon.contract.export_layout import MANIFEST, read_manifest
from daemon.contract.files import fsync_directory, make_folders, rename_new, write_atomic
from daemon.contract.values import Frozen, digest_of
from daemon.publishing.exchange.beneath import Spot
from daemon.publishing.verification import verify

log = structlog.get_logger("publish")

SET_ASIDE = ".before-ckptd-"
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


def marks_below(folder: Path) -> dict[str, Mark]:
    """The mark of every regular file below a folder; links are not followed. Raises OSError."""
    found = {}

    def fail(error: OSError) -> None:
        raise error

    for directory, _, names, handle in os.fwalk(folder, onerror=fail):
        for name in names:
            status = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                found[os.path.relpath(os.path.join(directory, name), folder)] = mark_of(status)
    return found


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
        found = _Remembered.model_validate_json(_record(records, target).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return found.files if found.target == str(target) else None


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
