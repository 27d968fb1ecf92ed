"""The journal's attempts: intent before a child exists, the outcome after it ended, and what it took.

A part of `daemon.journal.journal.Journal`; each method is one transaction. Called by the runner, and by recovery at the start.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.contract.formats.stages import ModelSize
from daemon.contract.jobs.messages import AttemptFacts, Outcome, StageFacts, StageResult
from daemon.contract.light import dataclass
from daemon.journal.file.database import Database
from daemon.journal.rows import AttemptId, AttemptRow, Columns, JobRow, StageRow, fault_of, now
from daemon.journal.stages import Ended, close_stage

if TYPE_CHECKING:
    from daemon.contract.jobs.messages import JobFacts

MEASUREMENTS = 200
"""Measurements kept for each stage; estimates learn from the newest."""


@dataclass(frozen=True)
class Measured:
    """What an attempt that succeeded really took. Bytes and seconds."""

    size: ModelSize
    peak: int
    written: int
    seconds: float


@dataclass(frozen=True)
class Intent:
    """An attempt that is about to be started."""

    attempt: AttemptId
    folder: Path
    """Where its job file, result and log lie."""
    staging: Path
    """Where it writes its output."""
    estimate: int
    """Memory that it is expected to take, in bytes."""
    strategy: str = "default"
    key: str | None = None
    """Digest of all that determines its output."""


class Attempts:
    """Transactions on the tables `attempt` and `measured`, and on the stage that an attempt is of."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, job: str) -> list[AttemptRow]:
        """All attempts of a job, oldest first."""
        rows = self._database.read("SELECT * FROM attempt WHERE job = ? ORDER BY started, number", job)
        return [attempt_of(row) for row in rows]

    def facts(self, job: JobRow, stages: Mapping[str, StageRow]) -> JobFacts:
        """The job with its stages, and all their attempts."""
        return _facts(job, stages.values(), self.of(job.id))

    def get(self, attempt: AttemptId) -> AttemptRow:
        """One attempt. Raises LookupError where there is none."""
        rows = self._database.read(
            "SELECT * FROM attempt WHERE job = ? AND stage = ? AND number = ?", attempt.job, attempt.stage, attempt.number
        )
        if not rows:
            raise LookupError(f"attempt {attempt.number} of {attempt.stage} of {attempt.job}")
        return attempt_of(rows[0])

    def open(self) -> list[AttemptRow]:
        """Attempts that began and have no outcome: those of a daemon that died."""
        return [attempt_of(row) for row in self._database.read("SELECT * FROM attempt WHERE outcome IS NULL")]

    def claim(self, intent: Intent) -> AttemptRow | None:
        """waiting → running: the intent, with the attempt counted, before a child exists.

        None, and nothing is recorded, where somebody ended or paused the job meanwhile.
        """
        job, stage, number = intent.attempt.job, intent.attempt.stage, intent.attempt.number
        row = AttemptRow(job, stage, number, intent.strategy, None, intent.folder, intent.staging, intent.estimate, None, now(), None, None)

        def claim(c: sqlite3.Connection) -> AttemptRow | None:
            if not c.execute("SELECT 1 FROM job WHERE id = ? AND state = 'running' AND paused = 0", (job,)).fetchone():
                return None
            c.execute(
                "UPDATE stage SET state = 'running', attempts = ?, fault = NULL, key = ? WHERE job = ? AND name = ?",
                (number, intent.key, job, stage),
            )
            c.execute(
                "INSERT INTO attempt (job, stage, number, strategy, folder, staging, estimate, started) VALUES (?,?,?,?,?,?,?,?)",
                (job, stage, number, row.strategy, str(row.folder), str(row.staging), row.estimate, row.started),
            )
            return row

        return self._database.write("claim", claim)

    def started(self, attempt: AttemptId, executor_id: str) -> None:
        """Record what an attempt is called by its executor, so that a later daemon can ask what became of it."""
        self._database.write("spawned", lambda c: c.execute(
            "UPDATE attempt SET executor_id = ? WHERE job = ? AND stage = ? AND number = ?",
            (executor_id, attempt.job, attempt.stage, attempt.number),
        ))  # fmt: skip

    def settle(
        self, attempt: AttemptId | AttemptRow, result: StageResult, *, state: str, retry_delay: float | None = None, crashed: bool = False,
        counted: bool = True, measured: Measured | None = None,
    ) -> None:  # fmt: skip
        """Record how an attempt ended and what becomes of its stage: succeeded, failed, or waiting for another try.

        `crashed`: the daemon, or the attempt's machine, died while it ran. `counted`: a failure counts against `limits.attempts`.
        `measured`: what it took, for later estimates. The output of one that succeeded is the staging folder that it was claimed with.
        """
        job, stage = attempt.job, attempt.stage

        def settle(c: sqlite3.Connection) -> None:
            fault = result.fault.model_dump_json() if result.fault else None
            mine = (job, stage, attempt.number)
            (staging,) = c.execute("SELECT staging FROM attempt WHERE job = ? AND stage = ? AND number = ?", mine).fetchone()
            c.execute(
                "UPDATE attempt SET outcome = ?, ended = ?, fault = ? WHERE job = ? AND stage = ? AND number = ?",
                (result.outcome, now(), fault, *mine),
            )
            if crashed:
                c.execute("UPDATE stage SET crashes = crashes + 1 WHERE job = ? AND name = ?", (job, stage))
            if measured:
                _measure(c, stage, measured)
            if state == "waiting":
                failed = counted and result.outcome != Outcome.INTERRUPTED
                c.execute(
                    "UPDATE stage SET state = 'waiting', failures = failures + ?, retry_at = ?, retry_delay = ?, fault = ?"
                    " WHERE job = ? AND name = ?",
                    (int(failed), time.time() + retry_delay if retry_delay else None, retry_delay, fault, job, stage),
                )
            else:
                close_stage(c, job, stage, Ended(state, Path(staging) if state == "succeeded" else None, result, result.fault))

        self._database.write("settle-attempt", settle)

    def measurements(self, stage: str) -> list[Measured]:
        """What the latest attempts of a stage took, newest first."""
        rows = self._database.read("SELECT * FROM measured WHERE stage = ? ORDER BY id DESC LIMIT ?", stage, MEASUREMENTS)
        return [measured_of(row) for row in rows]


