"""Classifies SQLite's errors: try again later, repair the file, or a mistake in our code. Called by `daemon.journal.file.database` and
`daemon.operating.integrity.maintenance`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode

_CAUSES = {
    sqlite3.SQLITE_BUSY: ("another process has locked it for too long", "end the other process that uses it"),
    sqlite3.SQLITE_LOCKED: ("another process has locked it for too long", "end the other process that uses it"),
    sqlite3.SQLITE_PROTOCOL: ("file locks don't work there", "keep the state directory on a local disk"),
    sqlite3.SQLITE_NOMEM: ("there was not enough memory", "free memory; it is tried again"),
    sqlite3.SQLITE_INTERRUPT: ("it was interrupted", "try again"),
    sqlite3.SQLITE_IOERR: ("a read or write failed on the disk", "check the system's log and that disk; it is tried again"),
    sqlite3.SQLITE_FULL: ("the disk is full", "free space on that file system; it is tried again"),
    sqlite3.SQLITE_READONLY: ("it is read-only", "give this user write access, or mount that file system for writing"),
    sqlite3.SQLITE_PERM: ("this user has no access to it", "give this user access"),
    sqlite3.SQLITE_AUTH: ("this user has no access to it", "give this user access"),
    sqlite3.SQLITE_CANTOPEN: ("it can't be opened", "check that its folder exists and that this user can read and write it"),
}  # fmt: skip
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
OF_ALL = frozenset({FaultCode.JOURNAL_UNAVAILABLE, FaultCode.JOURNAL_DAMAGED, FaultCode.JOURNAL_GONE})
"""Errors of no job and no checkpoint in particular: nothing can be done for any while they last."""
REPAIR = "start ckptd again; it sets the file aside and rebuilds the journal from its backup and from what is on disk"


def damaged(operation: str, cause: str, path: Path) -> Permanent:
    """The error of a journal that is not a valid database."""
    return Permanent(FaultCode.JOURNAL_DAMAGED, operation, f"it is not a valid database: {cause}", REPAIR, path=path)


def gone(operation: str, cause: str, path: Path) -> Permanent:
    """The error of a journal that is no longer at its place while it is open."""
    return Permanent(FaultCode.JOURNAL_GONE, operation, cause, "stop ckptd, put the right file there, and start it again", path=path)


def explained(error: sqlite3.Error, operation: str, path: Path) -> CkptdError | None:
    """The error as one of ours; None if the statement itself is wrong and not the file or the system."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Python's own, when a text in the file is no UTF-8; its other ones are mistakes of the caller.
        return damaged(operation, str(error), path) if "decode" in str(error) else None
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        return gone(operation, "its file was moved or deleted while it was open", path)
    if code & 0xFF in _DAMAGED:
        return damaged(operation, str(error), path)
    if code & 0xFF in _CAUSES:
        cause, remedy = _CAUSES[code & 0xFF]
        return Retryable(FaultCode.JOURNAL_UNAVAILABLE, operation, f"{cause} ({error.sqlite_errorname}: {error})", remedy, path=path)
    return None


@contextmanager
def explaining(operation: str, path: Path) -> Iterator[None]:
    """Raise SQLite's errors as ours, where ours say more."""
    try:
        yield
    except sqlite3.Error as error:
        ours = explained(error, operation, path)
        if ours is None:
            raise
        raise ours from error
    except UnicodeDecodeError as error:
        # Python can't read the message when SQLite quotes a damaged schema in it.
        raise damaged(operation, error.object.decode(errors="replace"), path) from error
