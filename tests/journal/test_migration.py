"""A journal of the schema before is brought up to date with everything in it, at once or not at all.

The next schema is made up here: it must find all of this at work.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from daemon.config.places.paths import prepare
from daemon.contract.faults.errors import Fault, Permanent, UsageError
from daemon.contract.faults.fault_codes import OtherCode
from daemon.journal import sql
from daemon.journal.file import integrity
from daemon.journal.file.opening import reading
from daemon.journal.journal import Journal
from daemon.journal.outbox import Dropped, Target
from daemon.journal.overview import seen_as
from daemon.journal.rows import Notice
from daemon.operating.integrity.fsck import examine
from daemon.operating.integrity.maintenance import open_journal
from daemon.operating.monitoring.status import find, snapshot
from tests.journal.entries import enter, reference

MADE_UP = """
-- A table, a column with a default; a transition; and a column in another form.
CREATE TABLE colour (name TEXT PRIMARY KEY) STRICT;
INSERT INTO colour SELECT DISTINCT run FROM job;
ALTER TABLE job ADD COLUMN mood TEXT NOT NULL DEFAULT 'good';
INSERT INTO transition (kind, old, new) VALUES ('job', 'superseded', 'pending');
UPDATE attempt SET strategy = 'was:' || strategy;
"""
NOW = sql.schema_version()
NEXT = NOW + 1
TABLES = ("seen", "lost", "job", "stage", "attempt", "measured", "outbox", "target", "delivery", "control", "shipment")
FILL = """
INSERT INTO attempt (job, stage, number, strategy, folder, staging, executor_id, started)
    VALUES ('job', 'merge', 1, 'default', '/a', '/s', 'local:4711:1.5', '');
UPDATE job SET state = 'running', warnings = '["w"]' WHERE id = 'job';
INSERT INTO seen VALUES ('/skipped', 's', 'skipped', NULL, '');
INSERT INTO lost (path, first_seen, last_seen, lived, at) VALUES ('/lost', 'a', 'b', 2.5, 'c');
INSERT INTO measured VALUES (1, 'merge', 10, 20, 30, 40, 1.5, 'now');
INSERT INTO outbox (job, kind, title, body, created) VALUES ('job', 'failed', 't', 'b', '');
INSERT INTO target (digest, place) VALUES ('a', 'notify.urls.0');
INSERT INTO delivery (message, target) VALUES (1, 'a');
INSERT INTO control (name, value, at) VALUES ('paused', '1', 'then');
INSERT INTO shipment (job, target, entered) VALUES ('job', 'hub', 'then');
"""
ROOT = Path(__file__).parents[2]
OPEN = f"""
import sys
from pathlib import Path
from daemon.journal import sql
from daemon.journal.journal import Journal
sql.MIGRATIONS.append({MADE_UP!r})
Journal(Path(sys.argv[1])).close()
"""


@pytest.fixture
def old(file: Path) -> Path:
    """A journal of the present schema, with rows in every table."""
    journal = Journal(file)
    enter(journal)
    journal.close()
    with closing(sqlite3.connect(file)) as raw:
        raw.executescript(FILL)
    return file


@pytest.fixture
def later(old: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This ckptd works with the next schema, and finds `old` as the version before left it."""
    integrity.expected.cache_clear()
    monkeypatch.setattr(sql, "MIGRATIONS", [*sql.MIGRATIONS, MADE_UP])
    yield
    integrity.expected.cache_clear()


def version(file: Path) -> int:
    with closing(sqlite3.connect(file)) as raw:
        return int(raw.execute("PRAGMA user_version").fetchone()[0])


def contents(file: Path, but: frozenset[str] = frozenset()) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the tables of the present schema, in its columns."""
    with closing(sqlite3.connect(file)) as raw:
        listed: dict[str, list[tuple[object, ...]]] = {}
        for table in TABLES:
            names = [row[1] for row in raw.execute(f"PRAGMA table_info({table})") if row[1] not in but]
            listed[table] = raw.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY rowid").fetchall()
        return listed


def opened(file: Path, fault: str = "") -> subprocess.Popen[bytes]:
    """Open the journal by the next schema in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", OPEN, str(file)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "CKPTD_FAULT": fault}
    )


