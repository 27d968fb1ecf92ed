"""A journal of the first schema is brought up to date with everything in it, at once or not at all."""

from __future__ import annotations

import importlib.resources
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.config.paths import prepare
from daemon.contract.errors import Fault, Permanent
from daemon.contract.fault_codes import OtherCode
from daemon.journal.database import SCHEMA_VERSION, reading
from daemon.journal.journal import Journal
from daemon.journal.outbox import Dropped, Target
from daemon.journal.overview import seen_as
from daemon.journal.sql import statements
from daemon.operating.integrity.maintenance import open_journal
from daemon.operating.monitoring.status import find, snapshot
from daemon.running.workers import procfs
from daemon.running.workers.executor import LocalExecutor
from tests.journal.conftest import STAGES, WORK, enter, reference
from tests.sampling import some
from tests.workers.helpers import BOUNDS


@pytest.fixture
def old(file: Path) -> Path:
    """A journal as version 1 left it: a running job with an attempt, a skipped checkpoint."""
    first = importlib.resources.files("daemon.journal.sql").joinpath("0001.sql").read_text()
    with closing(sqlite3.connect(file)) as raw:
        raw.executescript(f"BEGIN;{first};PRAGMA user_version = 1;COMMIT;")
        raw.execute(
            "INSERT INTO job (id, identity, work_digest, run, step, checkpoint, work, pin, target, state, created)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            ("job", reference().identity, WORK.digest, "run", 4, reference().model_dump_json(), WORK.model_dump_json(), "/pin", "/out",
             "running", "2026-01-01T00:00:00.000+00:00"),
        )  # fmt: skip
        raw.executemany("INSERT INTO stage (job, name, position) VALUES ('job', ?, ?)", [(name, i) for i, name in enumerate(STAGES)])
        raw.execute(
            "INSERT INTO attempt (job, stage, number, strategy, folder, staging, started)"
            " VALUES ('job', 'merge', 1, 'default', '/a', '/s', '')"
        )
        raw.execute("INSERT INTO seen VALUES (?, 'f', 'taken', 'job', '')", (reference().path,))
        raw.execute("INSERT INTO seen VALUES ('/skipped', 's', 'skipped', NULL, '')")
        raw.commit()
    return file


def version(file: Path) -> int:
    with closing(sqlite3.connect(file)) as raw:
        return int(raw.execute("PRAGMA user_version").fetchone()[0])


def test_nothing_of_an_old_journal_is_lost_and_the_new_rules_hold_in_it(old: Path) -> None:  # R6.5
    journal = Journal(old)
    try:
        job = journal.jobs.get("job")
        assert job is not None
        assert (job.id, job.state, job.warnings, job.reason, job.untidy) == ("job", "running", (), None, False)
        assert list(journal.stages.of("job")) == list(STAGES)
        assert [attempt.number for attempt in journal.attempts.open()] == [1]
        assert (journal.sightings.fingerprint("/skipped"), journal.sightings.places("job")) == ("s", {reference().path: "f"})
        assert enter(journal, "new", reference(digest="other"), warnings=["w"])
        ended = journal.jobs.get("job")
        assert ended is not None
        assert (ended.state, ended.reason, ended.untidy) == ("superseded", "superseded by new", True)
        journal.sightings.add_lost("/gone", "a", "b", 1.5)
    finally:
        journal.close()
    assert version(old) == SCHEMA_VERSION
    assert [row.path for row in snapshot(old.parent).lost] == ["/gone"]


def test_the_status_of_an_old_journal_can_be_read_before_the_daemon_was_started_on_it(old: Path) -> None:  # R6.1
    value = snapshot(old.parent)
    assert [(job.id, job.warnings, job.error) for job in value.jobs] == [("job", (), None)]
    assert (value.lost, version(old)) == ((), 1)


