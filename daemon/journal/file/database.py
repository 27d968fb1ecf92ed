"""The SQLite connection behind the journal: one owner thread and immediate transactions.

A rollback journal, not WAL: SQLite before 3.51.3 can corrupt a WAL database that has two connections, and
`ckptd status` is a second one. synchronous=EXTRA: with FULL a power cut right after a commit can bring back the
rollback journal whose removal was the commit. Every statement of the daemon runs in the owner thread; checks and
backups use connections of their own, so that no other statement waits for them.

Never open the file by other means in the process that works with it: closing any handle drops SQLite's locks.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from daemon.contract.disk import failpoints
from daemon.contract.disk.files import fsync_directory, fsync_file, write_atomic
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.file import backups, integrity, opening
from daemon.journal.file.groups import Groups, Write
from daemon.journal.file.sqlite_errors import explaining, gone
from daemon.journal.file.upgrades import upgrade
from daemon.system import lease
from daemon.system.elsewhere import refuse_elsewhere
from daemon.system.logger import Logger
from daemon.system.processes.seats import SEATS
from daemon.system.processes.threads import Owner, ThreadDied

log = Logger("journal")

SUSPECT = "journal.suspect"
"""File beside the journal that stands while it is known to be damaged or is being rebuilt."""

T = TypeVar("T")


class Database:
    """A SQLite file owned by one thread. `write` and `read` may be called from any thread and wait for their turn."""

    def __init__(self, path: Path) -> None:
        """Open, check and upgrade `path`. Raises Permanent for a damaged file, UsageError for one of an unknown schema,
        Retryable where it can't be opened now."""
        self.path = path
        self._file = (0, 0)
        self._thread = Owner("journal")
        self._groups = Groups(self._transact)
        self._connection: sqlite3.Connection | None = None
        self._openings = 0
        self._refused = False
        try:
            self._ask("open the journal", self._open)
        except BaseException:
            self._thread.close()
            raise

    def _ask(self, operation: str, function: Callable[[], T]) -> T:
        if self._thread.is_current():
            return function()
        try:
            with SEATS.left():
                return self._thread.ask(function)
        except ThreadDied as error:
            raise self._cut_off(operation) from error

    def _cut_off(self, operation: str) -> Retryable:
        cause = "the thread that uses it died and was replaced"
        return Retryable(FaultCode.JOURNAL_UNAVAILABLE, operation, cause, "nothing, it is tried again", path=self.path)

    def _open(self) -> None:
        try:
            refuse_elsewhere(self.path.parent, "open the journal")
            with explaining("open the journal", self.path):
                connection = self._connected()
                opening.check_at_open(connection, self.path)
                upgrade(connection, self.path)
        except BaseException:
            self._drop()
            raise

    def _connected(self) -> sqlite3.Connection:
        """The connection; a new one if the last was closed after an error."""
        if self._connection is None:
            self._connection = opening.connect(self.path)
            self._openings += 1
            status = os.stat(self.path)
            self._file = (status.st_dev, status.st_ino)
        return self._connection

    def _drop(self) -> None:
        """Close the connection; the next use opens another."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def write(self, name: str, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run `function` in an immediate transaction; it is durable when this returns. `name` names its fault points.

        `function` changes nothing but the journal: it may run twice. Raises what it raises, Retryable ("journal-unavailable") while the
        file can't be written, Permanent where it is damaged or gone.
        """
        if self._thread.is_current() and self._connection is not None and self._connection.in_transaction:
            raise RuntimeError(f"{name} is to be written within another write")  # a transaction has no other one in it
        mine = Write(name, function)
        self._groups.add(mine)
        try:
            self._ask(mine.operation, self._groups.do)
        finally:
            self._groups.drop(mine)
        if mine.error is not None:
            raise mine.error
        if not mine.ended:  # the thread died in the middle of the transaction, which was asked for by another one
            raise self._cut_off(mine.operation)
        value: T = mine.value
        return value

    def _transact(self, group: Sequence[Write]) -> None:
        for write in group:
            failpoints.point(f"before.{write.name}")
        with self._explaining(group[0].operation):
            lease.see()
            self._stay()
            connection = self._begin()
            try:
                for number, write in enumerate(group):
                    if number:
                        failpoints.point("journal.within-group")
                    write.value = write.function(connection)
                self._commit(connection)
            except BaseException:
                self._roll_back(connection)
                raise
        for write in group:
            write.ended = True
        for write in group:
            failpoints.point(f"after.{write.name}")

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_IOERR_DIR_FSYNC:
                raise
            # The rollback journal is gone, and that is the commit: to call it refused would let it be done twice.
            self._drop()
            log.error(
                "a change of the journal is made and may not outlast a power cut: its folder could not be synced",
                event_id=Event.JOURNAL_NOT_DURABLE,
                code=FaultCode.JOURNAL_NOT_DURABLE,
                path=str(self.path),
            )

    @contextmanager
    def _explaining(self, operation: str) -> Iterator[None]:
        """Translates SQLite's errors into ours; a damaged file is also marked, so that the next start checks all of it."""
        try:
            with explaining(operation, self.path):
                yield
        except Permanent as error:
            if error.fault.code == FaultCode.JOURNAL_DAMAGED:
                mark_suspect(self.path.with_name(SUSPECT), error.fault.cause)
            raise
        except Retryable as error:
            if getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL):
                self._drop()
                self._refused = True
            raise

    def _begin(self) -> sqlite3.Connection:
        if self._refused:
            self._drop()  # opened while the disk could only be read, it would stay so
        if self._connection is not None and self._connection.in_transaction:
            self._drop()  # the thread before this one died in the middle of it: whoever opens the file next undoes it
        connection = self._connected()
        self._refused = False
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:  # a full disk may have ended it already
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop()  # whoever opens the file next undoes it

    def read(self, statement: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query. Raises as `write` does."""

        def run() -> list[sqlite3.Row]:
            with self._explaining("read the journal"):
                return self._connected().execute(statement, values).fetchall()

        return self._ask("read the journal", run)

    def together(self, function: Callable[[], T]) -> T:
        """What `function` gives, which only reads the journal: in one turn, so that no write comes between, and one is waited for once.

        Raises as `read` does.
        """
        return self._ask("read the journal", function)

    def state(self) -> tuple[int, ...]:
        """Differs from what it was as soon as anybody has changed the file since. Raises as `read` does."""

        def look() -> tuple[int, ...]:
            with self._explaining("read the journal"):
                connection = self._connected()
                return self._openings, int(connection.execute("PRAGMA data_version").fetchone()[0]), connection.total_changes

        return self._ask("read the journal", look)

    def check(self, *, full: bool) -> list[str]:
        """What is wrong with the file, [] for nothing: the quick check, or (`full`) everything that can be found out.

        Reads go on meanwhile; a write waits for its end. Raises Retryable where the file can't be read now.
        """
        if (problem := self._misplaced()) is not None:
            return [problem]
        try:
            with opening.reading_as_it_is(self.path) as connection:
                problems = integrity.misshapen(connection) or integrity.unsound(connection, full=full)
                return problems or integrity.unbelievable(connection)
        except Permanent as error:
            return [error.fault.cause]

    def backup(self, target: Path) -> None:
        """Write a checked copy to `target`, atomically, while work goes on. Raises as `daemon.journal.file.backups.write_backup` does."""
        with opening.reading_as_it_is(self.path) as connection:
            backups.write_backup(connection, target)

    def close(self) -> None:
        """Close the connection and end the owner thread."""
        with suppress(ThreadDied):
            self._thread.ask(self._drop)
        self._thread.close()

    # The file under the connection

    def _misplaced(self) -> str | None:
        try:
            status = os.stat(self.path)
        except OSError as error:
            return f"its file was deleted while it was open ({error.strerror})"
        same = (status.st_dev, status.st_ino) == self._file
        return None if same else "its file was replaced while it was open"

    def _stay(self) -> None:
        """See that what is written lands where the next start looks: a deleted file is put back from the open one."""
        problem = self._misplaced()
        if problem is None or self._connection is None:
            return
        if self.path.exists() or not self.path.parent.is_dir():
            raise gone("write to the journal", problem, self.path)
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        beside.unlink(missing_ok=True)
        with closing(sqlite3.connect(beside)) as target:
            self._connection.backup(target)
        fsync_file(beside)
        try:
            os.link(beside, self.path)
        except FileExistsError:
            raise gone("write to the journal", problem, self.path) from None
        finally:
            beside.unlink()
        fsync_directory(self.path.parent)
        self._drop()
        log.critical("the journal was deleted while it was in use; it was put back with all its contents", event_id=Event.JOURNAL_RESTORED,
                     code=FaultCode.JOURNAL_GONE, path=str(self.path))  # fmt: skip


def mark_suspect(marker: Path, why: str) -> None:
    """Let the next start look at the whole journal before it trusts it; a mark that is there already stays."""
    with suppress(OSError):
        if not marker.exists():
            write_atomic(marker, json.dumps({"why": why}))