def test_what_is_released_begins_with_schema_1(file: Path) -> None:
    Journal(file).close()
    assert (sql.schema_version(), version(file)) == (1 + len(sql.MIGRATIONS), sql.schema_version())


def test_each_schema_can_be_told_from_the_one_before_by_its_shape() -> None:
    shapes = [integrity.expected(number)[0] for number in range(1, sql.schema_version() + 1)]
    assert len(set(shapes)) == len(shapes)


@pytest.mark.usefixtures("later")
def test_every_row_is_there_after_an_upgrade_and_a_backup_of_before(old: Path, tmp_path: Path) -> None:  # R6.5
    new = frozenset({"mood", "strategy"})
    before, everything = contents(old, new), contents(old)
    assert all(before.values()), "each table holds something"
    paths = prepare(tmp_path, tmp_path / "exports")
    journal = open_journal(paths)
    assert journal.database.check(full=True) == []
    assert [attempt.strategy for attempt in journal.attempts.open()] == ["was:default"]
    journal.close()
    assert (contents(old, new), version(old)) == (before, NEXT)
    backup = paths.backups / f"before-schema-{NEXT}.sqlite3"
    assert (version(backup), contents(backup)) == (NOW, everything)


@pytest.mark.usefixtures("later")
def test_an_upgraded_journal_has_the_schema_of_a_fresh_one_and_its_rules_hold(old: Path, tmp_path: Path) -> None:
    def shape(file: Path) -> tuple[object, ...]:
        Journal(file).close()
        with closing(sqlite3.connect(file)) as raw:
            return integrity.shape_of(raw), raw.execute("SELECT * FROM transition ORDER BY 1, 2, 3").fetchall()

    assert shape(old) == shape(tmp_path / "fresh.sqlite3")
    with closing(sqlite3.connect(old)) as raw, pytest.raises(sqlite3.IntegrityError, match="illegal transition of a job"):
        raw.execute("UPDATE job SET state = 'pending'")


@pytest.mark.usefixtures("later")
def test_the_status_of_an_older_journal_is_that_of_the_same_journal_after_the_upgrade(old: Path) -> None:  # R6.1
    """The daemon that wrote it may still run: nothing is changed by looking."""
    bytes_before = old.read_bytes()
    before, job = snapshot(old.parent), find(old.parent, "jo")
    assert (before.counts, before.paused, old.read_bytes()) == ({"running": 1}, "then", bytes_before)
    assert seen(old) == ("taken", "job", "running")
    report = examine(old.parent, old.parent / "exports", quiescent=True)
    assert "journal-version" not in {finding.code for finding in report.findings}
    Journal(old).close()
    assert (before, job) == (snapshot(old.parent), find(old.parent, "jo"))
    assert seen(old) == ("taken", "job", "running")


def seen(file: Path) -> tuple[str, str | None, str | None]:
    with reading(file) as connection:
        row = seen_as(connection, reference().path)
    assert row is not None
    return row.verdict, row.job, row.job_state


