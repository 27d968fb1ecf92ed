"""Writes that wait at the same time are one transaction: durable together, and each with an answer of its own."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from daemon.journal.journal import Journal
from tests.journal.conftest import enter, reference

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
    root = Path(__file__).parents[2]
    environment = {**os.environ, "CKPTD_FAULT": point, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], env=environment, check=False, cwd=root)
    assert done.returncode == -signal.SIGKILL
    journal = Journal(file)
    assert len(journal.jobs.open_ids()) == (COUNT if there else 0)
    assert [write() for write in entries(journal)] == [not there] * COUNT, "each comes in exactly once"
    assert len(journal.jobs.open_ids()) == COUNT
    journal.close()