FILL_2 = """
INSERT INTO lost (path, first_seen, last_seen, lived, at) VALUES ('/lost', 'a', 'b', 2.5, 'c');
UPDATE job SET reason = 'because', warnings = '["w"]', untidy = 1 WHERE id = 'job';
"""
FILL_1 = """
INSERT INTO outbox (job, kind, title, body, created) VALUES ('job', 'failed', 't', 'b', '');
UPDATE attempt SET pid = 4711, process_started = 1234567.89 WHERE job = 'job';
"""
RENAMED = {"attempt": {"pid", "process_started"}, "outbox": {"attempts", "next_at", "last_error"}}
"""Columns that later versions hold in another form: a message has its attempts for each service."""
TABLES_1 = ("seen", "job", "stage", "attempt", "outbox")
OPEN = """
import sys
from pathlib import Path
from daemon.journal.journal import Journal
from daemon.journal.outbox import Dropped, Target
from daemon.journal.overview import seen_as
Journal(Path(sys.argv[1])).close()
"""


def at(file: Path, number: int) -> None:
    """Bring the journal of version 1 to an earlier version with rows in every table, by the scripts alone."""
    with closing(sqlite3.connect(file)) as raw:
        raw.executescript(FILL_1)
        for later in range(2, number + 1):
            text = importlib.resources.files("daemon.journal.sql").joinpath(f"{later:04}.sql").read_text()
            raw.executescript(f"BEGIN;{text};PRAGMA user_version = {later};COMMIT;")
            raw.executescript({2: FILL_2}.get(later, ""))


def contents(file: Path, tables: tuple[str, ...], columns: dict[str, list[str]] | None = None) -> dict[str, list[tuple[object, ...]]]:
    """All rows; `columns` limits them to those that an earlier version had."""
    with closing(sqlite3.connect(file)) as raw:
        return {
            table: raw.execute(f"SELECT {', '.join(columns[table]) if columns else '*'} FROM {table} ORDER BY rowid").fetchall()
            for table in tables
        }


def columns_of(file: Path, tables: tuple[str, ...]) -> dict[str, list[str]]:
    with closing(sqlite3.connect(file)) as raw:
        names = {table: [row[1] for row in raw.execute(f"PRAGMA table_info({table})")] for table in tables}
    return {table: [name for name in columns if name not in RENAMED.get(table, ())] for table, columns in names.items()}


@pytest.mark.parametrize("number", range(1, SCHEMA_VERSION))
def test_every_row_of_every_earlier_version_is_there_afterwards_and_a_backup_of_before(old: Path, number: int, tmp_path: Path) -> None:
    at(old, number)
    tables = TABLES_1 if number == 1 else (*TABLES_1, "lost")
    columns = columns_of(old, tables)
    before, everything = contents(old, tables, columns), contents(old, tables)
    assert all(before.values()), "each table holds something"
    paths = prepare(tmp_path, tmp_path / "exports")
    journal = open_journal(paths)
    assert journal.database.check(full=True) == []
    journal.close()
    assert contents(old, tables, columns) == before
    assert contents(old, ("attempt",), {"attempt": ["executor_id"]}) == {"attempt": [("local:4711:1234567.89",)]}
    assert version(old) == SCHEMA_VERSION
    backup = paths.backups / f"before-schema-{SCHEMA_VERSION}.sqlite3"
    assert (version(backup), contents(backup, tables)) == (number, everything)


def test_an_attempt_that_was_open_under_an_old_version_is_settled_after_the_upgrade(old: Path, tmp_path: Path) -> None:  # R6.5
    at(old, 3)
    with subprocess.Popen(["sleep", "100"], start_new_session=True) as process, closing(sqlite3.connect(old)) as raw:
        known = procfs.entry(process.pid)
        assert known is not None
        raw.execute("UPDATE attempt SET pid = ?, process_started = ?, folder = ?", (process.pid, known.started, str(tmp_path / "attempt")))
        raw.commit()
        journal = Journal(old)
        (attempt,) = journal.attempts.open()
        journal.close()
        with capture_logs() as logs:
            assert LocalExecutor().reclaim(attempt.executor_id, attempt.folder, BOUNDS) is None
        assert process.wait(10) == -signal.SIGKILL
    assert [entry["event"] for entry in logs] == ["a child outlived its daemon and was killed"]


