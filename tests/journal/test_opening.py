"""A journal in any state is opened, or set aside and rebuilt: never a traceback, never a silent loss."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from daemon.config.places.paths import Paths, prepare
from daemon.contract.faults.errors import Permanent, UsageError
from daemon.journal.file import backups
from daemon.journal.file.database import Database
from daemon.journal.file.opening import CHECKED_AT_OPEN
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.journal.sql import schema_version
from daemon.operating.integrity.maintenance import JournalMaintenance, open_journal, rebuilt_state
from tests.journal.entries import STAGES, WORK, reference
from tests.journal.test_file import kill_in_the_middle_of_a_commit
from tests.sampling import some
from tests.verbs import run_program

ROOT = Path(__file__).parents[2]
JOBS = ("first", "second")


def fill(paths: Paths) -> None:
    """Two open jobs with pins, as a daemon that was stopped leaves them."""
    journal = Journal(paths.journal)
    for step, job in enumerate(JOBS, 1):
        pin = paths.pins / job
        pin.mkdir()
        (pin / "adapter_config.json").write_text("{}")
        assert journal.jobs.add(NewJob(job, reference(step, digest=job), WORK, STAGES, pin, paths.output / job, job))
    journal.close()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = prepare(tmp_path / "state", tmp_path / "exports")
    fill(made)
    return made


def back_up(paths: Paths) -> Path:
    database = Database(paths.journal)
    target = backups.fresh_name(paths.backups)
    database.backup(target)
    database.close()
    return target


def looked_at(paths: Paths) -> tuple[list[str], dict[str, Any] | None]:
    """Open jobs and how the journal came back, as the next start finds them."""
    journal = open_journal(paths)
    try:
        assert journal.database.check(full=True) == []
        return sorted(journal.jobs.open_ids()), rebuilt_state(journal.database)
    finally:
        journal.close()


def aside(paths: Paths) -> list[Path]:
    return sorted(paths.state.glob("journal.damaged-*.sqlite3"))


def _header(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.write(b"\0" * 100)


def _middle(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xff" * 4096 * 3)


def _half(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _empty(file: Path) -> None:
    os.truncate(file, 0)


def _garbage(file: Path) -> None:
    file.write_bytes(bytes(range(7, 250)) * 300)


def _deleted(file: Path) -> None:
    file.unlink()


DAMAGES = [_header, _middle, _half, _empty, _garbage, _deleted]


@pytest.mark.parametrize("damage", some(DAMAGES, of=2))
def test_a_damaged_journal_is_set_aside_and_its_backup_takes_its_place(paths: Paths, damage: Callable[[Path], None]) -> None:  # R6.5
    back_up(paths)
    damage(paths.journal)
    bad = paths.journal.read_bytes() if paths.journal.exists() else None
    with capture_logs() as logs:
        jobs, told = looked_at(paths)
    assert jobs == sorted(JOBS)
    assert told is not None and told["from"] == "backup" and told["jobs"] == {"open": 2, "ended": 0}
    assert [record["code"] for record in logs if record["log_level"] == "critical"] == ["journal-rebuilt"]
    assert [path.read_bytes() for path in aside(paths)] == ([] if bad is None else [bad]), "what was damaged is kept as it was"
    assert told["set_aside"] == (str(aside(paths)[0]) if bad is not None else None)
    with capture_logs() as logs:
        assert looked_at(paths) == (jobs, told), "once is enough"
    assert logs == []


@pytest.mark.parametrize("damage", some(reversed(DAMAGES), of=2))
def test_without_a_backup_it_is_rebuilt_from_disk_and_says_so(paths: Paths, damage: Callable[[Path], None]) -> None:
    damage(paths.journal)
    jobs, told = looked_at(paths)
    assert jobs == [] and told is not None and told["from"] == "disk"


def test_a_damaged_backup_is_passed_over_for_an_older_sound_one(paths: Paths) -> None:
    back_up(paths)
    _middle(back_up(paths))
    _garbage(paths.journal)
    with capture_logs() as logs:
        assert looked_at(paths)[0] == sorted(JOBS)
    assert [record["event"] for record in logs if record["log_level"] == "error"] == ["a backup of the journal is not valid"]


def test_a_fresh_state_directory_is_no_lost_journal(tmp_path: Path) -> None:
    fresh = prepare(tmp_path / "other", tmp_path / "exports")
    with capture_logs() as logs:
        assert looked_at(fresh) == ([], None)
    assert logs == []


def test_a_second_damage_is_set_aside_beside_the_first(paths: Paths) -> None:
    back_up(paths)
    for _ in range(2):
        _garbage(paths.journal)
        assert looked_at(paths)[0] == sorted(JOBS)
    assert len(aside(paths)) == 2


def test_a_newer_journal_is_refused_and_neither_set_aside_nor_rebuilt(paths: Paths) -> None:
    with closing(sqlite3.connect(paths.journal)) as raw:
        raw.execute("CREATE TABLE future (a)")
        raw.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match="another version of ckptd wrote it"):
        open_journal(paths)
    assert aside(paths) == []


def test_a_wrong_version_number_in_a_journal_that_is_otherwise_ours_is_damage(paths: Paths) -> None:
    back_up(paths)
    for version in (0, schema_version() + 1, 6, 99, -5):
        with closing(sqlite3.connect(paths.journal)) as raw:
            raw.execute(f"PRAGMA user_version = {version}")
        assert looked_at(paths)[0] == sorted(JOBS)
    assert len(aside(paths)) == 5


def test_a_hot_rollback_journal_of_a_killed_writer_is_played_back_not_thrown_away(paths: Paths) -> None:
    kill_in_the_middle_of_a_commit(paths.journal)
    assert looked_at(paths) == (sorted(JOBS), None)
    assert aside(paths) == []


def test_a_stale_rollback_journal_cannot_reach_the_new_file(paths: Paths) -> None:
    """It belongs to the damaged file: beside another one SQLite would write its old pages into that."""
    back_up(paths)
    journal = Journal(paths.journal)
    for step in range(10, 60):
        journal.jobs.add(NewJob(f"later-{step}", reference(step), WORK, STAGES, paths.pins / "first", paths.output, str(step)))
    journal.close()
    kill_in_the_middle_of_a_commit(paths.journal)
    stale = paths.journal.with_name("journal.sqlite3-journal")
    assert stale.stat().st_size > 0
    paths.journal.unlink()
    jobs, told = looked_at(paths)
    assert (jobs, stale.exists(), told is not None) == (sorted(JOBS), False, True)


def test_a_rebuilding_that_was_begun_is_ended_even_if_the_damage_can_no_longer_be_seen(paths: Paths) -> None:
    """The damaged file may have lost its rollback journal by then: whole to look at, and half a commit in it."""
    back_up(paths)
    paths.suspect.write_text(json.dumps({"why": "page 7 was damaged", "rebuilding": "token"}))
    _, told = looked_at(paths)
    assert told is not None and (told["why"], told["token"]) == ("page 7 was damaged", "token")
    assert len(aside(paths)) == 1


HEAL = """
import sys
from pathlib import Path
from daemon.operating.integrity.maintenance import open_journal
from daemon.config.places.paths import prepare
open_journal(prepare(Path(sys.argv[1]), Path(sys.argv[2]))).close()
"""


def run_child(program: str, *arguments: Path, fault: str = "", check: bool = False) -> subprocess.CompletedProcess[str]:
    done = run_program(program, *arguments, CKPTD_FAULT=fault)
    if check:
        done.check_returncode()
    return done


@pytest.mark.parametrize("damage", some([_garbage, _deleted], of=2))
@pytest.mark.parametrize(
    "fault",
    [
        "journal-rebuild.marked",
        "journal-rebuild.set-aside",
        "before.rebuild",
        "after.rebuild",
        "journal-rebuild.built",
        "journal-rebuild.renamed",
    ],
)
def test_a_rebuilding_that_is_killed_anywhere_is_done_by_the_next_start(  # R6.5
    paths: Paths, fault: str, damage: Callable[[Path], None]
) -> None:
    back_up(paths)
    damage(paths.journal)
    done = run_child(HEAL, paths.state, paths.output, fault=fault)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert json.loads(paths.suspect.read_text())["rebuilding"]
    jobs, told = looked_at(paths)
    assert jobs == sorted(JOBS) and told is not None and told["from"] == "backup"
    assert len(aside(paths)) == (0 if damage is _deleted else 1)
    left = sorted(path.name for path in paths.state.iterdir() if path.name.startswith("journal"))
    assert left == sorted(["journal.sqlite3", *(path.name for path in aside(paths))])


def in_another_process(file: Path, change: str) -> None:
    """Write into the file as a failing disk would; opening it in this process would drop SQLite's locks."""
    run_child(f"import sys; stream = open(sys.argv[1], 'r+b'); {change}; stream.close()", file, check=True)


