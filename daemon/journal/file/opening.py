"""Opening the journal's file: to work with it, checked, and read-only beside whoever works with it.

Called by `daemon.journal.file.database`, and for what only reads by `ckptd status`, fsck and others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from daemon.journal.file import integrity
from daemon.journal.file.sqlite_errors import damaged, explained, explaining
from daemon.journal.file.upgrades import refuse_unknown, upgraded_copy, version_of
from daemon.journal.sql import schema_version
from daemon.system.elsewhere import refuse_elsewhere

BUSY_SECONDS = 20.0
CHECKED_AT_OPEN = integrity.SMALL
"""Bytes up to which a file is checked entirely when it is opened, which takes a few tenths of a second at most. Of a larger
one only its shape and its open jobs are; the rest is checked while the daemon works."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection to work with."""
    # Used by one thread, but by another one than made it where that one died.
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def check_at_open(connection: sqlite3.Connection, path: Path) -> None:
    """Raises Permanent where the file is not sound, as far as that is known at once (`CHECKED_AT_OPEN`)."""
    try:
        problems = integrity.misshapen(connection)
        if not problems:
            refuse_unknown(connection, "open the journal", path)
            pages, page = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size"))
        size = path.stat().st_size
        if not problems and pages * page > size:
            problems = [f"{pages * page - size} bytes of its end are missing"]
        if not problems and size <= CHECKED_AT_OPEN:
            problems = integrity.unsound(connection, full=True)
        if not problems and version_of(connection):
            problems = integrity.unbelievable(connection)
    except sqlite3.Error as error:
        raise explained(error, "open the journal", path) or damaged("open the journal", str(error), path) from error
    if problems:
        raise damaged("open the journal", "; ".join(problems[:3]), path)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection of its own to the journal in this ckptd's schema (`ckptd status`, `fsck`).

    An earlier schema is read from a copy. Raises FileNotFoundError where there is no journal, UsageError for an unknown schema, Retryable
    and Permanent as `Database.write` does.
    """
    with reading_as_it_is(path) as connection:
        refuse_unknown(connection, "read the journal", path)
        if version_of(connection) == schema_version():
            yield connection
            return
        with closing(upgraded_copy(connection, path)) as copy:
            copy.row_factory = sqlite3.Row
            copy.execute("PRAGMA query_only = ON")
            yield copy


@contextmanager
def reading_as_it_is(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection of its own to a journal of any schema (checks, backups). Raises as `reading` does."""
    if not path.exists():
        raise FileNotFoundError(path)
    refuse_elsewhere(path.parent, "read the journal")
    with explaining("read the journal", path):
        # Not mode=ro: such a connection can't undo a commit that a crash cut off, and so can't read the file at all.
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA query_only = ON")
            yield connection
        finally:
            connection.close()
