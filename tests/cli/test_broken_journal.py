"""A text in the journal that is damaged takes neither a command nor what the rest of the journal says."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.config.places.paths import StatePaths
from daemon.contract.delivering.orders import Receipt
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.file.integrity import JSON_COLUMNS
from daemon.journal.journal import Journal
from daemon.journal.overview import REBUILT
from daemon.journal.shipment_rows import NewShipment
from tests.cli.test_bad_input import ckptd
from tests.sampling import some
from tests.upgrades.frozen import STATES, thaw

TEXTS = ("", "{", "not JSON", "[1, 2", "null", "7", "{}")
"""What may be in place of a text: broken JSON, and JSON of another kind."""
FAULT = Fault(code=FaultCode.DELIVERY_FAR_END, operation="deliver", cause="no answer", remedy="wait").model_dump_json()
RECEIPT = Receipt(version="v", place="there").model_dump_json()
COMMANDS = (
    ("status",), ("status", "--json"), ("list",), ("list", "--json"), ("queue",), ("verify", "--journal"),
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a daemon of version 1.0.0 that left exports in several states."""
    thaw(STATES / "1.0.0.tar.gz", home := tmp_path / "home")
    with contextlib.closing(Journal(StatePaths(home / "state").journal)) as journal:
        (job,) = journal_of(home).execute("SELECT id FROM job WHERE state = 'succeeded' LIMIT 1").fetchone()
        assert journal.shipments.enter(job, [NewShipment("far", ("onnx",))])
    connection = journal_of(home)
    connection.execute("UPDATE shipment SET state = 'running'")
    connection.execute("UPDATE shipment SET state = 'failed', fault = ?, receipt = ?, resume = ?", (FAULT, RECEIPT, '{"part": {}}'))
    connection.close()
    return home


def journal_of(home: Path) -> sqlite3.Connection:
    """Its journal, for what no writer of ours would do."""
    return sqlite3.connect(StatePaths(home / "state").journal, isolation_level=None)


def json_texts(connection: sqlite3.Connection) -> Iterator[tuple[str, str, int]]:
    """Table, column and row of every column that holds JSON in some row, by the values alone."""
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall():
        for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
            query = f"SELECT rowid FROM {table} WHERE {column} LIKE '{{%' OR {column} LIKE '[%' ORDER BY rowid DESC LIMIT 1"
            if kind == "TEXT" and table != "transition" and (row := connection.execute(query).fetchone()):
                yield table, column, row[0]


def damage(home: Path, table: str, column: str, row: int, text: str) -> None:
    connection = journal_of(home)
    if column == "checkpoint":  # damage to a file goes round the index over what is in this text
        connection.execute("DROP INDEX job_by_content")
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (text, row))
    connection.close()


@pytest.fixture
def places(home: Path) -> list[tuple[str, str, int]]:
    """One row of every column that holds JSON."""
    connection = journal_of(home)
    connection.execute(
        'INSERT INTO control (name, value, at) VALUES (?, \'{"at": "2026-01-31", "why": "a test"}\', \'2026-01-31\')', (REBUILT,)
    )
    places = list(json_texts(connection))
    connection.close()
    return places


def test_the_columns_that_are_checked_are_those_that_hold_json(places: list[tuple[str, str, int]]) -> None:
    known = {(table, column) for table, columns in JSON_COLUMNS.items() for column in columns}
    assert {place[:2] for place in places} == known | set(OTHERS)


OTHERS = (("control", "value"), ("outbox", "about"), ("target", "wants"))
"""Those that the daemon writes again."""
COLUMNS = [*((table, column) for table, columns in JSON_COLUMNS.items() for column in columns), *OTHERS]


@pytest.mark.parametrize(("column", "text"), some([(column, text) for column in COLUMNS for text in TEXTS], of=5))
def test_a_text_that_is_damaged_ends_no_command_with_a_traceback(
    column: tuple[str, str], text: str, home: Path, places: list[tuple[str, str, int]]
) -> None:
    row = next(row for *place, row in places if tuple(place) == column)
    connection = journal_of(home)
    ids = [id for (id,) in connection.execute("SELECT id FROM job ORDER BY id")]
    connection.close()
    damage(home, *column, row, text)
    for command in (*COMMANDS, *(("show", id) for id in ids), ("logs", "--job", ids[0]), ("compare", *ids[:2]), ("quality", "done")):
        answer = ckptd(home, *command, "--config", home / "config.toml")
        assert "Traceback" not in answer.stderr and answer.returncode in (0, 1, 2), f"ckptd {' '.join(command)}: {answer.stderr}"
        if command in (("status",), ("list",)):
            assert all(id in answer.stdout for id in ids), answer.stdout


@pytest.mark.parametrize(
    ("table", "column"), [("job", "checkpoint"), ("job", "work"), ("job", "warnings"), ("stage", "result"), ("stage", "fault")]
)
def test_what_can_not_be_read_is_said_of_its_export_alone(home: Path, table: str, column: str, places: list[tuple[str, str, int]]) -> None:
    row = next(row for name, text, row in places if (name, text) == (table, column))
    verify = ("verify", "--journal", "--config", home / "config.toml")
    assert "journal-damaged" not in ckptd(home, *verify).stdout
    damage(home, table, column, row, "{")
    said = " ".join(ckptd(home, "list", "--config", home / "config.toml").stdout.split())
    assert said.count("the journal can't be read at") == 1 and f"{table}.{column}" in said and "ckptd verify --journal" in said
    checked = ckptd(home, *verify)
    assert checked.returncode == 1 and "journal-damaged" in checked.stdout
