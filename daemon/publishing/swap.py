"""Replaces a folder by another: by one exchange of names if the file system supports it, else by two renames with a record.

Called by `daemon.publishing.publication`; `complete_swaps` at a start after a crash, before orphaned staging is removed. The replaced
folder is not read. Where a crash could leave something beside the target, a record lies beside the staged folder (`FOLDER.swap`), so that a
start finds it without searching the output; until the swap is completed, readers may find nothing at the target.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import structlog

from daemon.contract import failpoints
from daemon.contract.errors import CkptdError
from daemon.contract.events import Event
from daemon.contract.files import exchange, files_below, fsync_directory, remove_tree, walk, write_atomic
from daemon.contract.placing import copy_access, duplicate
from daemon.publishing.beneath import Spot, held_below

log = structlog.get_logger("publish")

_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
NEW, OLD = ".ckptd-new", ".ckptd-old"
"""Endings of the hidden names beside a target: what comes, and what goes."""
RECORD = ".swap"


def remove_any(path: Path) -> None:
    """Remove a folder, a file or a link, whichever is there."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def swap(staged: Path, target: Spot, top: Path) -> None:
    """Give the staged folder the name `target`, below `top`, and remove what had it. Raises OSError.

    Where staging and target are on different file systems, a copy beside the target takes its place.
    """
    try:
        _replace(staged, target, staged, top)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _replace(_bring_beside(staged, target, top), target, staged, top)
    _record(staged).unlink(missing_ok=True)
    remove_any(staged)


def _replace(folder: Path, target: Spot, staged: Path, top: Path) -> None:
    try:
        os.rename(folder, target.at)
        old = None
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        old = _exchange(folder, target, staged, top)
    failpoints.point("publish.renamed")
    for parent in {target.at.parent, folder.parent}:
        fsync_directory(parent)
    failpoints.point("publish.parent-durable")
    if old is not None:  # not before the exchange is durable, or a power cut could take both
        remove_any(old)
        failpoints.point("publish.old-removed")


def _exchange(folder: Path, target: Spot, staged: Path, top: Path) -> Path:
    """Swap the two; returns the path of the old one."""
    try:
        exchange(folder, target.at)
        failpoints.point("publish.exchanged")
        return folder
    except OSError as error:
        if error.errno not in NO_EXCHANGE:
            raise
        log.warning(
            "this file system can't exchange two names; readers find nothing between two renames",
            event_id=Event.PUBLISH_NOT_ATOMIC,
            path=str(target.path),
            error=error.strerror,
        )
    old = target.hidden(OLD).at
    remove_any(old)
    _write_record(staged, target, top)
    failpoints.point("publish.swap-recorded")
    os.rename(target.at, old)
    failpoints.point("publish.moved-away")
    os.rename(folder, target.at)
    return old


def _record(staged: Path) -> Path:
    return staged.with_name(staged.name + RECORD)


def _write_record(staged: Path, target: Spot, top: Path) -> None:
    write_atomic(_record(staged), json.dumps({"target": str(target.path), "top": str(top)}))


def complete_swap(staged: Path) -> None:
    """Complete or undo a swap that a crash interrupted between its renames; does nothing if there is no record of one."""
    record = _record(staged)
    try:
        said = json.loads(record.read_bytes())
    except FileNotFoundError:
        return
    target = Path(said["target"])
    try:
        with held_below(Path(said.get("top", target.parent)), target.parent) as folder:
            _complete(folder.spot(target.name))
    except (FileNotFoundError, CkptdError) as error:
        log.warning(
            "a publication that was cut off can't be completed: its folder is another one now",
            event_id=Event.PUBLISH_REPAIRED,
            path=str(target),
            why=str(error),
        )
    record.unlink()


def _complete(target: Spot) -> None:
    old = target.hidden(OLD).at
    remove_any(target.hidden(NEW).at)
    if os.path.lexists(old):
        if os.path.lexists(target.at):
            remove_any(old)
        else:
            os.rename(old, target.at)
            log.warning(
                "a publication that was cut off between two renames was undone", event_id=Event.PUBLISH_REPAIRED, path=str(target.path)
            )
        fsync_directory(target.at.parent)
    failpoints.point("publish.swap-completed")


def complete_swaps(staging: Path) -> None:
    """Complete every interrupted swap of a staging folder (one folder a job). Must be called before orphaned staging is removed."""
    for record in staging.glob(f"*/*{RECORD}") if staging.is_dir() else ():
        complete_swap(record.with_name(record.name.removesuffix(RECORD)))


def _bring_beside(folder: Path, target: Spot, top: Path) -> Path:
    """Copy a staged folder to a hidden name beside a target on another file system, durable; gives the copy."""
    copy = target.hidden(NEW).at
    remove_any(copy)
    _write_record(folder, target, top)
    log.warning(
        "staging and target are on different file systems; the export is copied", event_id=Event.PUBLISH_COPIED, path=str(target.path)
    )
    copy.mkdir()
    for path in files_below(folder):
        duplicate(path, copy / path.relative_to(folder))
        copy_access(path, copy / path.relative_to(folder))
    for directory, _, _ in walk(copy, topdown=False):
        copy_access(folder / Path(directory).relative_to(copy), Path(directory))
        fsync_directory(Path(directory))
    failpoints.point("publish.copied")
    return copy
