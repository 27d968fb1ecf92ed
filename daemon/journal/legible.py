"""Rows of the journal as far as they can be read, for display: a text in them that is broken takes neither the row nor the rest of a list.

The daemon's own transactions read with `daemon.journal.rows`, which raises: what decides has no use for half a row.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from typing import Any

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.values import Json
from daemon.journal.attempts import attempt_of
from daemon.journal.rows import AttemptRow, JobRow, StageRow, fault_of, job_of, stage_of

VERIFY = "run `ckptd verify --journal`, which says what to do"


def json_at(column: str, key: str) -> str:
    """Return the SQL for what a JSON column has at a key: NULL where the column's text is broken, for which SQLite ends the whole query."""
    return f"CASE WHEN json_valid({column}) THEN json_extract({column}, '$.{key}') END"


def object_of(text: str | None) -> Json | None:
    """Return the JSON object of a text; None where it holds none."""
    value = _value(text)
    return value if isinstance(value, dict) else None


def legible_job(row: sqlite3.Row, stages: list[sqlite3.Row]) -> tuple[JobRow, tuple[StageRow, ...]]:
    """Return a job with its stages; what can't be read of them is left out, and a warning names its columns."""
    broken = [f"stage.{column} of {stage['name']}" for stage in stages for column in _broken(stage)]
    columns = _readable(row)
    broken += [f"job.{name}" for name, text in columns.items() if text != row[name]]
    if _value(row["work"]) is None:
        broken.append("job.work")  # it is read as far as it can be, with the defaults for the rest
    job = job_of(columns)
    if broken:
        where = ", ".join(broken)
        warning = f"the journal can't be read at {where}, so that what is shown of this export is incomplete: {VERIFY}"
        job = dataclasses.replace(job, warnings=(*job.warnings, warning))
    return job, tuple(stage_of(_with_fault(stage)) for stage in stages)


def legible_attempt(row: sqlite3.Row) -> AttemptRow:
    """Return an attempt; an error of it that can't be read says so."""
    return attempt_of(_with_fault(row))


def _readable(row: sqlite3.Row) -> dict[str, Any]:
    """Return the columns of a job, with what its other columns tell in place of a text that can't be read."""
    columns = dict(row)
    if not isinstance(_value(row["warnings"]), list):
        columns["warnings"] = "[]"
    try:
        CheckpointRef.model_validate_json(row["checkpoint"])
    except ValueError:
        # The pin is the only path of its files that another column has.
        columns["checkpoint"] = CheckpointRef(
            root=row["root"], run=row["run"], step=row["step"], path=row["pin"], layout="", digest="", method="", base_name=row["base"]
        ).model_dump_json()
    return columns


def _broken(stage: sqlite3.Row) -> list[str]:
    """Return the columns of a stage that can't be read; a result that another version wrote is none of them."""
    result = ["result"] if stage["result"] and _value(stage["result"]) is None else []
    return result + ([] if _with_fault(stage)["fault"] == stage["fault"] else ["fault"])


def _with_fault(row: sqlite3.Row) -> dict[str, Any]:
    """Return the columns of a stage or an attempt, with an error that says so in place of one that can't be read."""
    columns = dict(row)
    try:
        fault_of(row["fault"])
    except ValueError:
        columns["fault"] = Fault(
            code=FaultCode.JOURNAL_DAMAGED, operation="read the error of this stage in the journal", cause="its text there is damaged",
            remedy=VERIFY,
        ).model_dump_json()  # fmt: skip
    return columns


def _value(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