@pytest.mark.parametrize("number", some(range(1, SCHEMA_VERSION), of=2))
def test_a_message_that_waited_under_an_old_version_goes_to_the_services_that_there_are_then_and_to_no_later_one(
    old: Path, number: int
) -> None:
    at(old, number)
    journal = Journal(old)
    outbox = journal.outbox
    assert outbox.unaddressed() and outbox.due(0.0, 3600.0) == []
    assert outbox.adopt([Target("a", "notify.urls.0"), Target("b", "notify.urls.1")]) == []
    assert [(one.target, one.message.title) for one in outbox.due(0.0, 3600.0)] == [("a", "t"), ("b", "t")]
    assert outbox.adopt([Target("b", "notify.urls.0"), Target("c", "notify.urls.1")]) == [Dropped("notify.urls.0", 1)]
    assert [(one.target, one.message.title) for one in outbox.due(0.0, 3600.0)] == [("b", "t")]
    journal.close()


def test_a_message_of_an_old_journal_for_nobody_ends_with_a_word(old: Path) -> None:
    at(old, SCHEMA_VERSION - 1)
    journal = Journal(old)
    assert (journal.outbox.adopt([]), journal.outbox.pending()) == ([Dropped("nobody", 1)], 0)
    journal.outbox.adopt([Target("later", "notify.urls.0")])
    assert journal.outbox.due(0.0, 3600.0) == []
    journal.close()


def test_every_script_of_the_schema_is_run() -> None:
    scripts = sorted(file.name for file in importlib.resources.files("daemon.journal.sql").iterdir() if file.name.endswith(".sql"))
    assert scripts == [f"{number:04}.sql" for number in range(1, SCHEMA_VERSION + 1)]


def test_an_attempt_without_a_process_has_no_id_after_the_upgrade(old: Path) -> None:
    journal = Journal(old)
    (attempt,) = journal.attempts.open()
    journal.close()
    assert attempt.executor_id is None


@pytest.mark.parametrize("number", some(range(1, SCHEMA_VERSION), of=2))
def test_the_status_of_an_earlier_version_is_that_of_the_same_journal_brought_up_to_date(old: Path, number: int) -> None:
    at(old, number)
    before, found = snapshot(old.parent), find(old.parent, "jo")
    assert seen(old) == ("taken", "job", "running")
    Journal(old).close()
    assert (before, found) == (snapshot(old.parent), find(old.parent, "jo"))
    assert seen(old) == ("taken", "job", "running")
    assert (before.counts, before.outbox, before.paused) == ({"running": 1}, {"pending": 1}, None)
    assert [row.path for row in before.lost] == ([] if number == 1 else ["/lost"])
    ((attempt,),) = [job.attempts for job in found]
    assert (attempt.stage, attempt.job_file, attempt.log) == ("merge", "/a/job.json", "/a/log.txt")


def seen(file: Path) -> tuple[str, str | None, str | None]:
    with reading(file) as connection:
        row = seen_as(connection, reference().path)
    assert row is not None
    return row.verdict, row.job, row.job_state


def test_a_journal_that_was_only_just_made_shows_nothing(file: Path) -> None:
    file.touch()
    assert (snapshot(file.parent).jobs, find(file.parent, "job")) == ((), [])


def test_a_result_that_this_version_cannot_read_does_not_hide_the_job(file: Path, journal: Journal) -> None:
    enter(journal)
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("UPDATE stage SET result = '{\"of\": \"another version\"}' WHERE name = 'merge'")
        raw.commit()
    (job,) = snapshot(file.parent).jobs
    assert (job.id, job.stages[0].seconds) == ("job", None)


