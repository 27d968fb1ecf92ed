"""The file while it is in use: locked, full, read-only, deleted, replaced, backed up, read by others at the same time."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.config.places.paths import Paths, prepare
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.journal.file import backups
from daemon.journal.file.database import Database
from daemon.journal.file.opening import reading
from daemon.journal.journal import Journal
from daemon.operating.integrity.maintenance import BACKUPS, JournalMaintenance
from tests.journal.entries import enter

ROOT = Path(__file__).parents[2]
HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN " + sys.argv[2])
connection.execute("SELECT count(*) FROM job").fetchall()
print("held", flush=True)
time.sleep(float(sys.argv[3]))
connection.execute("ROLLBACK")
"""
PAIRS = """
import select, sys
from pathlib import Path
from daemon.journal.file.database import Database
database = Database(Path(sys.argv[1]))
number = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    number += 1
    def pair(c):
        for name in ("left", "right"):
            c.execute("INSERT OR REPLACE INTO control VALUES (?,?,?)", (name, str(number), "x" * 50))
        c.execute("INSERT INTO lost (path, first_seen, last_seen, lived, at) VALUES (?,'','',1.0,?)", (str(number), "x" * 3000))
    database.write("pair", pair)
    if number == 10:
        print("open", flush=True)
print(number, flush=True)
"""


@contextmanager
def child(program: str, *arguments: object, fault: str = "") -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "CKPTD_FAULT": fault, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def finished(process: subprocess.Popen[str]) -> str:
    """The last line of a child that goes on until its input ends."""
    return process.communicate(timeout=120)[0].strip()


