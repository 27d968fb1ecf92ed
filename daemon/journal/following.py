"""What happened in the journal since the last look, for counters that begin with the daemon.

`Follower` reads and never writes. It knows rows by their numbers: what was entered after the last look has a larger one, and what was open
then is looked at again. A job that had ended may go on and end again between two looks: it has a newer attempt then, or a later end.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from daemon.journal.file.database import Database
from daemon.journal.legible import json_at
from daemon.journal.rows import now
from daemon.journal.states import ENDED_JOB

WRITTEN = "written"
"""Key of a checkpoint's metadata: when the last of its files was written, by its file system's clock; ISO 8601 in UTC."""


@dataclass(frozen=True)
class EndedAttempt:
    """An attempt that ended. `result` is what its stage's result is now, as JSON."""

    stage: str
    outcome: str
    result: str | None


@dataclass(frozen=True)
class EndedJob:
    """A job that ended. Seconds are None where one of the two times is not known."""

    state: str
    seconds: float | None
    """From the first start to the end."""
    since_written: float | None
    """From the last write of the checkpoint to the end; None too for one that was put back into the queue."""


@dataclass(frozen=True)
class News:
    """What happened between two looks."""

    attempts: tuple[EndedAttempt, ...] = ()
    waits: tuple[float, ...] = ()
    """Seconds from the entry of a job to the start of its first stage, of the jobs whose first stage started."""
    detections: tuple[float, ...] = ()
    """Seconds from the last write of a checkpoint to the entry of its job, of the jobs that were entered."""
    jobs: tuple[EndedJob, ...] = ()


@dataclass
class _Mark:
    """How the journal was at a look: its last rows, and those that had not ended."""

    attempt: int
    job: int
    ended: str
    """The latest end of a job."""
    attempts: frozenset[int] = frozenset()
    jobs: dict[int, bool] = field(default_factory=dict)
    """Row of an open job → whether it was put back into the queue after it had ended."""


class Follower:
    """Follows the journal. The first look only marks where it begins."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mark: _Mark | None = None
        self._since = ""
        """When it began. A checkpoint that was whole before was not there to be detected."""

    def look(self) -> News:
        """Return what happened since the last look. Raises what the journal raises, and the next look makes up for it."""
        return self._database.together(self._look)

    def _look(self) -> News:
        first = self._mark is None
        mark = self._mark or _Mark(self._last("attempt"), self._last("job"), self._last("job", "ended"))
        attempts, jobs = self._attempts(mark), self._jobs(mark)
        self._mark = _Mark(
            max([mark.attempt, *(row["number"] for row in attempts)]),
            max([mark.job, *(row["number"] for row in jobs)]),
            max([mark.ended, *(row["ended"] or "" for row in jobs)]),
            frozenset(row["number"] for row in attempts if row["outcome"] is None),
            {row["number"]: not first and _is_again(row, mark) for row in jobs if row["state"] not in ENDED_JOB},
        )
        if first:
            self._since = now()
            return News()
        entered = [row for row in jobs if row["number"] > mark.job and str(row["written"] or "") >= self._since]
        return News(
            tuple(EndedAttempt(row["stage"], row["outcome"], row["result"]) for row in attempts if row["outcome"] is not None),
            _known(_seconds(row["created"], row["started"]) for row in attempts if row["number"] > mark.attempt and row["is_first"]),
            _known(_seconds(row["written"], row["created"]) for row in entered),
            tuple(_ended(row, _is_again(row, mark)) for row in jobs if row["state"] in ENDED_JOB),
        )

    def _last(self, table: str, column: str = "rowid") -> Any:
        empty = "0" if column == "rowid" else "''"
        return self._database.read(f"SELECT COALESCE(max({column}), {empty}) FROM {table}")[0][0]

    def _attempts(self, mark: _Mark) -> list[sqlite3.Row]:
        return self._database.read(
            "SELECT attempt.rowid AS number, attempt.stage, attempt.outcome, attempt.started, stage.result, job.created,"
            " NOT EXISTS (SELECT 1 FROM attempt other WHERE other.job = attempt.job AND other.rowid < attempt.rowid) AS is_first"
            " FROM attempt JOIN stage ON stage.job = attempt.job AND stage.name = attempt.stage JOIN job ON job.id = attempt.job"
            " WHERE attempt.rowid > ? OR attempt.rowid IN (SELECT value FROM json_each(?)) OR attempt.outcome IS NULL",
            mark.attempt, json.dumps(list(mark.attempts)),
        )  # fmt: skip

    def _jobs(self, mark: _Mark) -> list[sqlite3.Row]:
        return self._database.read(
            f"SELECT rowid AS number, state, created, started, ended, {json_at('checkpoint', f'metadata.{WRITTEN}')} AS written FROM job"
            " WHERE rowid > ? OR rowid IN (SELECT value FROM json_each(?)) OR state IN ('pending', 'running')"
            " OR ended > ? OR id IN (SELECT job FROM attempt WHERE rowid > ?)",
            mark.job, json.dumps(list(mark.jobs)), mark.ended, mark.attempt,
        )  # fmt: skip


def _is_again(row: sqlite3.Row, mark: _Mark) -> bool:
    """Return whether a job had ended at an earlier look and was put back into the queue after it."""
    return mark.jobs.get(row["number"], bool(row["number"] <= mark.job))


def _ended(row: sqlite3.Row, again: bool) -> EndedJob:
    since_written = None if again else _seconds(row["written"], row["ended"])
    return EndedJob(row["state"], _seconds(row["started"], row["ended"]), since_written)


def _known(seconds: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in seconds if value is not None)


def _seconds(started: str | None, ended: str | None) -> float | None:
    """Return the seconds between two times of the journal; a clock that was set back between them makes it 0."""
    try:
        return max(0.0, (datetime.fromisoformat(str(ended)) - datetime.fromisoformat(str(started))).total_seconds())
    except (ValueError, TypeError):  # one of them is not there, or a hand wrote it without its zone
        return None
