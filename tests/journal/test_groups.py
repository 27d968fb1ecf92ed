"""Writes that wait at the same time are one transaction: durable together, and each with an answer of its own."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.faults.errors import Retryable
from daemon.journal.journal import Journal
from tests.journal.entries import enter, reference
from tests.verbs import run_program

COUNT = 5


def side_by_side(journal: Journal, writes: list[Callable[[], Any]]) -> list[Any]:
    """What each of the writes gives, or the error that it raises; all of them wait while another one is done."""
    begun, go_on = threading.Event(), threading.Event()

    def block(c: sqlite3.Connection) -> None:
        begun.set()
        assert go_on.wait(60)

    with ThreadPoolExecutor(len(writes) + 1) as pool:
        pool.submit(journal.database.write, "block", block)
        assert begun.wait(60)
        futures = [pool.submit(write) for write in writes]
        while len(journal.database._groups.waiting) < len(writes):
            threading.Event().wait(0.01)
        go_on.set()
        return [future.exception() or future.result() for future in futures]


def entries(journal: Journal, count: int = COUNT) -> list[Callable[[], Any]]:
    return [lambda step=step: enter(journal, f"job-{step}", reference(step, run=f"run-{step}", digest=f"d{step}")) for step in range(count)]


def test_writes_that_wait_together_share_one_commit(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, trace = Journal(file), tmp_path / "trace"
    monkeypatch.setenv("CKPTD_FAULT_TRACE", str(trace))
    assert side_by_side(journal, entries(journal)) == [True] * COUNT
    passed = trace.read_text().splitlines()[2:]
    assert passed == ["before.add-job"] * COUNT + ["journal.within-group"] * (COUNT - 1) + ["after.add-job"] * COUNT
    journal.close()
    again = Journal(file)
    assert again.jobs.open_ids() == {f"job-{step}" for step in range(COUNT)}
    again.close()


def test_of_writes_that_wait_together_one_that_fails_fails_alone(file: Path) -> None:
    journal = Journal(file)

    def fail(c: sqlite3.Connection) -> None:
        c.execute("DELETE FROM job")
        raise ValueError("this one")

    writes = entries(journal)
    writes.insert(2, lambda: journal.database.write("fail", fail))
    answers = side_by_side(journal, writes)
    assert isinstance(answers.pop(2), ValueError)
    assert answers == [True] * COUNT
    assert journal.jobs.open_ids() == {f"job-{step}" for step in range(COUNT)}
    assert enter(journal), "it goes on"
    journal.close()


def test_a_thread_that_dies_within_a_group_has_done_none_of_it(file: Path) -> None:
    journal = Journal(file)

    def die(c: sqlite3.Connection) -> None:
        raise SystemExit

    writes = entries(journal)
    writes.insert(2, lambda: journal.database.write("die", die))
    answers = side_by_side(journal, writes)
    assert [type(answer) for answer in answers] == [Retryable] * (COUNT + 1)
    assert journal.jobs.open_ids() == set()
    assert [write() for write in entries(journal)] == [True] * COUNT
    journal.close()


def test_a_thread_that_dies_after_the_commit_leaves_the_others_their_answers(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, passed = Journal(file), list[str]()

    def point(name: str) -> None:
        passed.append(name)
        if name == "after.add-job":
            raise SystemExit

    monkeypatch.setattr("daemon.contract.disk.failpoints.point", point)
    answers = side_by_side(journal, entries(journal))
    assert sorted(map(str, (answer for answer in answers if answer is True))) == ["True"] * (COUNT - 1)
    assert len(journal.jobs.open_ids()) == COUNT and passed.count("before.add-job") == COUNT
    journal.close()


def test_a_reader_that_keeps_the_file_is_waited_for_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.journal.file.opening.BUSY_SECONDS", 0.2)
    journal, passed = Journal(file), list[str]()
    monkeypatch.setattr("daemon.contract.disk.failpoints.point", passed.append)
    with closing(sqlite3.connect(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM job").fetchone()
        answers = side_by_side(journal, entries(journal))
        assert [type(answer) for answer in answers] == [Retryable] * COUNT
        assert passed.count("before.add-job") == COUNT
    assert [write() for write in entries(journal)] == [True] * COUNT
    journal.close()


def test_a_write_within_a_write_is_refused_and_undoes_both(file: Path) -> None:
    journal = Journal(file)

    def outer(c: sqlite3.Connection) -> None:
        c.execute("INSERT INTO control (name, value, at) VALUES ('outer', '1', 'then')")
        journal.controls.pause_all(True)

    with pytest.raises(RuntimeError, match="within another write"):
        journal.database.write("outer", outer)
    assert journal.controls.paused_since() is None
    assert journal.database.read("SELECT * FROM control WHERE name = 'outer'") == []
    assert journal.database.together(lambda: enter(journal)), "outside of a transaction that thread may write too"
    journal.close()


PROGRAM = """
import sys
from pathlib import Path
from daemon.journal.journal import Journal
from tests.journal.test_groups import entries, side_by_side
journal = Journal(Path(sys.argv[1]))
side_by_side(journal, entries(journal))
"""


@pytest.mark.parametrize(("point", "there"), [("before.add-job", False), ("journal.within-group", False), ("after.add-job", True)])
def test_a_daemon_that_is_killed_has_entered_all_that_were_committed_together_or_none(file: Path, point: str, there: bool) -> None:
    done = run_program(PROGRAM, file, CKPTD_FAULT=point)
    assert done.returncode == -signal.SIGKILL
    journal = Journal(file)
    assert len(journal.jobs.open_ids()) == (COUNT if there else 0)
    assert [write() for write in entries(journal)] == [not there] * COUNT, "each comes in exactly once"
    assert len(journal.jobs.open_ids()) == COUNT
    journal.close()
