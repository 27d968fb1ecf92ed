"""Copies of the journal: taken while work goes on, checked before they count, the newest few kept.

Called by `daemon.journal.file.database` and `daemon.operating.integrity.maintenance`. A backup is a journal of its own; nothing but
the name tells it apart.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from daemon.contract.disk import failpoints
from daemon.contract.disk.files import fsync_directory, fsync_file
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.file import integrity

STEP_PAGES = 1024
"""Pages (of 4 KiB) copied at a time: a writer waits for one such step, some ten milliseconds."""
STEP_PAUSE = 0.005
"""Seconds between two steps, in which a writer gets its turn."""
PATIENCE = 60.0
"""Seconds after which writers have to wait for the rest of a copy that their commits keep beginning again."""
_NAME = re.compile(r"journal-\d{8}T\d{6}\.\d{6}Z\.sqlite3")


def timestamp() -> str:
    """The time in UTC as a part of a file's name that sorts by age and is not given twice."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def write_backup(source: sqlite3.Connection, target: Path) -> None:
    """Copy what `source` is connected to; `target` appears whole and checked, or not at all.

    Raises Permanent where the source is damaged, sqlite3.Error and OSError where it or the disk fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        beside.unlink(missing_ok=True)
        with closing(sqlite3.connect(beside, isolation_level=None)) as copy:
            copy.execute("PRAGMA synchronous = OFF")  # the file is synced once, below
            _copy(source, copy)
            failpoints.point("backup.copied")
            problems = integrity.unsound(copy, full=True)
        if problems:
            raise Permanent(
                FaultCode.JOURNAL_DAMAGED, "back the journal up", f"it is not a valid database: {'; '.join(problems[:3])}",
                "start ckptd again; it sets the file aside and rebuilds the journal", path=target,
            )  # fmt: skip
        fsync_file(beside)
        failpoints.point("backup.checked")
        os.replace(beside, target)
        fsync_directory(target.parent)
        failpoints.point("backup.renamed")
    finally:
        beside.unlink(missing_ok=True)
        beside.with_name(beside.name + "-journal").unlink(missing_ok=True)


def _copy(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Step by step; a commit of another connection makes SQLite begin again, so that in the end writers have to wait.

    An exception in the library's callback would leave the target locked, so patience ends without one.
    """
    end = time.monotonic() + PATIENCE

    def pause(_status: int, _remaining: int, _total: int) -> None:
        if time.monotonic() < end:
            time.sleep(STEP_PAUSE)  # the library's own pause is for locked files alone
        elif not source.in_transaction:
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchall()  # from here on nobody else commits

    try:
        source.backup(target, pages=STEP_PAGES, progress=pause)
    finally:
        if source.in_transaction:
            source.execute("ROLLBACK")


def listed(folder: Path) -> list[Path]:
    """The backups that rotate, newest first."""
    with suppress(OSError):
        return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
    return []


def fresh_name(folder: Path) -> Path:
    """Where the next backup goes."""
    return folder / f"journal-{timestamp()}.sqlite3"


def rotate(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` backups, and what a crash left of unfinished ones; gives what went."""
    surplus = listed(folder)[keep:]
    with suppress(OSError):
        surplus += [path for path in folder.iterdir() if re.fullmatch(r"\..+\.tmp(-journal)?", path.name) and _is_old(path)]
    for path in surplus:
        path.unlink(missing_ok=True)
    return surplus


def _is_old(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > 600
    return False
