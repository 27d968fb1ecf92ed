"""The file itself: refused where it is not ours, readable beside its writer, sound after every crash."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from daemon.contract.faults.errors import Permanent, Retryable
from daemon.journal.file import opening
from daemon.journal.file.opening import reading
from daemon.journal.journal import Journal
from daemon.operating.monitoring.status import snapshot
from tests.journal.entries import enter
from tests.verbs import run_program

PROGRAM = """
import os, sys
from pathlib import Path
from daemon.journal.journal import Journal
from tests.journal.entries import enter
journal = Journal(Path(sys.argv[1]))
print("opened", flush=True)
enter(journal)
print("entered", flush=True)
journal.close()
"""


def child(file: Path, fault: str) -> subprocess.CompletedProcess[str]:
    """Enter a job in a process of its own that dies at the fault point."""
    return run_program(PROGRAM, file, CKPTD_FAULT=fault)


@pytest.mark.parametrize(("fault", "there"), [("before.add-job", False), ("after.add-job", True)])
def test_a_daemon_that_is_killed_has_entered_a_job_entirely_or_not_at_all(file: Path, fault: str, there: bool) -> None:  # R6.5
    done = child(file, fault)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "opened\n"), done.stderr
    journal = Journal(file)
    try:
        assert journal.jobs.open_ids() == ({"job"} if there else set())
        assert len(journal.stages.of("job")) == (4 if there else 0)
        assert enter(journal) is not there, "the same checkpoint comes in exactly once"
        assert len(journal.jobs.open_ids()) == 1
    finally:
        journal.close()


def kill_in_the_middle_of_a_commit(file: Path) -> None:
    """Leave a half-written database with the hot journal that undoes it, as a crash during a commit does."""
    script = (
        "import os, signal, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA cache_size = 1'); c.execute('BEGIN IMMEDIATE')\n"
        "c.executemany('INSERT INTO seen VALUES (?,?,?,?,?)', [(str(i), 'x' * 500, 'known', None, '') for i in range(2000)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(file)], check=False)
    assert file.with_name(file.name + "-journal").stat().st_size > 0


def test_a_commit_that_was_cut_off_is_undone_at_the_next_start(file: Path) -> None:  # R6.5
    journal = Journal(file)
    enter(journal)
    journal.close()
    kill_in_the_middle_of_a_commit(file)
    again = Journal(file)
    assert again.jobs.open_ids() == {"job"}
    assert again.sightings.fingerprint("0") is None
    again.close()


def test_the_state_can_be_read_before_the_daemon_is_started_again_after_such_a_crash(file: Path) -> None:  # R6.1
    journal = Journal(file)
    enter(journal)
    journal.close()
    kill_in_the_middle_of_a_commit(file)
    assert [job.id for job in snapshot(file.parent).jobs] == ["job"]


@pytest.mark.parametrize("damage", ["text", "page"])
def test_a_damaged_journal_is_refused_in_one_sentence_and_left_alone(file: Path, damage: str) -> None:
    journal = Journal(file)
    enter(journal)
    journal.close()
    if damage == "text":
        file.write_bytes(b"this is no database at all, whatever its name says. " * 100)
    else:
        with open(file, "r+b") as stream:
            stream.seek(4096)
            stream.write(b"\xff" * 4096 * 3)
    before = file.read_bytes()
    with pytest.raises(Permanent) as caught:
        Journal(file)
    assert caught.value.fault.code == "journal-damaged"
    assert str(caught.value).startswith(f"Could not open the journal ({file}): it is not a valid database: ")
    assert "Fix: start ckptd again; it sets the file aside" in str(caught.value)
    assert file.read_bytes() == before


def test_a_journal_that_is_only_locked_is_not_called_damaged(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows that advice loses a sound journal."""
    Journal(file).close()
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Retryable) as caught:
            Journal(file)
        other.execute("ROLLBACK")
    assert caught.value.fault.code == "journal-unavailable"


def test_a_reader_sees_the_last_commit_while_a_writer_is_in_the_middle_of_one(journal: Journal, file: Path) -> None:  # R6.1
    enter(journal)
    seen = []

    def look(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE job SET state = 'running'")
        with reading(file) as reader:
            seen.extend(reader.execute("SELECT state FROM job").fetchall())

    journal.database.write("look", look)
    assert [row[0] for row in seen] == ["pending"]
    with reading(file) as reader:
        assert reader.execute("SELECT state FROM job").fetchone()[0] == "running"
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("UPDATE job SET state = 'failed'")


def test_writing_goes_on_after_a_reader_that_held_the_file_for_too_long(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "BUSY_SECONDS", 0.1)
    journal = Journal(file)
    try:
        with closing(sqlite3.connect(file, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM job").fetchall()
            with pytest.raises(Retryable, match="another process has locked it for too long") as caught:
                journal.sightings.remember("/path", "f", "skipped")
            assert caught.value.fault.code == "journal-unavailable"
        journal.sightings.remember("/path", "g", "skipped")
        assert journal.sightings.fingerprint("/path") == "g"
    finally:
        journal.close()


@pytest.mark.parametrize("name", ["with space", "50%20off", "a#b", "a?b"])
def test_a_folder_of_any_name_can_be_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / "journal.sqlite3"
    file.parent.mkdir()
    journal = Journal(file)
    enter(journal)
    journal.close()
    assert [job.id for job in snapshot(file.parent).jobs] == ["job"]


def test_a_folder_without_a_journal_has_no_jobs(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), reading(tmp_path / "journal.sqlite3"):
        pass
    assert snapshot(tmp_path).jobs == ()
