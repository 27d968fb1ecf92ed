"""The journal's stages: what of a job has ended, how, and what waits.

A part of `daemon.journal.journal.Journal`; each method is one transaction. Called by the runner; an attempt's claim and outcome are in
`daemon.journal.attempts`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from pathlib import Path

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import StageResult
from daemon.contract.light import dataclass
from daemon.journal.file.database import Database
from daemon.journal.rows import StageRow, stage_of


@dataclass(frozen=True)
class Ended:
    """How a stage ended."""

    state: str
    """`succeeded`, `failed` or `skipped`."""
    folder: Path | None = None
    """Its output; None where there is none."""
    result: StageResult | None = None
    """What its attempt said; None where no child was started."""
    fault: Fault | None = None


class Stages:
    """Transactions on the table `stage`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, job: str) -> dict[str, StageRow]:
        """The stages of a job in plan order."""
        rows = self._database.read("SELECT * FROM stage WHERE job = ? ORDER BY position", job)
        return {row["name"]: stage_of(row) for row in rows}

    def reuse(self, job: str, stage: str, key: str, folder: Path, result: StageResult) -> None:
        """waiting → succeeded without an attempt: the output of an earlier job with the same key is used again."""

        def reuse(c: sqlite3.Connection) -> None:
            close_stage(c, job, stage, Ended("succeeded", folder, result))
            c.execute("UPDATE stage SET key = ? WHERE job = ? AND name = ?", (key, job, stage))

        self._database.write("reuse-stage", reuse)

    def end(self, job: str, stage: str, state: str, fault: Fault | None) -> None:
        """A stage ends without an attempt: skipped, or failed before a child made sense."""
        self._database.write("end-stage", lambda c: close_stage(c, job, stage, Ended(state, fault=fault)))

    def end_waits(self, job: str) -> None:
        """Whatever of the job waits for a retry need wait no longer: a person asks for it now."""
        self._database.write("end-waits", lambda c: c.execute("UPDATE stage SET retry_at = NULL WHERE job = ?", (job,)))

    def hasten(self, codes: Collection[str]) -> None:
        """Whatever waits for its next try after a fault with one of these codes is due now."""
        listed = sorted(codes)
        places = ",".join("?" * len(listed))
        self._database.write("hasten-stages", lambda c: c.execute(
            "UPDATE stage SET retry_at = NULL WHERE state = 'waiting' AND retry_at IS NOT NULL"
            f" AND json_extract(fault, '$.code') IN ({places})", listed,
        ))  # fmt: skip

    def reopen(self, job: str, stage: str) -> None:
        """Ended → waiting: its output is gone, damaged, or of other inputs than asked for, and must be made again."""
        self._database.write("reopen-stage", lambda c: c.execute(
            "UPDATE stage SET state = 'waiting', folder = NULL, result = NULL, fault = NULL, failures = 0, crashes = 0, retry_at = NULL"
            " WHERE job = ? AND name = ?", (job, stage),
        ))  # fmt: skip


def close_stage(c: sqlite3.Connection, job: str, stage: str, ended: Ended) -> None:
    """Inside a transaction: a stage has ended."""
    c.execute(
        "UPDATE stage SET state = ?, folder = ?, result = ?, fault = ?, retry_at = NULL WHERE job = ? AND name = ?",
        (ended.state, str(ended.folder) if ended.folder else None, ended.result.model_dump_json() if ended.result else None,
         ended.fault.model_dump_json() if ended.fault else None, job, stage),
    )  # fmt: skip