def test_a_journal_of_an_unknown_schema_is_refused_by_all_in_one_sentence_and_left_alone(
    old: Path, tmp_path: Path, later: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = prepare(tmp_path, tmp_path / "exports")
    Journal(old).close()
    monkeypatch.undo()
    bytes_before = old.read_bytes()
    for look in (lambda: open_journal(paths), lambda: snapshot(tmp_path), lambda: examine(tmp_path, tmp_path / "exports", quiescent=True)):
        with pytest.raises(UsageError) as caught:
            look()
        assert caught.value.fault.code == "journal-version"
        assert caught.value.fault.cause == f"another version of ckptd wrote it (schema {NEXT}; this ckptd knows schema {NOW})"
        assert caught.value.fault.remedy == "install the version that wrote it, or name another state.directory"
    assert old.read_bytes() == bytes_before
    assert not list(tmp_path.glob("journal.damaged-*"))


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("number", [1, NEXT])
def test_a_migration_that_is_killed_at_its_commit_has_happened_or_not_and_goes_on(  # R6.5
    old: Path, later: None, number: int, place: str
) -> None:
    if number == 1:
        old.unlink()
    assert opened(old, f"migrate.{number}.{place}").wait() == -signal.SIGKILL
    assert version(old) == (number if place == "after" else number - 1)
    journal = Journal(old)
    assert journal.database.check(full=True) == []
    assert journal.jobs.open_ids() == ({"job"} if number == NEXT else set())
    journal.close()
    assert version(old) == NEXT


def test_a_migration_that_fails_in_its_middle_leaves_nothing_of_itself(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(old)) as raw:
        before = "\n".join(raw.iterdump())
    monkeypatch.setattr(sql, "MIGRATIONS", [*sql.MIGRATIONS, MADE_UP + "INSERT INTO colour SELECT run FROM job;"])
    with pytest.raises(
        Permanent, match=rf"it is intact, but it could not be upgraded to schema {NEXT}: UNIQUE constraint failed: colour\.name"
    ) as caught:
        Journal(old)
    assert caught.value.fault.code == "journal-upgrade"
    with closing(sqlite3.connect(old)) as raw:
        assert "\n".join(raw.iterdump()) == before
    assert version(old) == NOW
    monkeypatch.undo()
    Journal(old).close()


def test_processes_that_find_an_old_journal_at_once_bring_it_up_to_date_once(old: Path) -> None:
    with closing(sqlite3.connect(old, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")  # all of them see the old version, and then wait
        processes = [opened(old) for _ in range(3)]
        time.sleep(3)
        raw.execute("ROLLBACK")
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert version(old) == NEXT


def test_a_migration_that_is_cut_off_inside_sqlite_leaves_the_old_schema_and_is_done_by_the_next_start(  # R6.5
    old: Path, later: None
) -> None:
    """By a function that the statement after the migration's last one calls."""
    script = (
        "import os, signal, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.create_function('die', 0, lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "c.execute('PRAGMA cache_size = 1')\n"
        f"c.executescript('BEGIN IMMEDIATE;' + {MADE_UP!r} + ';PRAGMA user_version = {NEXT}; SELECT die(); COMMIT;')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(old)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert version(old) == NOW
    journal = Journal(old)
    assert journal.jobs.open_ids() == {"job"}
    journal.close()
    assert version(old) == NEXT


# What another version wrote into a journal of this schema


def test_a_message_that_nobody_was_named_for_goes_to_the_services_that_there_are_then_and_to_no_later_one(journal: Journal) -> None:
    outbox = journal.outbox
    outbox.announce("once", Notice("failed", "t", "b"))
    assert outbox.unaddressed() and outbox.due(0.0, 3600.0) == []
    assert outbox.adopt([Target("a", "notify.urls.0"), Target("b", "notify.urls.1")]) == []
    assert [(due.target, due.message.title) for due in outbox.due(0.0, 3600.0)] == [("a", "t"), ("b", "t")]
    assert outbox.adopt([Target("b", "notify.urls.0"), Target("c", "notify.urls.1")]) == [Dropped("notify.urls.0", 1)]
    assert [(due.target, due.message.title) for due in outbox.due(0.0, 3600.0)] == [("b", "t")]


def test_a_message_for_nobody_ends_with_a_word(journal: Journal) -> None:
    journal.outbox.announce("once", Notice("failed", "t", "b"))
    assert (journal.outbox.adopt([]), journal.outbox.pending()) == ([Dropped("nobody", 1)], 0)
    journal.outbox.adopt([Target("later", "notify.urls.0")])
    assert journal.outbox.due(0.0, 3600.0) == []


def test_a_journal_that_was_only_just_made_shows_nothing(file: Path) -> None:
    file.touch()
    assert (snapshot(file.parent).jobs, find(file.parent, "job")) == ((), [])
    with reading(file) as connection:
        assert seen_as(connection, "/runs") is None
    assert file.stat().st_size == 0


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
    assert journal.stages.of("job")["merge"].fault == fault and [row.fault for row in journal.attempts.of("job")] == [fault]
    journal.close()
    (job,) = find(old.parent, "job")
    assert (job.error, job.attempts[0].error) == (fault.sentence(), fault.sentence())
