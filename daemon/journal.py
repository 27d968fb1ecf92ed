"""The journal: jobs, stages, attempts and outbox. What it says is done is done, and nothing else is.

Intent is committed before a stage starts, the result after it ended; each method below is one transaction.
The schema itself refuses illegal transitions. Called by the watcher (new jobs), the runner and the notifier.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from daemon.contract import CheckpointRef, Outcome, StageResult, Work
from daemon.database import Database
from daemon.errors import Fault
from daemon.rows import AttemptRow, JobRow, Message, StageRow, attempt_of, job_of, now, stage_of


class Journal:
    """Transactions on the journal at `path`."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    # What was seen

    def seen(self, path: str) -> str | None:
        """Digest of the fingerprint with which a directory was last decided upon."""
        rows = self._database.read("SELECT fingerprint FROM seen WHERE path = ?", path)
        return str(rows[0][0]) if rows else None

    def seen_below(self, root: str) -> dict[str, str]:
        """The same for everything below a root, in one query."""
        prefix = root.rstrip("/") + "/"
        rows = self._database.read("SELECT path, fingerprint FROM seen WHERE path >= ? AND path < ?", prefix, prefix[:-1] + "0")
        return {str(row[0]): str(row[1]) for row in rows}

    def remember(self, path: str, fingerprint: str, verdict: str, job: str | None = None) -> None:
        """Record that a directory in this state has been decided upon without a new job. `job`: the one that has it already."""
        self._database.write("remember", lambda c: _remember(c, path, fingerprint, verdict, job))

    def reconsider(self, path: str) -> bool:
        """Forget that a directory was skipped, so that the next look decides again; says whether it was."""
        return bool(self._database.write(
            "reconsider", lambda c: c.execute("DELETE FROM seen WHERE path = ? AND verdict = 'skipped'", (path,)).rowcount
        ))  # fmt: skip

    def same_content(self, step: int, digest: str) -> list[str]:
        """Ids of the jobs of checkpoints with this step and content, wherever they lay, newest first."""
        rows = self._database.read(
            "SELECT id FROM job WHERE step = ? AND json_extract(checkpoint, '$.digest') = ? ORDER BY created DESC, id", step, digest
        )
        return [str(row[0]) for row in rows]

    def moved(self, job: str, path: str, fingerprint: str) -> None:
        """The content of a job lies at `path` now, and nowhere else."""

        def move(c: sqlite3.Connection) -> None:
            c.execute("DELETE FROM seen WHERE job = ?", (job,))
            _remember(c, path, fingerprint, "known", job)

        self._database.write("moved", move)

    def places(self, job: str) -> dict[str, str]:
        """The directories whose content is this job's, each with the fingerprint that it was seen with."""
        return {str(row[0]): str(row[1]) for row in self._database.read("SELECT path, fingerprint FROM seen WHERE job = ?", job)}

    def add_lost(self, path: str, first_seen: str, last_seen: str, lived: float) -> None:
        """Record that a checkpoint was deleted before it could be pinned. `lived`: seconds."""
        self._database.write("add-lost", lambda c: c.execute(
            "INSERT INTO lost (path, first_seen, last_seen, lived, at) VALUES (?,?,?,?,?)", (path, first_seen, last_seen, lived, now()),
        ))  # fmt: skip

    def add_job(
        self, job: str, checkpoint: CheckpointRef, work: Work, stages: Sequence[str], *, pin: Path, target: Path, fingerprint: str,
        supersede: bool = False, fault: Fault | None = None, warnings: Sequence[str] = (),
    ) -> bool:  # fmt: skip
        """Enter a job unless this identity with this configuration has one; says whether it is new.

        Open jobs of the same directory give way: what they export has been overwritten. `supersede`: older pending
        jobs of the run do so too. `fault`: the checkpoint can't be merged at all, so the job goes straight to its
        report, and takes nobody's place.
        """

        def add(c: sqlite3.Connection) -> bool:
            known = c.execute(
                "SELECT id FROM job WHERE identity = ? AND work_digest = ?", (checkpoint.identity, work.digest)
            ).fetchone()  # fmt: skip
            if known:
                _remember(c, checkpoint.path, fingerprint, "known", known[0])
                return False
            c.execute(
                "INSERT INTO job (id, identity, work_digest, run, step, checkpoint, work, pin, target, created, warnings)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                (job, checkpoint.identity, work.digest, checkpoint.run, checkpoint.step, checkpoint.model_dump_json(),
                 work.model_dump_json(), str(pin), str(target), now(), json.dumps(list(warnings))),
            )  # fmt: skip
            c.executemany("INSERT INTO stage (job, name, position) VALUES (?,?,?)", [(job, name, i) for i, name in enumerate(stages)])
            if fault:
                _end_stage(c, job, "merge", "failed", fault=fault)
            if not fault:
                overwritten = "id IN (SELECT job FROM seen WHERE path = ?) AND id <> ?"
                _supersede(c, f"superseded by {job}", overwritten, (checkpoint.path, job))
            if supersede and not fault:
                _supersede_older(c, checkpoint)
            _remember(c, checkpoint.path, fingerprint, "damaged" if fault else "taken", job)
            return True

        return self._database.write("add-job", add)

    # Jobs

    def job(self, job: str) -> JobRow | None:
        """One job by its id."""
        rows = self._database.read("SELECT * FROM job WHERE id = ?", job)
        return job_of(rows[0]) if rows else None

    def open_jobs(self) -> list[JobRow]:
        """Jobs that are not finished: running ones first, then pending ones, oldest first."""
        return [job_of(row) for row in self._database.read(
            "SELECT * FROM job WHERE state IN ('running', 'pending') ORDER BY state DESC, created, step, id"
        )]  # fmt: skip

    def job_counts(self) -> dict[str, int]:
        """State → number of jobs."""
        return {str(row[0]): int(row[1]) for row in self._database.read("SELECT state, count(*) FROM job GROUP BY state")}

    def forget_job(self, job: str) -> None:
        """Remove an ended job, so that the same checkpoint can be entered again."""
        self._database.write("forget-job", lambda c: c.execute("DELETE FROM job WHERE id = ?", (job,)))

    def start_job(self, job: str, base: Path | None) -> bool:
        """pending → running, with the base that was found for it; False where it has been superseded meanwhile."""
        return bool(self._database.write("start-job", lambda c: c.execute(
            "UPDATE job SET state = 'running', base = ?, started = COALESCE(started, ?) WHERE id = ? AND state <> 'superseded'",
            (str(base) if base else None, now(), job),
        ).rowcount))  # fmt: skip

    def finish_job(self, job: str, state: str, message: tuple[str, str] | None) -> bool:
        """running → ended, and its notification (title, body) into the outbox, in one commit.

        False, and nothing is recorded, where the job has been superseded meanwhile.
        """

        def finish(c: sqlite3.Connection) -> bool:
            if not c.execute("UPDATE job SET state = ?, ended = ? WHERE id = ? AND state <> 'superseded'", (state, now(), job)).rowcount:
                return False
            if message:
                c.execute(
                    "INSERT INTO outbox (job, kind, title, body, created) VALUES (?,?,?,?,?)", (job, state, *message, now())
                )  # fmt: skip
            return True

        return self._database.write("finish-job", finish)

    def supersede_job(self, job: str, reason: str) -> None:
        """An open job ends without a report, since its checkpoint is no longer what it was; the directory is looked at again."""

        def supersede(c: sqlite3.Connection) -> None:
            _supersede(c, reason, "id = ?", (job,))
            c.execute("DELETE FROM seen WHERE job = ?", (job,))

        self._database.write("supersede-job", supersede)

    def untidy_jobs(self) -> list[JobRow]:
        """Superseded jobs whose child, staging and pin are not cleared away yet."""
        return [job_of(row) for row in self._database.read("SELECT * FROM job WHERE untidy = 1 ORDER BY id")]

    def tidied(self, job: str) -> None:
        """Nothing is left of a superseded job but its record."""
        self._database.write("tidied", lambda c: c.execute("UPDATE job SET untidy = 0 WHERE id = ?", (job,)))

    def retry_job(self, job: str) -> bool:
        """Put a failed or partial job back in the queue, all its stages afresh, since its staging is gone."""

        def retry(c: sqlite3.Connection) -> bool:
            if not c.execute(
                "UPDATE job SET state = 'pending', ended = NULL WHERE id = ? AND state IN ('failed', 'partial')", (job,)
            ).rowcount:
                return False
            c.execute(
                "UPDATE stage SET state = 'waiting', failures = 0, retry_at = NULL, folder = NULL, result = NULL, fault = NULL"
                " WHERE job = ? AND state <> 'waiting'", (job,),
            )  # fmt: skip
            return True

        return self._database.write("retry-job", retry)

    # Stages and attempts

    def stages(self, job: str) -> dict[str, StageRow]:
        """The stages of a job in plan order."""
        rows = self._database.read("SELECT * FROM stage WHERE job = ? ORDER BY position", job)
        return {row["name"]: stage_of(row) for row in rows}

    def attempts(self, job: str) -> list[AttemptRow]:
        """All attempts of a job, oldest first."""
        rows = self._database.read("SELECT * FROM attempt WHERE job = ? ORDER BY started, number", job)
        return [attempt_of(row) for row in rows]

    def open_attempts(self) -> list[AttemptRow]:
        """Attempts that began and have no outcome: those of a daemon that died."""
        return [attempt_of(row) for row in self._database.read("SELECT * FROM attempt WHERE outcome IS NULL")]

    def claim(self, job: str, stage: str, number: int, strategy: str, folder: Path, staging: Path, estimate: int) -> None:
        """waiting → running: the intent, with the attempt counted, before a child exists."""

        def claim(c: sqlite3.Connection) -> None:
            c.execute("UPDATE stage SET state = 'running', attempts = ?, fault = NULL WHERE job = ? AND name = ?", (number, job, stage))
            c.execute(
                "INSERT INTO attempt (job, stage, number, strategy, folder, staging, estimate, started) VALUES (?,?,?,?,?,?,?,?)",
                (job, stage, number, strategy, str(folder), str(staging), estimate, now()),
            )

        self._database.write("claim", claim)

    def spawned(self, attempt: tuple[str, str, int], pid: int, process_started: float) -> None:
        """Record the child of an attempt (job, stage, number), so that a later daemon can tell whether it still lives."""
        self._database.write("spawned", lambda c: c.execute(
            "UPDATE attempt SET pid = ?, process_started = ? WHERE job = ? AND stage = ? AND number = ?", (pid, process_started, *attempt),
        ))  # fmt: skip

    def settle_attempt(
        self, job: str, stage: str, number: int, result: StageResult, *, state: str, staging: Path, retry_delay: float | None = None
    ) -> None:
        """Record how an attempt ended and what becomes of its stage: succeeded, failed, or waiting for another try."""

        def settle(c: sqlite3.Connection) -> None:
            fault = result.fault.model_dump_json() if result.fault else None
            c.execute(
                "UPDATE attempt SET outcome = ?, ended = ?, fault = ? WHERE job = ? AND stage = ? AND number = ?",
                (result.outcome, now(), fault, job, stage, number),
            )
            if state == "waiting":
                failed = result.outcome != Outcome.INTERRUPTED
                c.execute(
                    "UPDATE stage SET state = 'waiting', failures = failures + ?, retry_at = ?, retry_delay = ?, fault = ?"
                    " WHERE job = ? AND name = ?",
                    (int(failed), time.time() + retry_delay if retry_delay else None, retry_delay, fault, job, stage),
                )
            else:
                _end_stage(c, job, stage, state, folder=staging if state == "succeeded" else None, result=result, fault=result.fault)

        self._database.write("settle-attempt", settle)

    def end_stage(self, job: str, stage: str, state: str, fault: Fault | None) -> None:
        """A stage ends without an attempt: skipped, or failed before a child made sense."""
        self._database.write("end-stage", lambda c: _end_stage(c, job, stage, state, fault=fault))

    def end_waits(self, job: str) -> None:
        """Whatever of the job waits for a retry need wait no longer: a person asks for it now."""
        self._database.write("end-waits", lambda c: c.execute("UPDATE stage SET retry_at = NULL WHERE job = ?", (job,)))

    def reopen_stage(self, job: str, stage: str) -> None:
        """succeeded → waiting: its output is gone or damaged and must be made again."""
        self._database.write("reopen-stage", lambda c: c.execute(
            "UPDATE stage SET state = 'waiting', folder = NULL, result = NULL WHERE job = ? AND name = ?", (job, stage),
        ))  # fmt: skip

    # Outbox

    def due_messages(self, clock: float) -> list[Message]:
        """Notifications whose time has come, oldest first."""
        rows = self._database.read("SELECT * FROM outbox WHERE state = 'pending' AND next_at <= ? ORDER BY id LIMIT 20", clock)
        return [Message(row["id"], row["job"], row["kind"], row["title"], row["body"], row["attempts"]) for row in rows]

    def pending_messages(self) -> int:
        """How many notifications wait."""
        return int(self._database.read("SELECT count(*) FROM outbox WHERE state = 'pending'")[0][0])

    def delivered(self, message: int) -> None:
        """A notification has arrived."""
        self._database.write("delivered", lambda c: c.execute(
            "UPDATE outbox SET state = 'delivered', delivered = ?, attempts = attempts + 1 WHERE id = ?", (now(), message),
        ))  # fmt: skip

    def undelivered(self, message: int, error: str, next_at: float | None) -> None:
        """A delivery failed; try again at `next_at`, or give up where it is None."""
        self._database.write("undelivered", lambda c: c.execute(
            "UPDATE outbox SET state = ?, attempts = attempts + 1, last_error = ?, next_at = ? WHERE id = ?",
            ("pending" if next_at is not None else "abandoned", error[:500], next_at or 0, message),
        ))  # fmt: skip