def enlarge(paths: Paths) -> None:
    """Make the journal too large to be checked entirely when it is opened."""
    with closing(sqlite3.connect(paths.journal)) as raw:
        raw.execute("INSERT INTO control (name, value, at) VALUES ('large', hex(zeroblob(?)), '')", (CHECKED_AT_OPEN // 2 + 4096,))
        raw.commit()


def test_damage_that_is_found_while_the_daemon_works_is_mended_by_the_next_start(paths: Paths) -> None:
    """An index that lost its entries: too deep for what a start looks at in a large file, so the finding outlives the process."""
    enlarge(paths)
    back_up(paths)
    journal = open_journal(paths)
    page = journal.database.read("SELECT rootpage FROM sqlite_master WHERE name = 'seen_by_job'")[0][0]
    in_another_process(paths.journal, f"stream.seek({(page - 1) * 4096}); stream.write(b'\\x0a\\0\\0\\0\\0\\x10\\0\\0')")
    maintenance = JournalMaintenance(journal.database, paths)
    with capture_logs() as logs:
        maintenance.check_integrity()
        maintenance.check_integrity()
    assert [record["code"] for record in logs] == ["journal-damaged"], "said loudly, once"
    assert maintenance.state().problem == maintenance.problem and "restart ckptd" in str(maintenance.problem)
    journal.close()
    jobs, told = looked_at(paths)
    assert jobs == sorted(JOBS) and told is not None and told["from"] == "backup"


def test_damage_that_a_query_runs_into_is_mended_by_the_next_start(paths: Paths) -> None:
    enlarge(paths)
    back_up(paths)
    with closing(sqlite3.connect(paths.journal)) as raw:
        page = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'lost'").fetchone()[0]
    with open(paths.journal, "r+b") as stream:
        stream.seek((page - 1) * 4096)
        stream.write(b"\xff" * 4096)
    journal = open_journal(paths)
    with pytest.raises(Permanent) as caught:
        journal.sightings.add_lost("/gone", "a", "b", 1.0)
    assert caught.value.fault.code == "journal-damaged"
    journal.close()
    jobs, told = looked_at(paths)
    assert jobs == sorted(JOBS) and told is not None and told["from"] == "backup"


def test_a_suspicion_that_proves_wrong_costs_nothing(paths: Paths) -> None:
    paths.suspect.write_text("no JSON at all")
    assert looked_at(paths) == (sorted(JOBS), None)
    assert not paths.suspect.exists()


@dataclass(frozen=True)
class Sound:
    """A sound journal with a backup, and its bytes."""

    paths: Paths
    contents: bytes = field(repr=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    home = tmp_path_factory.mktemp("flips")
    made = prepare(home / "state", home / "exports")
    fill(made)
    back_up(made)
    return Sound(made, made.journal.read_bytes())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@example(place=0.0, flip=1)
def test_no_single_wrong_byte_gives_a_traceback_or_a_silent_loss(small: Sound, place: float, flip: int) -> None:
    made, sound = small.paths, small.contents
    broken = bytearray(sound)
    broken[int(place * len(sound))] ^= flip
    made.journal.write_bytes(broken)
    try:
        jobs, told = looked_at(made)
        assert jobs == sorted(JOBS)
        assert len(aside(made)) == (told is not None)
        assert [path.read_bytes() for path in aside(made)] in ([], [bytes(broken)])
    finally:
        for path in aside(made):
            path.unlink()
