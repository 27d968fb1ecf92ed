"""The journal's schema: `1.sql` makes the first, each of MIGRATIONS the next one of the one before it.

Called by `daemon.journal.file.upgrades`, which runs them, and by `daemon.journal.file.integrity`, which compares a file
with what they make.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


MIGRATIONS: list[str] = [_file("2.sql"), _file("3.sql")]
"""Scripts in SQL, by their text: the first makes schema 2 of schema 1, and so on. Each adds or removes a table, a column, an index or a
trigger, so that the schemas can be told apart by their shape. What has been released is never changed."""


def schema_version() -> int:
    """The schema that this ckptd works with."""
    return 1 + len(MIGRATIONS)


def statements(number: int) -> Iterator[str]:
    """Yield the statements that make a schema of the one before it, one by one, so that the caller can run them in its transaction."""
    text = _file("1.sql") if number == 1 else MIGRATIONS[number - 2]
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