def test_a_fault_of_another_version_with_a_code_that_is_gone_is_read_and_shown(old: Path) -> None:
    fault = Fault(code=OtherCode("gone-since"), operation="merge", cause="it was odd", remedy="wait")
    with closing(sqlite3.connect(old)) as raw:
        raw.execute("UPDATE attempt SET fault = ?", (fault.model_dump_json(),))
        raw.execute("UPDATE stage SET state = 'failed', fault = ? WHERE name = 'merge'", (fault.model_dump_json(),))
        raw.commit()
    journal = Journal(old)
    assert journal.stages.of("job")["merge"].fault == fault and [one.fault for one in journal.attempts.of("job")] == [fault]
    journal.close()
    (job,) = find(old.parent, "job")
    assert (job.error, job.attempts[0].error) == (fault.sentence(), fault.sentence())


@pytest.mark.parametrize("number", some(range(0, SCHEMA_VERSION), of=3))
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_migration_that_is_killed_at_its_commit_has_happened_or_not_and_goes_on(  # R6.5
    old: Path, number: int, place: str
) -> None:
    if number == 0:
        old.unlink()
    else:
        at(old, number)
    root = Path(__file__).parents[2]
    for step in range(number + 1, SCHEMA_VERSION + 1):
        environment = {**os.environ, "PYTHONPATH": str(root), "CKPTD_FAULT": f"migrate.{step}.{place}"}
        done = subprocess.run([sys.executable, "-c", OPEN, str(old)], check=False, cwd=root, env=environment)
        assert done.returncode == -signal.SIGKILL
        assert version(old) == (step if place == "after" else step - 1)
    journal = Journal(old)
    assert journal.database.check(full=True) == []
    assert journal.jobs.open_ids() == ({"job"} if number else set())
    journal.close()


def test_a_migration_that_fails_in_its_middle_leaves_nothing_of_itself(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(old)) as raw:
        before = "\n".join(raw.iterdump())
    good = list(statements(2))
    monkeypatch.setattr("daemon.journal.database.statements", lambda _: [*good[:-1], "INSERT INTO nowhere VALUES (1)"])
    with pytest.raises(Permanent, match="it is intact, but it could not be upgraded to schema 2: no such table: nowhere"):
        Journal(old)
    with closing(sqlite3.connect(old)) as raw:
        assert "\n".join(raw.iterdump()) == before
    assert version(old) == 1
    monkeypatch.undo()
    Journal(old).close()
    assert version(old) == SCHEMA_VERSION


def test_two_processes_that_find_an_old_journal_at_once_bring_it_up_to_date_once(old: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", OPEN, str(old)]
    with closing(sqlite3.connect(old, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")  # all of them see the old version, and then wait
        both = [subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}) for _ in range(3)]
        time.sleep(3)
        raw.execute("ROLLBACK")
    assert [process.wait() for process in both] == [0, 0, 0]
    assert version(old) == SCHEMA_VERSION


def test_an_old_and_a_fresh_journal_have_the_same_schema_in_the_end(old: Path, tmp_path: Path) -> None:
    def schema(file: Path) -> list[tuple[str, ...]]:
        Journal(file).close()
        with closing(sqlite3.connect(file)) as raw:
            rows = raw.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
            return rows + raw.execute("SELECT * FROM transition ORDER BY 1, 2, 3").fetchall()

    assert schema(old) == schema(tmp_path / "fresh.sqlite3")


def test_a_migration_that_is_cut_off_leaves_the_old_schema_and_is_done_by_the_next_start(old: Path) -> None:  # R6.5
    """Killed inside SQLite itself, by a function that the statement after the migration's last one calls."""
    script = (
        "import importlib.resources, os, signal, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.create_function('die', 0, lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "text = importlib.resources.files('daemon.journal.sql').joinpath('0002.sql').read_text()\n"
        "c.execute('PRAGMA cache_size = 1')\n"
        "c.executescript('BEGIN IMMEDIATE;' + text + ';PRAGMA user_version = 2; SELECT die(); COMMIT;')\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script, str(old)], check=False, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == -signal.SIGKILL
    assert version(old) == 1
    journal = Journal(old)
    assert journal.jobs.open_ids() == {"job"}
    journal.close()
    assert version(old) == SCHEMA_VERSION
