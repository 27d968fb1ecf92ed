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

from daemon.contract.disk import failpoints
from daemon.contract.disk.files import (
    exchange,
    files_below,
    fsync_directory,
    lives,
    make_folders,
    remove_tree,
    rename_new,
    walk,
)
from daemon.contract.disk.placing import copy_access, duplicate
from daemon.contract.faults.errors import CkptdError, Retryable
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.publishing.exchange.beneath import Held, Spot, held_below
from daemon.publishing.exchange.ours import (
    GONE,
    NEW,
    OLD,
    RECORD,
    Looked,
    SwapRecord,
    inode_of,
    make_way,
    record_of,
    remove_any,
    retire,
    set_aside,
)
from daemon.system import lease
from daemon.system.logger import Logger

log = Logger("publish")

_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_REMOVED = re.compile(r"removed-([0-9]+)-[0-9a-f]+")
"""Names of the folders, in that of all staged ones, with what a process is removing."""
_SOMETHING_ELSE = "what lay at the export's place was another thing by the time that it was to be replaced; it was put back"


def swap(staged: Path, target: Spot, top: Path, looked: Looked | None) -> None:
    """Give the staged folder the name `target`, below `top`, and remove the export of ours that had it; what is not ours is set aside.

    A reader sees the old export or the new one, whole. `looked`: what is there, None for nothing or an empty folder. Where staging and
    target are on different file systems, a copy beside the target takes its place. Raises Permanent where exports of others are there,
    Retryable where something else came meanwhile, OSError.
    """
    if looked is not None and looked.known is None:
        make_way(target, looked)
        looked = None
    failpoints.point("publish.before-rename")
    lease.see()
    record = SwapRecord(
        target=str(target.path), top=str(top), new=os.lstat(staged).st_ino, old=looked.inode if looked else 0,
        known=dict(looked.known or {}) if looked else {},
    )  # fmt: skip
    try:
        _replace(staged, target, staged, record)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy, record = _bring_beside(staged, target, record)
        _replace(copy, target, staged, record)
    record_of(staged).unlink(missing_ok=True)
    remove_any(staged)


def leave(place: Spot, top: Path, looked: Looked, staging: Path) -> bool:
    """Take an export of ours, which was `looked` at, from its place and remove it: readers see it whole or not at all.

    `staging`: the folder of all staged ones, in which it is deleted. False where it is another one by now. Raises OSError.
    """
    folder = staging / f"removed-{os.getpid()}-{secrets.token_hex(6)}"
    make_folders(folder)
    gone = folder / "export"
    record = SwapRecord(target=str(place.path), top=str(top), old=looked.inode, known=dict(looked.known or {}))
    failpoints.point("retention.before-rename")
    record.write(gone)
    try:
        os.rename(place.at, gone)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        hidden = place.hidden(f".{secrets.token_hex(4)}{GONE}")
        record.model_copy(update={"away": hidden.at.name}).write(gone)
        os.rename(place.at, hidden.at)
        gone = hidden.at
    failpoints.point("retention.renamed")
    fsync_directory(place.at.parent)
    failpoints.point("retention.durable")
    mine = inode_of(gone) == looked.inode
    if mine:
        retire(gone, record.known, place)
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


def _replace(folder: Path, target: Spot, staged: Path, record: SwapRecord) -> None:
    try:
        os.rename(folder, target.at)
        old = None
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        if not record.old:
            raise _something_else(target) from None
        old = _exchange(folder, target, staged, record)
    failpoints.point("publish.renamed")
    for parent in {target.at.parent, folder.parent}:
        fsync_directory(parent)
    failpoints.point("publish.parent-durable")
    if old is not None:  # not before the exchange is durable, or a power cut could take both
        retire(old, record.known, target)
        failpoints.point("publish.old-removed")


def _exchange(folder: Path, target: Spot, staged: Path, record: SwapRecord) -> Path:
    """Swap the two; returns the path of the old one."""
    record.write(staged)
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
        return _rename_twice(folder, target, staged, record)
    if inode_of(folder) != record.old:
        _put_back(folder, target, record)
        record_of(staged).unlink()
        raise _something_else(target)
    return folder


