"""Replaces a folder by another: by one exchange of names if the file system supports it, else by two renames with a record.

Called by `daemon.publishing.publication`; `complete_swaps` at a start after a crash, before orphaned staging is removed. What is replaced
must be what was looked at (`daemon.publishing.exchange.ours.look`): it is compared when it has left its place, and put back if it is
something else, since another ckptd or a person may have been there meanwhile. Before anything leaves its place, a record lies beside the
staged folder (`FOLDER.swap`), so that a start finds it without searching the output and knows what of it is ours; until the swap is
completed, readers may find nothing at the target.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from pathlib import Path

import structlog

from daemon.contract import failpoints
from daemon.contract.errors import CkptdError, Retryable
from daemon.contract.events import Event
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import (
    exchange,
    files_below,
    fsync_directory,
    lives,
    make_folders,
    remove_tree,
    rename_new,
    walk,
)
from daemon.contract.placing import copy_access, duplicate
from daemon.publishing.exchange.beneath import Held, Spot, held_below
from daemon.publishing.exchange.ours import Looked, retire, set_aside
from daemon.publishing.exchange.swap_record import GONE, NEW, OLD, RECORD, SwapRecord, inode_of, read_record, record_of, write_record

log = structlog.get_logger("publish")

_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_REMOVED = re.compile(r"removed-([0-9]+)-[0-9a-f]+")
"""Names of the folders, in that of all staged ones, with what a process is removing."""
_SOMETHING_ELSE = "what lay at the export's place was another thing by the time that it was to be replaced; it was put back"


def remove_any(path: Path) -> None:
    """Remove a folder, a file or a link of ours, whichever is there."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def swap(staged: Path, target: Spot, top: Path, looked: Looked | None = None) -> None:
    """Give the staged folder the name `target`, below `top`, and remove what had it. Raises OSError, Retryable where something else came.

    `looked`: what of ours is there, None for nothing or an empty folder. Where staging and target are on different file systems, a copy
    beside the target takes its place.
    """
    told = SwapRecord(
        target=str(target.path), top=str(top), new=os.lstat(staged).st_ino, old=looked.inode if looked else 0,
        known=dict(looked.known or {}) if looked else {},
    )  # fmt: skip
    try:
        _replace(staged, target, staged, told)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy, told = _bring_beside(staged, target, told)
        _replace(copy, target, staged, told)
    record_of(staged).unlink(missing_ok=True)
    remove_any(staged)


def leave(place: Spot, top: Path, looked: Looked, staging: Path) -> bool:
    """Take an export of ours, which was `looked` at, from its place and remove it: readers see it whole or not at all.

    `staging`: the folder of all staged ones, in which it is deleted. False where it is another one by now. Raises OSError.
    """
    folder = staging / f"removed-{os.getpid()}-{secrets.token_hex(6)}"
    make_folders(folder)
    gone = folder / "export"
    told = SwapRecord(target=str(place.path), top=str(top), old=looked.inode, known=dict(looked.known or {}))
    failpoints.point("retention.before-rename")
    write_record(gone, told)
    try:
        os.rename(place.at, gone)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        hidden = place.hidden(f".{secrets.token_hex(4)}{GONE}")
        write_record(gone, told.model_copy(update={"away": hidden.at.name}))
        os.rename(place.at, hidden.at)
        gone = hidden.at
    failpoints.point("retention.renamed")
    fsync_directory(place.at.parent)
    failpoints.point("retention.durable")
    mine = inode_of(gone) == looked.inode
    if mine:
        retire(gone, told.known, place)
    else:
        _return(Spot(place.path.with_name(gone.name), gone), place)
    failpoints.point("retention.removed")
    remove_tree(folder)
    return mine


def complete_removals(staging: Path) -> None:
    """End removals that processes which live no more left in the folder of all staged ones. Raises OSError."""
    for folder in staging.iterdir() if staging.is_dir() else ():
        match = _REMOVED.fullmatch(folder.name)
        if match is not None and not lives(int(match[1])):
            complete_swap(folder / "export")
            remove_tree(folder)


def _replace(folder: Path, target: Spot, staged: Path, told: SwapRecord) -> None:
    try:
        os.rename(folder, target.at)
        old = None
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        if not told.old:
            raise _something_else(target) from None
        old = _exchange(folder, target, staged, told)
    failpoints.point("publish.renamed")
    for parent in {target.at.parent, folder.parent}:
        fsync_directory(parent)
    failpoints.point("publish.parent-durable")
    if old is not None:  # not before the exchange is durable, or a power cut could take both
        retire(old, told.known, target)
        failpoints.point("publish.old-removed")


def _exchange(folder: Path, target: Spot, staged: Path, told: SwapRecord) -> Path:
    """Swap the two; returns the path of the old one."""
    write_record(staged, told)
    failpoints.point("publish.swap-recorded")
    try:
        exchange(folder, target.at)
        failpoints.point("publish.exchanged")
    except OSError as error:
        if error.errno not in NO_EXCHANGE:
            raise
        log.warning(
            "this file system can't exchange two names; readers find nothing between two renames",
            event_id=Event.PUBLISH_NOT_ATOMIC,
            path=str(target.path),
            error=error.strerror,
        )
        return _rename_twice(folder, target, staged, told)
    if inode_of(folder) != told.old:
        _put_back(folder, target, told)
        record_of(staged).unlink()
        raise _something_else(target)
    return folder


