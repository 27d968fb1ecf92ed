"""The SQLite connection behind the journal: one owner thread, immediate transactions, migrations, a read-only door.

A rollback journal with synchronous=FULL: SQLite before 3.51.3 can corrupt a WAL database that has two
connections, and `ckptd status` is a second one. Every statement of the daemon runs in the owner thread.
"""

from __future__ import annotations

import importlib.resources
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from daemon import faults
from daemon.errors import Permanent, Retryable, UsageError

SCHEMA_VERSION = 2
BUSY_SECONDS = 20.0

T = TypeVar("T")


class Database:
    """A SQLite file owned by one thread. `write` and `read` may be called from any thread and wait for their turn."""

    def __init__(self, path: Path) -> None:
        """Open, check and migrate `path`. Raises Permanent for a damaged file, UsageError for one of a newer ckptd."""
        self.path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        try:
            self._connection = self._thread.submit(self._open).result()
        except BaseException:
            self._thread.shutdown()
            raise

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_SECONDS)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            problems = [row[0] for row in connection.execute("PRAGMA quick_check(3)") if row[0] != "ok"]
            if problems:
                raise sqlite3.DatabaseError("; ".join(problems))
            _migrate(connection, self.path)
        except sqlite3.OperationalError as error:
            connection.close()
            raise Retryable(
                "journal-unavailable", "open the journal", str(error),
                "end the other process that uses it, and see that this user may write it and that its disk has room", path=self.path,
            ) from error  # fmt: skip
        except sqlite3.DatabaseError as error:
            connection.close()
            raise Permanent(
                "journal-damaged", "open the journal", f"it is not a sound database: {error}",
                "move it away; a fresh one is made at the next start and checkpoints still on disk are found again", path=self.path,
            ) from error  # fmt: skip
        except BaseException:
            connection.close()
            raise
        return connection

    def write(self, name: str, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run `function` in one immediate transaction; it is durable when this returns. `name` names its fault points."""

        def run() -> T:
            faults.point(f"before.{name}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                value = function(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it already
                    self._connection.execute("ROLLBACK")
                raise
            faults.point(f"after.{name}")
            return value

        return self._thread.submit(run).result()

    def read(self, statement: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query."""
        return self._thread.submit(lambda: self._connection.execute(statement, values).fetchall()).result()

    def close(self) -> None:
        """Close the connection and end the owner thread."""
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise UsageError(
            "journal-newer", "open the journal", f"a newer ckptd wrote it (schema {version}, this one knows {SCHEMA_VERSION})",
            "install that version again, or name another state.directory", path=path,
        )  # fmt: skip
    for number in range(version + 1, SCHEMA_VERSION + 1):
        script = importlib.resources.files("daemon.sql").joinpath(f"{number:04}.sql").read_text()
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection for another process (`ckptd status`). Raises FileNotFoundError where there is no journal."""
    if not path.exists():
        raise FileNotFoundError(path)
    # Not mode=ro: such a connection can't undo a commit that a crash cut off, and so can't read the file at all.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA query_only = ON")
        yield connection
    finally:
        connection.close()