def _remember(c: sqlite3.Connection, path: str, fingerprint: str, verdict: str, job: str | None) -> None:
    c.execute(
        "INSERT INTO seen (path, fingerprint, verdict, job, at) VALUES (?,?,?,?,?)"
        " ON CONFLICT (path) DO UPDATE SET"
        " fingerprint = excluded.fingerprint, verdict = excluded.verdict, job = excluded.job, at = excluded.at",
        (path, fingerprint, verdict, job, now()),
    )


def _supersede(c: sqlite3.Connection, reason: str, where: str, values: tuple[object, ...]) -> None:
    c.execute(
        "UPDATE job SET state = 'superseded', ended = ?, reason = ?, untidy = 1"
        f" WHERE state IN ('pending', 'running') AND {where}", (now(), reason, *values),
    )  # fmt: skip


def _supersede_older(c: sqlite3.Connection, checkpoint: CheckpointRef) -> None:
    """Pending jobs of the run give way to its newest open one, whichever order they came in."""
    run = (checkpoint.run, checkpoint.root)
    newest = c.execute(
        "SELECT id, step FROM job WHERE run = ? AND json_extract(checkpoint, '$.root') = ? AND state IN ('pending', 'running')"
        " ORDER BY step DESC LIMIT 1", run,
    ).fetchone()  # fmt: skip
    older = "state = 'pending' AND run = ? AND json_extract(checkpoint, '$.root') = ? AND step < ?"
    _supersede(c, f"superseded by {newest[0]}", older, (*run, newest[1]))


def _end_stage(
    c: sqlite3.Connection, job: str, stage: str, state: str, *, folder: Path | None = None, result: StageResult | None = None,
    fault: Fault | None = None,
) -> None:  # fmt: skip
    c.execute(
        "UPDATE stage SET state = ?, folder = ?, result = ?, fault = ?, retry_at = NULL WHERE job = ? AND name = ?",
        (state, str(folder) if folder else None, result.model_dump_json() if result else None,
         fault.model_dump_json() if fault else None, job, stage),
    )  # fmt: skip