def _rename_twice(folder: Path, target: Spot, staged: Path, record: SwapRecord) -> Path:
    """As `_exchange`, without the system's help."""
    old = target.hidden(f".{secrets.token_hex(4)}{OLD}")
    record.model_copy(update={"away": old.at.name}).write(staged)
    os.rename(target.at, old.at)
    failpoints.point("publish.moved-away")
    try:
        if inode_of(old.at) != record.old:
            raise FileExistsError
        os.rename(folder, target.at)
    except OSError as error:
        _return(old, target)
        if isinstance(error, FileExistsError) or error.errno in _OCCUPIED:
            raise _something_else(target) from None
        raise
    return old.at


def _put_back(folder: Path, target: Spot, record: SwapRecord) -> None:
    """Give what was taken from the target by mistake its place again; what came there meanwhile is set aside."""
    exchange(folder, target.at)
    if inode_of(folder) != record.new:
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


def start_afresh(staged: Path) -> None:
    """Complete a swap that a crash cut off, and remove the folder: after a crash it may be what the exchange brought back."""
    complete_swap(staged)
    remove_any(staged)


def complete_swap(staged: Path) -> None:
    """Complete or undo a swap that a crash interrupted; does nothing if there is no record of one. Raises OSError."""
    record = SwapRecord.read(staged)
    if record is None:
        return
    target, top = Path(record.target), Path(record.top)
    try:
        with held_below(top, target.parent) as folder:
            _complete(folder, folder.spot(target.name), staged, record)
    except (FileNotFoundError, CkptdError) as error:
        log.warning(
            "a publication that was cut off can't be completed: its folder is another one now",
            event_id=Event.PUBLISH_REPAIRED,
            path=str(target),
            why=str(error),
        )
        if not record.copy_name and inode_of(staged) not in (0, record.new):
            retire(staged, record.known, Spot(top / target.name, top / target.name))
    record_of(staged).unlink(missing_ok=True)


def _complete(around: Held, target: Spot, staged: Path, record: SwapRecord) -> None:
    coming = around.at / record.copy_name if record.copy_name else staged
    if record.away and inode_of(around.at / record.away):
        _complete_renames(Spot(around.path / record.away, around.at / record.away), target, record)
    there = inode_of(coming)
    if there and there not in (record.new, record.old) and record.new:
        if inode_of(target.at) == record.new:
            _put_back(coming, target, record)
        else:
            set_aside(coming, target, _SOMETHING_ELSE)
    elif there and there == record.old:
        retire(coming, record.known, target)
    if record.copy_name:
        remove_any(coming)
    fsync_directory(target.at.parent)
    failpoints.point("publish.swap-completed")


def _complete_renames(old: Spot, target: Spot, record: SwapRecord) -> None:
    if inode_of(old.at) == record.old and record.new in (0, inode_of(target.at)):
        retire(old.at, record.known, target)
        return
    _return(old, target)
    log.warning("a publication that was cut off between two renames was undone", event_id=Event.PUBLISH_REPAIRED, path=str(target.path))


def complete_swaps(staging: Path) -> None:
    """Complete every interrupted swap of a staging folder (one folder a job). Must be called before orphaned staging is removed."""
    for record in staging.glob(f"*/*{RECORD}") if staging.is_dir() else ():
        complete_swap(record.with_name(record.name.removesuffix(RECORD)))


def _bring_beside(folder: Path, target: Spot, record: SwapRecord) -> tuple[Path, SwapRecord]:
    """Copy a staged folder to a hidden name beside a target on another file system, durable; gives the copy."""
    copy = target.hidden(f".{secrets.token_hex(4)}{NEW}").at
    record = record.model_copy(update={"copy_name": copy.name, "new": 0})
    record.write(folder)
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
    return copy, record.model_copy(update={"new": inode_of(copy)})