def measured_of(row: sqlite3.Row) -> Measured:
    """The row of `measured` as a value."""
    return Measured(ModelSize(row["stored_bytes"], row["parameters"]), row["peak"], row["written"], row["seconds"])


def _measure(c: sqlite3.Connection, stage: str, measured: Measured) -> None:
    c.execute(
        "INSERT INTO measured (stage, parameters, stored_bytes, peak, written, seconds, at) VALUES (?,?,?,?,?,?,?)",
        (stage, measured.size.parameters, measured.size.stored_bytes, measured.peak, measured.written, measured.seconds, now()),
    )
    c.execute(
        "DELETE FROM measured WHERE stage = ? AND id <= (SELECT max(id) FROM measured WHERE stage = ?) - ?",
        (stage, stage, 20 * MEASUREMENTS),
    )


def attempt_of(row: Columns) -> AttemptRow:
    """A row of the table `attempt`."""
    return AttemptRow(
        row["job"], row["stage"], row["number"], row["strategy"], row["outcome"], Path(row["folder"]), Path(row["staging"]),
        row["estimate"], row["executor_id"], row["started"], row["ended"], fault_of(row["fault"]),
    )  # fmt: skip


def stage_facts(rows: Iterable[StageRow], attempts: Sequence[AttemptRow] = ()) -> tuple[StageFacts, ...]:
    """Stages and attempts that were read already; what came of stages is said without the attempts too."""
    return tuple(
        StageFacts(
            name=stage.name, state=stage.state, result=stage.result, fault=stage.fault,
            attempts=tuple(_attempt(row) for row in attempts if row.stage == stage.name),
        )
        for stage in rows
    )  # fmt: skip


def _facts(job: JobRow, rows: Iterable[StageRow], attempts: Sequence[AttemptRow]) -> JobFacts:
    from daemon.contract.jobs.messages import JobFacts

    return JobFacts(
        export_id=job.id, created=job.created, started=job.started, checkpoint=job.checkpoint, base=str(job.base) if job.base else None,
        work=job.work, stages=stage_facts(rows, attempts), target=str(job.target), warnings=job.warnings,
    )  # fmt: skip


def _attempt(row: AttemptRow) -> AttemptFacts:
    return AttemptFacts(
        number=row.number, strategy=row.strategy, outcome=row.outcome, started=row.started, ended=row.ended,
        log=str(row.folder / "log.txt"), fault=row.fault, estimate=row.estimate,
    )  # fmt: skip
