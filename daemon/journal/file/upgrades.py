"""Brings a journal to the schema of this ckptd, and refuses one whose schema it does not know.

Called by `daemon.journal.file.database`: on the file itself where it is opened to work with, on a copy in memory where it is only read.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from daemon.contract.disk import failpoints
from daemon.contract.faults.errors import Permanent, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.file.sqlite_errors import explained
from daemon.journal.sql import schema_version, statements


def version_of(connection: sqlite3.Connection) -> int:
    """Return the number of the journal's schema; 0 for a file without any."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_unknown(connection: sqlite3.Connection, operation: str, path: Path) -> None:
    """Raise UsageError for a journal of a schema that this ckptd neither has nor can upgrade."""
    if not 0 <= (version := version_of(connection)) <= schema_version():
        raise UsageError(
            FaultCode.JOURNAL_VERSION, operation,
            f"another version of ckptd wrote it (schema {version}; this ckptd knows schema {schema_version()})",
            "install the version that wrote it, or name another state.directory", path=path,
        )  # fmt: skip


def upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Make the schema of a new file, or of an earlier schema this ckptd's, each step in one transaction with its number.

    Another process may do the same at the same time. Raises Permanent where a step fails, Retryable where the file can't be written now.
    """
    while (version := version_of(connection)) < schema_version():
        number = version + 1
        connection.execute("BEGIN IMMEDIATE")
        try:
            if version_of(connection) == version:
                for statement in statements(number):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
            failpoints.point(f"migrate.{number}.before")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise explained(error, "open the journal", path) or Permanent(
                FaultCode.JOURNAL_UPGRADE, "open the journal", f"it is intact, but it could not be upgraded to schema {number}: {error}",
                "install the version that wrote it again, and report this sentence", path=path,
            ) from error  # fmt: skip
        failpoints.point(f"migrate.{number}.after")


def upgraded_copy(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Return a copy in memory, of this ckptd's schema: an older journal can be looked at while the daemon that wrote it still runs.

    Raises as `upgrade` does; the caller closes the copy.
    """
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.backup(copy)
        upgrade(copy, path)
    except BaseException:
        copy.close()
        raise
    return copy
