"""Rebuilds or completes a journal from what is on disk: job files, results, pins and published exports.

Called by `daemon.operating.integrity.maintenance` on a fresh journal or on a backup, before it takes the place of the damaged one. A job
whose export is published, or whose report says how it ended, is ended; one whose pin is still there is open, and
its finished stages stay finished; of any other the checkpoint, if it still exists, is found again by the watcher.
Can be repeated: it never overwrites newer facts in the journal.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daemon.checkpoints.pinning.additions import changed
from daemon.config.places.export_names import FAILED_SUFFIX
from daemon.config.places.paths import Paths
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.jobs.messages import CheckpointRef, Outcome
from daemon.contract.jobs.plan import CHECK, find_variant, stage_names
from daemon.contract.records import Record
from daemon.contract.values import Json
from daemon.journal.file.database import Database
from daemon.journal.rows import now
from daemon.operating.integrity.salvage import Remains, Tried, find, holds_files
from daemon.publishing.lending import same_files
from daemon.system.logger import Logger

log = Logger("journal")

OPEN = ("pending", "running")
_STAGE = "state = ?, attempts = ?, failures = ?, folder = ?, result = ?, fault = ?, key = COALESCE(?, key), retry_at = NULL"


@dataclass(frozen=True)
class Rebuilt:
    """What the disk gave: jobs that are open and ended now, jobs given up, and what was passed over."""

    open: int
    ended: int
    given_up: int
    skipped: int


def rebuild(database: Database, paths: Paths, target_of: Callable[[CheckpointRef], Path]) -> Rebuilt:
    """Bring the journal in line with the disk, in one transaction. `target_of`: where the export of a checkpoint goes."""
    remains, skipped = find(paths)

    def write(c: sqlite3.Connection) -> tuple[int, int]:
        return sum(not _take_in(c, of_job, target_of) for of_job in remains), _give_up(c)

    spoilt, given_up = database.write("rebuild", write)
    counts = {str(row[0]): int(row[1]) for row in database.read("SELECT state, count(*) FROM job GROUP BY state")}
    opened = sum(counts.get(state, 0) for state in OPEN)
    return Rebuilt(opened, sum(counts.values()) - opened, given_up, skipped + spoilt)


def _take_in(c: sqlite3.Connection, remains: Remains, target_of: Callable[[CheckpointRef], Path]) -> bool:
    """One job by itself: what can't be entered beside the rest is passed over."""
    c.execute("SAVEPOINT job")
    try:
        row = c.execute("SELECT state FROM job WHERE id = ?", (remains.job,)).fetchone()
        if row is None and (remains.ended_as or remains.pinned):  # else it neither ended nor can go on
            _enter(c, remains, target_of)
            row = ("pending",)
        if row is not None:
            _complete(c, remains, str(row[0]))
    except (sqlite3.IntegrityError, KeyError) as error:
        c.execute("ROLLBACK TO job")
        log.warning(
            "a job was passed over while the journal was rebuilt", event_id=Event.JOURNAL_PASSED_OVER, job=remains.job, error=str(error)
        )
        return False
    finally:
        c.execute("RELEASE job")
    return True


def _enter(c: sqlite3.Connection, remains: Remains, target_of: Callable[[CheckpointRef], Path]) -> None:
    """A job that the journal lacks, as it was when it was new."""
    seen = remains.checkpoint
    c.execute(
        "INSERT INTO job (id, identity, work_digest, root, run, step, checkpoint, work, pin, target, created, warnings, newest_first)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (remains.job, seen.identity, remains.work.digest, seen.root, seen.run, seen.step, seen.model_dump_json(),
         remains.work.text, str(remains.pin or ""), str(_target(remains, target_of)), remains.created,
         json.dumps(list(remains.warnings)), int(remains.newest_first)),
    )  # fmt: skip
    if remains.fingerprint:
        c.execute(
            "INSERT OR IGNORE INTO seen (path, fingerprint, verdict, job, at) VALUES (?,?,'taken',?,?)",
            (seen.path, remains.fingerprint, remains.job, now()),
        )


def _planned(remains: Remains) -> list[str]:
    """The stages of a job: those of its configuration, and those of forms that took the place of others."""
    seen = {tried.file.stage for tried in remains.tries}
    seen |= {str(row.get("name")) for row in _rows_of_report(remains)}
    added = [name.removeprefix(CHECK) for name in sorted(seen) if name.startswith(CHECK)]
    return stage_names(remains.work, remains.checkpoint.layout, [name for name in added if find_variant(name)])


def _rows_of_report(remains: Remains) -> list[Json]:
    """What the report of a published export says of each stage."""
    rows = remains.published.report.get("stages", ()) if remains.published else ()
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _complete(c: sqlite3.Connection, remains: Remains, state: str) -> None:
    """A job that the journal has: the disk counts where it is newer."""
    ended = remains.ended_as
    if state in OPEN:
        _bring_up(c, remains, over=ended is not None)
        if ended or remains.tries:
            c.execute(
                "UPDATE job SET state = 'running', base = COALESCE(?, base), started = COALESCE(started, ?)"
                " WHERE id = ? AND state = 'pending'",
                (remains.base, remains.tries[0].started if remains.tries else None, remains.job),
            )
        if ended:
            c.execute("UPDATE job SET state = ?, ended = ? WHERE id = ?", (ended, _ended_at(remains), remains.job))
    elif ended is None and remains.pinned and state not in ("superseded", "cancelled"):
        # A person put it back into the queue after the backup was taken.
        c.execute("UPDATE job SET state = 'pending', ended = NULL WHERE id = ?", (remains.job,))
        c.execute("UPDATE stage SET state = 'waiting', failures = 0 WHERE job = ? AND state <> 'waiting'", (remains.job,))
        _complete(c, remains, "pending")


