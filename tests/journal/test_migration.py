"""A journal of the first schema is brought up to date with everything in it, at once or not at all."""

from __future__ import annotations

import importlib.resources
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from daemon.database import SCHEMA_VERSION
from daemon.journal import Journal
from daemon.status import snapshot
from tests.journal.conftest import STAGES, WORK, enter, reference


@pytest.fixture
def old(file: Path) -> Path:
    """A journal as version 1 left it: a running job with an attempt, a skipped checkpoint."""
    first = importlib.resources.files("daemon.sql").joinpath("0001.sql").read_text()
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
        (job,) = journal.open_jobs()
        assert (job.id, job.state, job.warnings, job.reason, job.untidy) == ("job", "running", (), None, False)
        assert list(journal.stages("job")) == list(STAGES)
        assert [attempt.number for attempt in journal.open_attempts()] == [1]
        assert (journal.seen("/skipped"), journal.places("job")) == ("s", {reference().path: "f"})
        assert enter(journal, "new", reference(digest="other"), warnings=["w"])
        ended = journal.job("job")
        assert ended is not None
        assert (ended.state, ended.reason, ended.untidy) == ("superseded", "superseded by new", True)
        journal.add_lost("/gone", "a", "b", 1.5)
    finally:
        journal.close()
    assert version(old) == SCHEMA_VERSION
    assert [row["path"] for row in snapshot(old.parent)["lost"]] == ["/gone"]


def test_the_status_of_an_old_journal_can_be_read_before_the_daemon_was_started_on_it(old: Path) -> None:  # R6.1
    value = snapshot(old.parent)
    assert [(job["id"], job["warnings"], job["error"]) for job in value["jobs"]] == [("job", [], None)]
    assert (value["lost"], version(old)) == ([], 1)


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
        "text = importlib.resources.files('daemon.sql').joinpath('0002.sql').read_text()\n"
        "c.execute('PRAGMA cache_size = 1')\n"
        "c.executescript('BEGIN IMMEDIATE;' + text + ';PRAGMA user_version = 2; SELECT die(); COMMIT;')\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script, str(old)], check=False, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == -signal.SIGKILL
    assert version(old) == 1
    journal = Journal(old)
    assert [job.id for job in journal.open_jobs()] == ["job"]
    journal.close()
    assert version(old) == SCHEMA_VERSION
