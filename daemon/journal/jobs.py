"""The journal's jobs: entered, started, configured anew, superseded, ended, and put back into the queue.

A part of `daemon.journal.journal.Journal`; each method is one transaction. Called by the intake (new jobs) and the runner.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import CheckpointRef
from daemon.journal.file.database import Database
from daemon.journal.outbox import enter_message
from daemon.journal.rewrites import BY, OF_RUN, rewritten
from daemon.journal.rows import JobRow, Lane, Notice, job_of, now
from daemon.journal.shipment_rows import NewShipment
from daemon.journal.shipments import enter_shipments
from daemon.journal.sightings import record_sighting
from daemon.journal.stages import Ended, close_stage

if TYPE_CHECKING:
    from daemon.contract.jobs.options import Work

RETRIED = ("failed", "partial", "cancelled", "succeeded")
"""States from which a person can put a job back into the queue."""

_NOT_ONE_OF = "id NOT IN (SELECT value FROM json_each(?))"
_PLACES = "SELECT id, root, run, target, state FROM job ORDER BY created, rowid"


@dataclass(frozen=True)
class NewJob:
    """A job that is to be entered."""

    id: str
    checkpoint: CheckpointRef
    work: Work
    stages: Sequence[str]
    """Names of the plan's stages, in their order."""
    pin: Path
    """Folder of the checkpoint's pinned files."""
    target: Path
    """Folder of the export."""
    fingerprint: str
    """What the checkpoint's directory looked like when it was taken."""
    warnings: Sequence[str] = ()
    """What the report says beside the stages' own warnings."""
    notice: Notice | None = None
    """What is told of it."""


class Place(NamedTuple):
    """Where a job's export goes."""

    job: str
    root: str
    run: str
    target: str
    """Folder of the export; a superseded job publishes nothing."""
    state: str


class Around(NamedTuple):
    """What the journal has of a checkpoint that may become a job."""

    alike: list[JobRow]
    """The job with its id, and those of checkpoints with its content that have its step or lie below its root; newest first."""
    here: list[str]
    """The jobs whose content its directory held when it was last decided upon."""
    listed: str
    """What `places` is made of: that takes a while, in which the journal's thread can do something else."""

    @property
    def places(self) -> list[Place]:
        """What every job has been given, the earliest first."""
        return [Place(*place) for place in json.loads(self.listed)]