def _bring_up(c: sqlite3.Connection, remains: Remains, *, over: bool) -> None:
    """The job's stages of which the disk knows later attempts than the journal, or, at the job's end, all."""
    there = [row[0] for row in c.execute("SELECT name FROM stage WHERE job = ? ORDER BY position", (remains.job,))]
    # New are all of a job that was not there, and forms that took the place of others after the backup.
    for place, name in enumerate(_planned(remains)):
        if name not in there:
            c.execute("INSERT INTO stage (job, name, position) VALUES (?,?,?)", (remains.job, name, len(there) + place))
    for name, state, attempts in c.execute("SELECT name, state, attempts FROM stage WHERE job = ?", (remains.job,)).fetchall():
        last = remains.last(name)
        if last and (last.file.attempt > attempts or (state == "running" and over)):
            _add_attempts(c, remains, name)
            _set_stage(c, remains, name, over=over)
        elif over and state in ("waiting", "running"):
            _set_stage(c, remains, name, over=True)


def _add_attempts(c: sqlite3.Connection, remains: Remains, stage: str) -> None:
    for tried in remains.tries:
        if tried.file.stage == stage:
            fault = tried.result.fault if tried.result else None
            c.execute(
                "INSERT INTO attempt (job, stage, number, strategy, outcome, folder, staging, started, ended, fault)"
                " VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT (job, stage, number) DO UPDATE SET"
                " outcome = COALESCE(outcome, excluded.outcome), ended = COALESCE(ended, excluded.ended)",
                (remains.job, stage, tried.file.attempt, tried.file.strategy, tried.outcome, str(tried.folder), tried.file.staging,
                 tried.started, tried.ended or tried.started, _json(fault)),
            )  # fmt: skip


def _set_stage(c: sqlite3.Connection, remains: Remains, stage: str, *, over: bool) -> None:
    """Put a stage into the state that its last attempt left. `over`: the job has ended, so that no stage waits any more."""
    last = remains.last(stage)
    state, fault = _state_of(remains, stage, last, over)
    result = last.result if last and state in ("succeeded", "failed") else None
    failures = sum(tried.file.stage == stage and tried.outcome in (Outcome.RETRYABLE, Outcome.PERMANENT) for tried in remains.tries)
    c.execute("UPDATE stage SET state = 'waiting' WHERE job = ? AND name = ? AND state <> 'waiting'", (remains.job, stage))
    c.execute(
        f"UPDATE stage SET {_STAGE} WHERE job = ? AND name = ?",
        (state, last.file.attempt if last else 0, failures, last.file.staging if last and state == "succeeded" else None,
         _json(result), _json(fault), last.file.key if last else None, remains.job, stage),
    )  # fmt: skip


def _state_of(remains: Remains, stage: str, last: Tried | None, over: bool) -> tuple[str, Fault | None]:
    result = last.result if last else None
    whole = last is not None and result is not None and result.outcome == Outcome.SUCCEEDED
    if last and result and whole and (over or same_files(Path(last.file.staging), result.files)):
        return "succeeded", None
    if result and result.outcome == Outcome.PERMANENT:
        return "failed", result.fault
    return (_reported(remains, stage), result.fault if result else None) if over else ("waiting", None)


def _reported(remains: Remains, stage: str) -> str:
    """How a stage of an ended job ended by the job's own report; its report stage by there being one."""
    if stage == "report":
        return "succeeded"
    for row in _rows_of_report(remains):
        if row.get("name") == stage and row.get("state") in ("succeeded", "failed", "skipped"):
            return str(row["state"])
    return "failed" if remains.last(stage) else "skipped"


def _give_up(c: sqlite3.Connection) -> int:
    """Open jobs of which nothing is pinned any more, or not all that they are merged with: they can't go on, and their checkpoints are
    looked at again."""
    count = 0
    rows = c.execute(
        "SELECT id, pin, checkpoint FROM job WHERE state IN ('pending', 'running')"
        " AND NOT EXISTS (SELECT 1 FROM stage WHERE job = id AND name = 'merge' AND state = 'failed')"
    ).fetchall()
    for job, pin, checkpoint in rows:
        additions = CheckpointRef.model_validate_json(checkpoint).additions
        if not holds_files(Path(pin)) or changed(additions, Path(pin), deep=False):
            c.execute(
                "UPDATE job SET state = 'superseded', ended = ?, untidy = 1, reason = ? WHERE id = ?",
                (now(), "its pinned files were gone when the journal was rebuilt", job),
            )
            c.execute("DELETE FROM seen WHERE job = ?", (job,))
            count += 1
    return count


def _target(remains: Remains, target_of: Callable[[CheckpointRef], Path]) -> Path:
    if remains.published:
        folder = remains.published.folder
        return folder.with_name(folder.name.removesuffix(FAILED_SUFFIX)) if remains.published.status == "failed" else folder
    return remains.target or target_of(remains.checkpoint)


def _ended_at(remains: Remains) -> str:
    report = remains.last("report")
    return remains.published.ended if remains.published else (report.ended if report and report.ended else now())


def _json(value: Record | None) -> str | None:
    return value.model_dump_json() if value is not None else None
