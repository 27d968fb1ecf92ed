"""Checks a journal: SQLite's own checks, the shape of its schema, the rows of its open jobs.

Functions of a connection, called by `daemon.journal.file.database` when it opens a file and by `daemon.operating.integrity.maintenance` on
a schedule. SQLite keeps no checksums: a byte that changed inside a text is found only if the text becomes invalid.
"""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import CheckpointRef
from daemon.journal.sql import schema_version, statements

SMALL = 32 << 20
"""Bytes up to which everything is looked at in a few tenths of a second."""
REPORTED = 20
"""Largest number of reported problems; one is enough to reject a file."""
OPEN = "state IN ('pending', 'running')"
_STATES = {
    "job": ("pending", "running", "succeeded", "partial", "failed", "superseded", "cancelled"),
    "stage": ("waiting", "running", "succeeded", "failed", "skipped"),
    "shipment": ("waiting", "running", "delivered", "failed", "dropped"),
}
JSON_COLUMNS = {
    "job": ("checkpoint", "work", "warnings"), "stage": ("result", "fault"), "attempt": ("fault",),
    "shipment": ("variants", "fault", "resume", "receipt"),
}  # fmt: skip
"""Table → its columns whose texts are JSON."""

Shape = frozenset[tuple[str, ...]]


def shape_of(connection: sqlite3.Connection) -> Shape:
    """Tables, indexes and triggers by name, and the columns of each table; what SQLite keeps for itself left out."""
    objects = connection.execute("SELECT type, name, tbl_name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
    columns = connection.execute(
        "SELECT m.name, c.name, c.type FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        " AND m.name NOT LIKE 'sqlite_%'"
    )
    return frozenset([*(tuple(row) for row in objects), *(("column", *row) for row in columns)])


@functools.cache
def expected(version: int) -> tuple[Shape, frozenset[tuple[str, ...]]]:
    """The shape of a journal of that version, and its legal transitions."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for number in range(1, version + 1):
            for statement in statements(number):
                connection.execute(statement)
        return shape_of(connection), _transitions(connection)
    finally:
        connection.close()


def _transitions(connection: sqlite3.Connection) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(row) for row in connection.execute("SELECT kind, old, new FROM transition"))


def misshapen(connection: sqlite3.Connection) -> list[str]:
    """What the schema lacks of its version; something that people added is no problem. Cheap at any size.

    A version that we don't know is a problem only where the rest is exactly ours.
    """
    connection.execute("BEGIN")  # another process may be bringing it up to date
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        shape = shape_of(connection)
        return _compare(version, shape, lambda: _transitions(connection))
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _compare(version: int, shape: Shape, transitions_there: Callable[[], frozenset[tuple[str, ...]]]) -> list[str]:
    if version > schema_version():
        ours = shape == expected(schema_version())[0]
        return [f"its version is {version}, but its schema is that of version {schema_version()}"] if ours else []
    if version <= 0:
        known = {row[:3] for row in expected(schema_version())[0]}
        return ["it has tables but no version"] if version < 0 or known & {row[:3] for row in shape} else []
    wanted, transitions = expected(version)
    missing = sorted(" ".join(row) for row in wanted - shape)
    if not missing and transitions - transitions_there():
        missing = ["legal transitions"]
    if not missing and (expected(schema_version())[0] - wanted) & shape:
        return [f"its version is {version}, but its schema is that of a later version"]
    return [f"its schema lacks {name}" for name in missing[:REPORTED]]


def unbelievable(connection: sqlite3.Connection) -> list[str]:
    """Contradictions in the rows of open jobs. The cost grows with the number of open jobs, not with the size of the journal."""
    problems = []
    for row in _dicts(connection, f"SELECT * FROM job WHERE {OPEN}"):
        try:
            seen = CheckpointRef.model_validate_json(row["checkpoint"])
            json.loads(row["work"]), json.loads(row.get("warnings", "[]"))
            if (seen.root, seen.run, seen.step, seen.identity) != (row.get("root", seen.root), row["run"], row["step"], row["identity"]):
                problems.append(f"the checkpoint of job {row['id']} contradicts its identity")
        except ValueError:
            problems.append(f"the checkpoint or the configuration of job {row['id']} can't be read")
    for table in ("stage", "attempt"):
        for row in _dicts(connection, f"SELECT t.* FROM {table} t JOIN job ON job.id = t.job WHERE job.{OPEN}"):
            try:
                _ = Fault.model_validate_json(row["fault"]) if row["fault"] else None
            except ValueError:
                problems.append(f"a fault of job {row['job']} can't be read")
    return problems[:REPORTED]


def _dicts(connection: sqlite3.Connection, statement: str) -> Iterator[dict[str, Any]]:
    cursor = connection.execute(statement)
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def unsound(connection: sqlite3.Connection, *, full: bool) -> list[str]:
    """What SQLite finds: its quick check, or (`full`) also every index against its table, and foreign keys and states."""
    check = "integrity_check" if full else "quick_check"
    problems = [str(row[0]) for row in connection.execute(f"PRAGMA {check}({REPORTED})") if row[0] != "ok"]
    if full and not problems:
        problems = [
            f"a row of {row[0]} belongs to no {row[2]}" for row in connection.execute("PRAGMA foreign_key_check").fetchmany(REPORTED)
        ]
        problems += odd_rows(connection)
        if (
            not problems
            and connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0] <= SMALL
        ):
            _read_all(connection)
    return problems


def _read_all(connection: sqlite3.Connection) -> None:
    """Decode every text: raises sqlite3.OperationalError for one that is no UTF-8, which SQLite itself never looks at."""
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for _ in connection.execute(f'SELECT * FROM "{table}"'):
            pass


def odd_rows(connection: sqlite3.Connection) -> Iterator[str]:
    """Rows of any age whose state or JSON is not valid."""
    for table, texts in JSON_COLUMNS.items():
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}  # an earlier version's may lack some
        odd = [f"({text} IS NOT NULL AND NOT json_valid({text}))" for text in texts if text in columns]
        if table in _STATES and columns:
            listed = ", ".join(f"'{state}'" for state in _STATES[table])
            odd.append(f"state NOT IN ({listed})")
        if odd and (count := connection.execute(f"SELECT count(*) FROM {table} WHERE {' OR '.join(odd)}").fetchone()[0]):
            yield f"{count} rows of {table} are not valid"