class Jobs:
    """Transactions on the table `job`, and on its stages where a job is entered or done anew."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, job: NewJob, *, supersede: bool = False, fault: Fault | None = None, stands: Collection[str] = ()) -> bool:
        """Enter a job unless this identity with this configuration has one; says whether it is new.

        Open jobs of the same directory give way: what they export has been overwritten. `supersede`: older pending
        jobs of the run do so too, and the newest of the run comes first. `fault`: the checkpoint can't be merged at all,
        so the job goes straight to its report, and takes nobody's place. `stands`: jobs whose content lies in another directory too; they
        give way to nobody.
        """

        checkpoint, work, entered = job.checkpoint, job.work, now()
        key, kept = (checkpoint.identity, work.digest), (job.id, *stands)
        row = (job.id, *key, checkpoint.root, checkpoint.run, checkpoint.step, checkpoint.model_dump_json(), work.text, str(job.pin),
               str(job.target), entered, json.dumps(list(job.warnings)), int(supersede))  # fmt: skip

        def add(c: sqlite3.Connection) -> bool:
            if not c.execute(
                "INSERT INTO job (id, identity, work_digest, root, run, step, checkpoint, work, pin, target, created, warnings,"
                " newest_first) SELECT ?,?,?,?,?,?,?,?,?,?,?,?,?"
                " WHERE NOT EXISTS (SELECT 1 FROM job WHERE identity = ? AND work_digest = ?)", (*row, *key),
            ).rowcount:  # fmt: skip
                known = c.execute("SELECT id FROM job WHERE identity = ? AND work_digest = ?", key).fetchone()
                record_sighting(c, checkpoint.path, job.fingerprint, "known", known[0])
                return False
            _add_stages(c, job.id, job.stages)
            if fault:
                close_stage(c, job.id, job.stages[0], Ended("failed", fault=fault))
            else:
                overwritten = f"id IN (SELECT job FROM seen WHERE path = ?) AND id NOT IN ({','.join('?' * len(kept))})"
                _supersede(c, f"{BY}{job.id}", overwritten, (checkpoint.path, *kept))
            if supersede and not fault:
                _supersede_older(c, checkpoint)
            record_sighting(c, checkpoint.path, job.fingerprint, "damaged" if fault else "taken", job.id)
            if job.notice:
                enter_message(c, job.id, job.notice)
            return True

        return self._database.write("add-job", add)

    def get(self, job: str) -> JobRow | None:
        """One job by its id."""
        rows = self._database.read("SELECT * FROM job WHERE id = ?", job)
        return job_of(rows[0]) if rows else None

    def pending_after(self, mark: int, limit: int) -> tuple[list[str], int]:
        """Ids of pending jobs that were entered after a mark, at most so many, and the mark of the last of them; 0 is the first mark."""
        rows = self._database.read(
            "SELECT rowid AS number, id FROM job WHERE rowid > ? AND state = 'pending' ORDER BY rowid LIMIT ?", mark, limit
        )
        return [row["id"] for row in rows], rows[-1]["number"] if rows else mark

    def open_ids(self) -> set[str]:
        """Ids of the jobs that are not finished."""
        return {str(row[0]) for row in self._database.read("SELECT id FROM job WHERE state IN ('running', 'pending')")}

    def running(self) -> list[JobRow]:
        """Jobs that have been started and are not finished, preferred ones first, then in the order of their start."""
        return [job_of(row) for row in self._database.read(
            "SELECT * FROM job WHERE state = 'running' ORDER BY priority DESC, started, created, step, id"
        )]  # fmt: skip

    def outputs_in_use(self) -> list[Path]:
        """The folders of the finished stages of running jobs."""
        rows = self._database.read("SELECT folder FROM stage JOIN job ON job.id = job WHERE job.state = 'running' AND folder IS NOT NULL")
        return [Path(row[0]) for row in rows]

    def preferred(self, but: Collection[str] = ()) -> JobRow | None:
        """The pending job that people want first, if any. `but`: ids of jobs that are passed over, here and below."""
        rows = self._database.read(
            f"SELECT * FROM job WHERE state = 'pending' AND priority > 0 AND paused = 0 AND {_NOT_ONE_OF}"
            " ORDER BY priority DESC, created LIMIT 1",
            json.dumps(list(but)),
        )  # fmt: skip
        return job_of(rows[0]) if rows else None

    def lanes(self, but: Collection[str] = ()) -> list[Lane]:
        """The runs that have pending jobs, with when each, and each root, was last served."""
        roots = {row[0]: row[1] for row in self._database.read("SELECT root, max(started) FROM job GROUP BY root")}
        return [Lane(row[0], row[1], bool(row[2]), row[3], row[4], roots.get(row[0])) for row in self._database.read(
            "SELECT root, run, max(newest_first), min(created),"
            " (SELECT max(started) FROM job other WHERE other.root = job.root AND other.run = job.run)"
            f" FROM job WHERE state = 'pending' AND paused = 0 AND {_NOT_ONE_OF} GROUP BY root, run",
            json.dumps(list(but)),
        )]  # fmt: skip

    def first_of(self, lane: Lane, but: Collection[str] = ()) -> JobRow | None:
        """The pending job of a run that comes first."""
        order = "step DESC, created" if lane.newest_first else "created, step"
        rows = self._database.read(
            f"SELECT * FROM job WHERE state = 'pending' AND paused = 0 AND root = ? AND run = ? AND {_NOT_ONE_OF}"
            f" ORDER BY {order}, id LIMIT 1",
            lane.root, lane.run, json.dumps(list(but)),
        )  # fmt: skip
        return job_of(rows[0]) if rows else None

    def around(self, job: str, checkpoint: CheckpointRef) -> Around:
        """What the journal has of a checkpoint that may become the job with this id."""
        # One statement with one row: at each the interpreter goes to other threads, and with many at work it is long until it is back.
        alike = (
            "SELECT id FROM job WHERE id = ? OR (step = ? AND json_extract(checkpoint, '$.digest') = ?)"
            " OR (root = ? AND instr(checkpoint, ?)) ORDER BY created DESC, id"
        )
        query = (
            f"SELECT (SELECT json_group_array(id) FROM ({alike})),"
            " (SELECT json_group_array(job) FROM seen WHERE path = ? AND job IS NOT NULL),"
            f" (SELECT json_group_array(json_array(id, root, run, target, state)) FROM ({_PLACES}))"
        )
        values = (job, checkpoint.step, checkpoint.digest, checkpoint.root, checkpoint.digest, checkpoint.path)

        def look() -> Around:
            ((ids, here, listed),) = self._database.read(query, *values)
            known = [row for row in map(self.get, json.loads(ids)) if row is not None]
            return Around([row for row in known if row.id == job or row.checkpoint.digest == values[2]], json.loads(here), listed)

        return self._database.together(look)

    def at(self, target: Path) -> list[JobRow]:
        """All jobs whose export's folder is `target`, the newest first."""
        return [job_of(row) for row in self._database.read("SELECT * FROM job WHERE target = ? ORDER BY created DESC, id", str(target))]

    def published(self, root: str, run: str, most: int) -> list[Path]:
        """The folders of a run's latest exports that hold artifacts, by step, each once."""
        rows = self._database.read(
            "SELECT target FROM job WHERE root = ? AND run = ? AND state IN ('succeeded', 'partial')"
            " GROUP BY target ORDER BY max(step) DESC LIMIT ?",
            root, run, most,
        )  # fmt: skip
        return [Path(str(row[0])) for row in rows]

    def places(self) -> list[Place]:
        """What every job has been given, the earliest first."""
        return [Place(*row) for row in self._database.read(_PLACES)]

    def rewrites(self, run: str, path: str) -> int:
        """How many exports in a row of a directory gave way to its next content, without one that ended."""
        return next((rewrite.count for rewrite in rewritten(self._database.read(OF_RUN, run)) if rewrite.path == path), 0)

    def counts(self) -> dict[str, int]:
        """State → number of jobs."""
        return {str(row[0]): int(row[1]) for row in self._database.read("SELECT state, count(*) FROM job GROUP BY state")}

    def oldest_open(self) -> str | None:
        """When the oldest job that is not finished was entered, as ISO 8601; None where all are."""
        (row,) = self._database.read("SELECT min(created) FROM job WHERE state IN ('running', 'pending')")
        return str(row[0]) if row[0] else None

    def forget(self, job: str) -> None:
        """Remove an ended job, so that the same checkpoint can be entered again."""
        self._database.write("forget-job", lambda c: c.execute("DELETE FROM job WHERE id = ?", (job,)))

    def start(self, job: str, base: Path | None) -> bool:
        """pending → running, with the base that was found for it; False where it has been ended or paused meanwhile."""
        return bool(self._database.write("start-job", lambda c: c.execute(
            "UPDATE job SET state = 'running', base = ?, started = COALESCE(started, ?)"
            " WHERE id = ? AND state IN ('pending', 'running') AND paused = 0",
            (str(base) if base else None, now(), job),
        ).rowcount))  # fmt: skip

    def reconfigure(self, job: str, work: Work, stages: Sequence[str]) -> bool:
        """An open job is to be done by another configuration: stages come or go, those that stay keep their state.

        False, and nothing is changed, where the same checkpoint has a job with that configuration already, or a stage
        that goes is running.
        """

        def change(c: sqlite3.Connection) -> bool:
            identity, state = c.execute("SELECT identity, state FROM job WHERE id = ?", (job,)).fetchone()
            taken = c.execute("SELECT 1 FROM job WHERE identity = ? AND work_digest = ? AND id <> ?", (identity, work.digest, job))
            there = {row[0]: row[1] for row in c.execute("SELECT name, state FROM stage WHERE job = ?", (job,))}
            gone = there.keys() - set(stages)
            if state not in ("pending", "running") or taken.fetchone() or any(there[name] == "running" for name in gone):
                return False
            c.execute("UPDATE job SET work = ?, work_digest = ? WHERE id = ?", (work.text, work.digest, job))
            c.executemany("DELETE FROM stage WHERE job = ? AND name = ?", [(job, name) for name in gone])
            _add_stages(c, job, stages)
            return True

        return self._database.write("reconfigure", change)

    def finish(self, job: str, state: str, notice: Notice | None, reason: str | None = None, shipments: Sequence[NewShipment] = ()) -> bool:
        """running → ended, its notification into the outbox, and its deliveries, in one commit. `reason`: why nothing was published.

        False, and nothing is recorded, where the job has been superseded or cancelled meanwhile.
        """

        def finish(c: sqlite3.Connection) -> bool:
            row = (state, now(), reason, job)
            if not c.execute("UPDATE job SET state = ?, ended = ?, reason = ? WHERE id = ? AND state = 'running'", row).rowcount:
                return False
            if notice:
                enter_message(c, job, notice)
            enter_shipments(c, job, shipments)
            return True

        return self._database.write("finish-job", finish)

    def move(self, job: str, target: Path) -> None:
        """Give a running job another folder for its export."""
        row = (str(target), job)
        self._database.write("move-job", lambda c: c.execute("UPDATE job SET target = ? WHERE id = ? AND state = 'running'", row))

    def supersede(self, job: str, reason: str) -> None:
        """An open job ends without a report, since its checkpoint is no longer what it was; the directory is looked at again."""

        def supersede(c: sqlite3.Connection) -> None:
            _supersede(c, reason, "id = ?", (job,))
            c.execute("DELETE FROM seen WHERE job = ?", (job,))

        self._database.write("supersede-job", supersede)

    def untidy(self) -> list[JobRow]:
        """Superseded and cancelled jobs whose child, staging and pin are not cleared away yet."""
        return [job_of(row) for row in self._database.read("SELECT * FROM job WHERE untidy = 1 ORDER BY id")]

    def tidied(self, job: str) -> None:
        """Nothing is left of a superseded or cancelled job but its record."""
        self._database.write("tidied", lambda c: c.execute("UPDATE job SET untidy = 0 WHERE id = ?", (job,)))

    def retry(self, job: str, work: Work | None = None, stages: Sequence[str] = ()) -> bool:
        """Put an ended job back in the queue, all its stages afresh; kept outputs with the same key are used again.

        `work` and `stages`: the configuration by which it is to be done now, where that has changed.
        """

        def retry(c: sqlite3.Connection) -> bool:
            marks = ",".join("?" * len(RETRIED))
            if not c.execute(
                f"UPDATE job SET state = 'pending', ended = NULL, reason = NULL, paused = 0 WHERE id = ? AND untidy = 0"
                f" AND state IN ({marks})", (job, *RETRIED),
            ).rowcount:  # fmt: skip
                return False
            if work is not None:
                c.execute("UPDATE job SET work = ?, work_digest = ? WHERE id = ?", (work.text, work.digest, job))
                names = ",".join("?" * len(stages))
                c.execute(f"DELETE FROM stage WHERE job = ? AND name NOT IN ({names})", (job, *stages))
                _add_stages(c, job, stages)
            c.execute(
                "UPDATE stage SET state = 'waiting', failures = 0, crashes = 0, retry_at = NULL, folder = NULL, result = NULL,"
                " fault = NULL WHERE job = ? AND state <> 'waiting'", (job,),
            )  # fmt: skip
            return True

        return self._database.write("retry-job", retry)


