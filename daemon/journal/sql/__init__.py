"""The journal's schema: one script a version, each bringing the version before it up to itself.

Called by `daemon.journal.database`, which runs them, and by `daemon.journal.integrity`, which compares a file with what they make.
A script that has been released is never changed.
"""

from __future__ import annotations

import importlib.resources
import sqlite3
from collections.abc import Iterator

SCHEMA_VERSION = 6


def statements(number: int) -> Iterator[str]:
    """The statements of one script, one by one, so that they can be part of a transaction that the caller began."""
    text = importlib.resources.files(__name__).joinpath(f"{number:04}.sql").read_text(encoding="utf-8")
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
