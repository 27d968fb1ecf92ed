"""Who publishes a run in a folder of the output: one ckptd at a time, also where several share the output over a network file system.

Called by `daemon.publishing.publication`. `daemon.config.places.output_owners` reads the records.

The claim. The first ckptd that publishes a run in a folder leaves a record there, `.ckptd-owner-DIGEST` (of the run's name). It appears
whole or not at all, and once: it is written under another name and then hard-linked (link(2) fails where the name exists, on every
version of NFS too; where the file system has no hard links, it is made with O_EXCL). It stays when its ckptd ends: a claim that went with
a process would let another one in during every restart. The record of a ckptd that is gone for good is taken over where this can be known,
on the same machine with another journal in the same state directory; else a person removes that one file.

The lock. Who publishes holds a lock on the record (fcntl's byte-range lock, of the open file: NFS has it, and flock(2) of a server's own
processes would not meet that of its clients), so that a daemon and a `ckptd export` of the same state don't publish the same run at once.
Where a file system has no locks, the exchange that compares (`daemon.publishing.exchange.swap`) remains.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import secrets
import shlex
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from daemon.config.places.output_owners import RECORD, Owner, may_take_over, origin_of, parsed
from daemon.config.places.paths import Paths
from daemon.contract.disk import failpoints
from daemon.contract.disk.files import dead_temporaries, fsync_directory, make_folders, write_atomic
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import CheckpointRef
from daemon.publishing.exchange.beneath import Spot
from daemon.system import lease
from daemon.system.logger import Logger

log = Logger("publish")

PATIENCE_SECONDS = 5.0
"""How long another publication by the same state is waited for, in the runner's one thread; then the job waits for its turn."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
_NO_LOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_TAKEN = (errno.EAGAIN, errno.EACCES)
OPERATION = "publish the export"


def refusal(owner: Owner, record: Path) -> Permanent:
    """The one sentence that says who has the folder, and what to do."""
    return Permanent(
        FaultCode.TARGET_TAKEN, OPERATION,
        f"another ckptd publishes the run {owner.run} there (state {owner.state} on {owner.host}, since {owner.since[:10]})",
        "give one of the two another output.directory or output.naming, or, if that ckptd is gone for good,"
        f" `rm {shlex.quote(str(record))}`; then `ckptd queue retry` the job", path=record.parent,
    )  # fmt: skip


@contextlib.contextmanager
def owned(record: Spot, seen: CheckpointRef, paths: Paths, scratch: Path) -> Iterator[None]:
    """Be the one who publishes the run of a checkpoint in the folder of its `record`, and keep other publications of it waiting.

    `record`: named by `output_owners.record_of`. `scratch`: a folder of ours on the same file system, if possible, where the record is
    prepared. Raises Permanent where another ckptd has the run, Retryable where another publication of this state has it now, OSError.
    """
    mine = Owner(
        instance=paths.owner, host=socket.gethostname(), state=str(paths.outer), root=seen.root, run=seen.run,
        since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    ).model_copy(update=origin_of(paths.outer))  # fmt: skip
    make_folders(scratch)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        lease.see()
        handle = _open(record, mine, scratch)
        try:
            if _is_locked(handle, deadline, record.path):
                if _is_still(handle, record.at) and _is_settled(handle, record, mine, seen):
                    yield
                    return
            elif _checked(handle, record.path, mine.instance):
                yield  # no locks here: the claim alone keeps others out
                return
        finally:
            os.close(handle)


def _open(record: Spot, mine: Owner, scratch: Path) -> int:
    """The record, open for a lock; made where there is none."""
    while True:
        try:
            handle = os.open(record.at, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            _claim(record, mine, scratch)
        except PermissionError:
            raise _unreadable(record.path, f"belongs to another ckptd, of the user {_user(record.at)}") from None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise _unreadable(record.path, "is no plain file, and was not made by ckptd") from None
        else:
            return handle


def _claim(record: Spot, mine: Owner, scratch: Path) -> None:
    """Leave the record, unless somebody else does so first."""
    data = mine.model_dump_json(indent=1) + "\n"
    prepared = scratch / f"{record.path.name}.{secrets.token_hex(4)}"
    write_atomic(prepared, data, mode=0o600)
    failpoints.point("owner.prepared")
    try:
        os.link(prepared, record.at)
    except FileExistsError:
        return  # or the answer to our own request was lost: whose it is, is read next
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with contextlib.suppress(FileExistsError):
            handle = os.open(record.at, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as stream:
                stream.write(data.encode())
                stream.flush()
                os.fsync(handle)
    finally:
        prepared.unlink(missing_ok=True)
    fsync_directory(record.at.parent)
    failpoints.point("owner.claimed")


def _is_locked(handle: int, deadline: float, record: Path) -> bool:
    """Lock the record; False where the file system has no locks. Raises Retryable where another publication has it for long."""
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    while True:
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, whole)
            return True
        except OSError as error:
            if error.errno in _NO_LOCK:
                return False
            if error.errno not in _TAKEN:
                raise
        if time.monotonic() >= deadline:
            raise Retryable(
                FaultCode.TARGET_TAKEN, OPERATION, "another process is publishing an export of this run there now",
                "nothing; it is tried again", path=record.parent,
            )  # fmt: skip
        time.sleep(0.02)


def _is_still(handle: int, record: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(record))
    except FileNotFoundError:
        return False


def _is_settled(handle: int, record: Spot, mine: Owner, seen: CheckpointRef) -> bool:
    """Whether the locked record is ours. One of a ckptd that is gone is replaced by ours, and False: look again. Raises Permanent."""
    owner = _content(handle, record.path)
    if owner.instance == mine.instance:
        return True
    if not may_take_over(owner, seen):
        raise refusal(owner, record.path)
    for left in dead_temporaries(record.at.parent):
        if left.name.startswith(f".{RECORD}"):
            left.unlink(missing_ok=True)
    write_atomic(record.at, mine.model_dump_json(indent=1) + "\n", mode=0o600)
    log.warning(
        "the run's folder belonged to a ckptd whose state is gone; it is this one's now", event_id=Event.OWNER_REPLACED,
        path=str(record.path.parent), run=seen.run, former=owner.instance, state=owner.state,
    )  # fmt: skip
    return False


def _checked(handle: int, record: Path, instance: str) -> bool:
    owner = _content(handle, record)
    if owner.instance != instance:
        raise refusal(owner, record)
    return True


def _content(handle: int, record: Path) -> Owner:
    try:
        return parsed(handle)
    except ValueError:
        raise _unreadable(record, "is no record of a ckptd that can be read") from None


def _unreadable(record: Path, what: str) -> Permanent:
    return Permanent(
        FaultCode.TARGET_TAKEN, OPERATION, f"{record.name}, which says whose the run's folder is, {what}",
        f"move that file away if no other ckptd publishes there (`mv {shlex.quote(str(record))} …`); then `ckptd queue retry` the job",
        path=record,
    )  # fmt: skip


def _user(path: Path) -> str:
    try:
        number = os.lstat(path).st_uid
    except OSError:
        return "unknown"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