def _add_stages(c: sqlite3.Connection, job: str, stages: Sequence[str]) -> None:
    """Rows for the stages of a plan; one that is there already only takes its place in the order."""
    c.execute(
        "INSERT INTO stage (job, name, position) SELECT ?, value, key FROM json_each(?) WHERE true"
        " ON CONFLICT (job, name) DO UPDATE SET position = excluded.position",
        (job, json.dumps(list(stages))),
    )


def _supersede(c: sqlite3.Connection, reason: str, where: str, values: tuple[object, ...]) -> None:
    c.execute(
        "UPDATE job SET state = 'superseded', ended = ?, reason = ?, untidy = 1"
        f" WHERE state IN ('pending', 'running') AND {where}", (now(), reason, *values),
    )  # fmt: skip


def _supersede_older(c: sqlite3.Connection, checkpoint: CheckpointRef) -> None:
    """Pending jobs of the run give way to its newest open one, whichever order they came in."""
    lane = (checkpoint.root, checkpoint.run)
    newest = c.execute(
        "SELECT id, step FROM job WHERE root = ? AND run = ? AND state IN ('pending', 'running') ORDER BY step DESC LIMIT 1", lane
    ).fetchone()  # fmt: skip
    _supersede(c, f"{BY}{newest[0]}", "state = 'pending' AND root = ? AND run = ? AND step < ?", (*lane, newest[1]))