def _rename_twice(folder: Path, target: Spot, staged: Path, told: SwapRecord) -> Path:
    """As `_exchange`, without the system's help."""
    old = target.hidden(f".{secrets.token_hex(4)}{OLD}")
    write_record(staged, told.model_copy(update={"away": old.at.name}))
    os.rename(target.at, old.at)
    failpoints.point("publish.moved-away")
    try:
        if inode_of(old.at) != told.old:
            raise FileExistsError
        os.rename(folder, target.at)
    except OSError as error:
        _return(old, target)
        if isinstance(error, FileExistsError) or error.errno in _OCCUPIED:
            raise _something_else(target) from None
        raise
    return old.at


def _put_back(folder: Path, target: Spot, told: SwapRecord) -> None:
    """Give what was taken from the target by mistake its place again; what came there meanwhile is set aside."""
    exchange(folder, target.at)
    if inode_of(folder) != told.new:
        set_aside(folder, target, _SOMETHING_ELSE)
    for parent in {target.at.parent, folder.parent}:
        fsync_directory(parent)


def _return(old: Spot, target: Spot) -> None:
    """Give what was moved away its place again, or, where something came there meanwhile, a name beside it."""
    try:
        rename_new(old.at, target.at)
    except FileExistsError:
        set_aside(old.at, target, _SOMETHING_ELSE)
    fsync_directory(target.at.parent)


def _something_else(target: Spot) -> Retryable:
    return Retryable(
        FaultCode.TARGET_TAKEN, "publish the export", "something else was put into its place while it was being published",
        "nothing; ckptd looks again and tries again", path=target.path,
    )  # fmt: skip


def complete_swap(staged: Path) -> None:
    """Complete or undo a swap that a crash interrupted; does nothing if there is no record of one. Raises OSError."""
    told = read_record(staged)
    if told is None:
        return
    target, top = Path(told.target), Path(told.top)
    try:
        with held_below(top, target.parent) as folder:
            _complete(folder, folder.spot(target.name), staged, told)
    except (FileNotFoundError, CkptdError) as error:
        log.warning(
            "a publication that was cut off can't be completed: its folder is another one now",
            event_id=Event.PUBLISH_REPAIRED,
            path=str(target),
            why=str(error),
        )
        if not told.copy_name and inode_of(staged) not in (0, told.new):
            retire(staged, told.known, Spot(top / target.name, top / target.name))
    record_of(staged).unlink(missing_ok=True)


def _complete(around: Held, target: Spot, staged: Path, told: SwapRecord) -> None:
    coming = around.at / told.copy_name if told.copy_name else staged
    if told.away and inode_of(around.at / told.away):
        _complete_renames(Spot(around.path / told.away, around.at / told.away), target, told)
    there = inode_of(coming)
    if there and there not in (told.new, told.old) and told.new:
        if inode_of(target.at) == told.new:
            _put_back(coming, target, told)
        else:
            set_aside(coming, target, _SOMETHING_ELSE)
    elif there and there == told.old:
        retire(coming, told.known, target)
    if told.copy_name:
        remove_any(coming)
    fsync_directory(target.at.parent)
    failpoints.point("publish.swap-completed")


def _complete_renames(old: Spot, target: Spot, told: SwapRecord) -> None:
    if inode_of(old.at) == told.old and told.new in (0, inode_of(target.at)):
        retire(old.at, told.known, target)
        return
    _return(old, target)
    log.warning("a publication that was cut off between two renames was undone", event_id=Event.PUBLISH_REPAIRED, path=str(target.path))


def complete_swaps(staging: Path) -> None:
    """Complete every interrupted swap of a staging folder (one folder a job). Must be called before orphaned staging is removed."""
    for record in staging.glob(f"*/*{RECORD}") if staging.is_dir() else ():
        complete_swap(record.with_name(record.name.removesuffix(RECORD)))


def _bring_beside(folder: Path, target: Spot, told: SwapRecord) -> tuple[Path, SwapRecord]:
    """Copy a staged folder to a hidden name beside a target on another file system, durable; gives the copy."""
    copy = target.hidden(f".{secrets.token_hex(4)}{NEW}").at
    told = told.model_copy(update={"copy_name": copy.name, "new": 0})
    write_record(folder, told)
    copy.mkdir()
    log.warning(
        "staging and target are on different file systems; the export is copied", event_id=Event.PUBLISH_COPIED, path=str(target.path)
    )
    try:
        for path in files_below(folder):
            duplicate(path, copy / path.relative_to(folder))
            copy_access(path, copy / path.relative_to(folder))
        for directory, _, _ in walk(copy, topdown=False):
            copy_access(folder / Path(directory).relative_to(copy), Path(directory))
            fsync_directory(Path(directory))
    except OSError:
        with contextlib.suppress(OSError):
            remove_tree(copy)
        raise
    failpoints.point("publish.copied")
    return copy, told.model_copy(update={"new": inode_of(copy)})
