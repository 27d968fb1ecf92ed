"""What the journal is put through: the life of a job in eight transactions, in a process that the fault layer watches."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import CkptdError, Fault
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.journal.attempts import Intent
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId, Notice
from tests.faults.forks import tell
from tests.journal.entries import enter, reference

FAULT = Fault(code="c", operation="o", cause="because", remedy="r")


def claim(journal: Journal, number: int) -> None:
    journal.attempts.claim(Intent(AttemptId("job", "merge", number), Path("/attempt"), Path("/staging"), 5))


def settle(journal: Journal, number: int, result: StageResult, state: str) -> None:
    journal.attempts.settle(AttemptId("job", "merge", number), result, state=state)


STEPS: list[tuple[str, Callable[[Journal], object]]] = [
    ("enter", lambda journal: enter(journal)),
    ("start", lambda journal: journal.jobs.start("job", Path("/base"))),
    ("claim 1", lambda journal: claim(journal, 1)),
    ("spawned", lambda journal: journal.attempts.started(AttemptId("job", "merge", 1), "local:77:1.5")),
    ("settle 1", lambda journal: settle(journal, 1, StageResult(outcome=Outcome.RETRYABLE, fault=FAULT), "waiting")),
    ("claim 2", lambda journal: claim(journal, 2)),
    ("settle 2", lambda journal: settle(journal, 2, StageResult(outcome=Outcome.SUCCEEDED, warnings=("w" * 9000,)), "succeeded")),
    ("enter another", lambda journal: enter(journal, "another", reference(5))),
    ("finish", lambda journal: journal.jobs.finish("job", "succeeded", Notice("succeeded", "title", "body"))),
]


def state(file: Path) -> list[Any]:
    """All that the steps change, without moments of time; after the file was found sound."""
    with closing(sqlite3.connect(file)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
        if raw.execute("PRAGMA user_version").fetchone() == (0,):
            assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,), "half a schema"
        return [
            [list(row) for row in raw.execute(query)]
            for query in (
                "SELECT id, state, base FROM job ORDER BY id",
                "SELECT job, name, state, attempts, failures, folder, length(result), fault FROM stage ORDER BY job, position",
                "SELECT job, stage, number, outcome, executor_id, fault FROM attempt ORDER BY job, stage, number",
                "SELECT job, kind, title, state FROM outbox ORDER BY id",
                "SELECT path, fingerprint, verdict, job FROM seen ORDER BY path",
            )
        ]


def prepare(file: str) -> None:
    Journal(Path(file)).close()


def opening(file: str, tries: int) -> None:
    """Make the journal, its migrations included; tells what was refused."""
    for _ in range(tries):
        try:
            Journal(Path(file)).close()
            return tell("opened")
        except CkptdError as error:
            tell({"step": "open", "said": str(error), "code": error.fault.code})


def life(file: str, tries: int) -> None:
    """Every step, each tried so many times; ends with the first that never succeeds. Tells what was done and refused."""
    journal = Journal(Path(file))
    try:
        for name, step in STEPS:
            if not _try(journal, name, step, tries):
                return
    finally:
        journal.close()


def _try(journal: Journal, name: str, step: Callable[[Journal], object], tries: int) -> bool:
    for _ in range(tries):
        try:
            step(journal)
            tell(name)
            return True
        except CkptdError as error:
            tell({"step": name, "said": str(error), "code": error.fault.code})
    return False