@pytest.mark.parametrize("kind", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_lock_of_another_process_is_waited_for(journal: Journal, file: Path, kind: str) -> None:
    with child(HOLD, file, kind, 0.5) as process:
        assert line(process) == "held"
        assert enter(journal)


def test_a_lock_that_is_held_for_too_long_is_said_and_the_next_write_works(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.journal.file.opening.BUSY_SECONDS", 0.2)
    journal = Journal(file)
    with child(HOLD, file, "EXCLUSIVE", 600) as process:
        assert line(process) == "held"
        for attempt in (lambda: enter(journal), lambda: journal.sightings.fingerprint("/x"), lambda: Journal(file)):
            with pytest.raises(Retryable) as caught:
                attempt()
            assert caught.value.fault.code == "journal-unavailable"
            assert "another process has locked it for too long" in str(caught.value)
            assert str(caught.value).count(". Fix: ") == 1
    assert enter(journal)
    journal.close()


def test_readers_and_a_writer_side_by_side_all_get_on_and_see_whole_commits(file: Path) -> None:  # R6.1
    Journal(file).close()
    with child(PAIRS, file) as process:
        assert line(process) == "open"
        waits, seen = [], []
        while len(waits) < 10 or len(set(seen)) < 5:
            began = time.monotonic()
            with reading(file) as reader:
                rows = reader.execute("SELECT value FROM control ORDER BY name").fetchall()
            waits.append(time.monotonic() - began)
            assert len({row[0] for row in rows}) == 1, "half a commit"
            seen.append(int(rows[0][0]))
        assert seen == sorted(seen) and seen[-1] <= int(finished(process))
    assert max(waits) < 10, "a reader waits for a commit, not for the writer to be idle"


def test_a_backup_while_work_goes_on_is_whole_and_holds_whole_commits(file: Path, tmp_path: Path) -> None:
    Journal(file).close()
    database = Database(file)
    with child(PAIRS, file) as process:
        assert line(process) == "open"
        for made in range(3):
            target = tmp_path / "backups" / f"{made}.sqlite3"
            database.backup(target)
            with closing(sqlite3.connect(target)) as copy:
                assert copy.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
                values = dict(copy.execute("SELECT name, value FROM control").fetchall())
                count = copy.execute("SELECT count(*) FROM lost").fetchone()[0]
                assert values["left"] == values["right"] == str(count)
        assert int(finished(process)) >= count >= 10
    database.close()


def test_a_backup_that_writers_keep_interrupting_is_taken_in_one_go(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "STEP_PAGES", 1)
    monkeypatch.setattr(backups, "PATIENCE", 1.0)
    journal = Journal(file)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            journal.sightings.add_lost("/x", "a", "b", 1.0)
            time.sleep(0.01)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        journal.database.backup(tmp_path / "copy.sqlite3")
    finally:
        stop.set()
        thread.join()
    journal.close()
    copy = Journal(tmp_path / "copy.sqlite3")
    assert copy.database.check(full=True) == []
    copy.close()


BACKUP = """
import sys
from pathlib import Path
from daemon.journal.file.database import Database
Database(Path(sys.argv[1])).backup(Path(sys.argv[2]))
"""


@pytest.mark.parametrize("fault", ["backup.copied", "backup.checked", "backup.renamed"])
def test_a_backup_that_is_killed_is_there_whole_or_not_at_all(journal: Journal, file: Path, tmp_path: Path, fault: str) -> None:
    enter(journal)
    target = backups.fresh_name(tmp_path / "backups")
    with child(BACKUP, file, target, fault=fault) as process:
        assert process.wait() == -signal.SIGKILL
    assert backups.listed(tmp_path / "backups") == ([target] if fault == "backup.renamed" else [])
    assert journal.jobs.open_ids() == {"job"}
    for left in (tmp_path / "backups").glob(".*"):
        os.utime(left, (0, 0))
    backups.rotate(tmp_path / "backups", 3)
    assert list((tmp_path / "backups").glob(".*")) == []


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return prepare(tmp_path / "state", tmp_path / "exports")


def test_backups_rotate_and_the_newest_stay(paths: Paths) -> None:
    journal = Journal(paths.journal)
    maintenance = JournalMaintenance(journal.database, paths)
    names = []
    for _ in range(5):
        maintenance.back_up()
        names = [*names, *(path for path in backups.listed(paths.backups) if path not in names)]
    assert len(names) == 5
    assert backups.listed(paths.backups) == sorted(names, reverse=True)[:BACKUPS]
    assert maintenance.problem is None and maintenance.backed_up is not None
    maintenance.check_integrity()
    assert maintenance.checked is not None
    journal.close()


def test_a_backup_leaves_the_free_space_alone_that_is_reserved_and_keeps_the_old_ones(paths: Paths) -> None:
    journal = Journal(paths.journal)
    JournalMaintenance(journal.database, paths).back_up()
    before = backups.listed(paths.backups)
    greedy = JournalMaintenance(journal.database, paths, reserve=1 << 60)
    with capture_logs() as logs:
        greedy.back_up()
        greedy.back_up()
    assert backups.listed(paths.backups) == before
    assert [record["log_level"] for record in logs] == ["error"], "said once"
    assert "limits.disk_reserve reserves" in str(greedy.state().problem)
    journal.close()


def test_what_keeps_the_journal_from_its_care_is_shown_and_over_when_it_is_over(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(paths.journal)
    maintenance = JournalMaintenance(journal.database, paths)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with capture_logs() as logs, monkeypatch.context() as inner:
        inner.setattr(Database, "check", fail)
        inner.setattr(Database, "backup", fail)
        for _ in range(2):
            maintenance.check_integrity()
            maintenance.back_up()
    said = ["Could not check the journal: RuntimeError: a bug.", "Could not back the journal up: RuntimeError: a bug."]
    assert [record["event"] for record in logs] == said and maintenance.problem == said[0]
    maintenance.check_integrity()
    assert maintenance.state().problem == said[1]
    maintenance.back_up()
    assert maintenance.state().problem is None
    journal.close()


def test_a_journal_that_is_deleted_while_it_is_open_is_put_back_with_everything_in_it(file: Path) -> None:  # R6.5
    journal = Journal(file)
    enter(journal, "before")
    file.unlink()
    assert journal.database.check(full=True) == ["its file was deleted while it was open (No such file or directory)"]
    with capture_logs() as logs:
        journal.sightings.remember("/path", "f", "skipped")
    assert [(record["log_level"], record["code"]) for record in logs] == [("critical", "journal-gone")]
    journal.close()
    again = Journal(file)
    assert again.jobs.open_ids() == {"before"}
    assert again.sightings.fingerprint("/path") == "f"
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    again.close()


def test_nothing_is_written_to_a_journal_in_whose_place_another_file_was_put(journal: Journal, file: Path) -> None:
    enter(journal)
    moved = file.rename(file.with_name("moved"))
    Journal(file).close()
    with pytest.raises(Permanent) as caught:
        journal.sightings.remember("/path", "f", "skipped")
    assert caught.value.fault.code == "journal-gone"
    assert journal.database.check(full=False) == ["its file was replaced while it was open"]
    file.unlink()
    moved.rename(file)
    journal.sightings.remember("/path", "f", "skipped")
    assert journal.sightings.fingerprint("/path") == "f"


TMPFS = """
import subprocess, sys
from pathlib import Path
from daemon.contract.faults.errors import Retryable
from daemon.journal.journal import Journal
from tests.journal.entries import enter
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], check=True)
journal = Journal(folder / "journal.sqlite3")
assert enter(journal)
faults = []
if sys.argv[2] == "full":
    filler = open(folder / "filler", "wb", buffering=0)
    try:
        while filler.write(b"x" * 4096) == 4096:
            pass
    except OSError:
        pass
else:
    journal.close()  # the kernel refuses while a file is open for writing
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    journal = Journal(folder / "journal.sqlite3")
for number in range(3):
    try:
        journal.sightings.remember("/path" + "x" * 60_000, "f", "skipped")
    except Retryable as error:
        faults.append(error.fault.code)
assert faults == ["journal-unavailable"] * 3, faults
assert journal.jobs.open_ids() == {"job"}, "reads go on"
if sys.argv[2] == "full":
    filler.truncate(0)
else:
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
journal.sightings.remember("/path", "f", "skipped")
assert journal.sightings.fingerprint("/path") == "f"
assert journal.database.check(full=True) == []
journal.close()
print("sound")
"""


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_disk_that_takes_no_writes_for_a_while_costs_nothing_but_the_while(tmp_path: Path, trouble: str) -> None:  # R6.2
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to make a mount namespace")
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", TMPFS, str(tmp_path), trouble], capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "sound\n", done.stderr[-3000:]
