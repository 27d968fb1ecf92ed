"""Reads a journal for display: through a connection that only reads, while the daemon writes.

Called by `ckptd status`, `list`, `show`, `explain` and `prune` with a connection of `daemon.journal.file.opening.reading`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime

from daemon.contract.light import dataclass
from daemon.contract.values import Json
from daemon.journal.attempts import Measured, measured_of
from daemon.journal.controls import PAUSED
from daemon.journal.legible import json_at, legible_attempt, legible_job, object_of
from daemon.journal.outbox import ONLY_HELD
from daemon.journal.rewrites import OF_ALL, OFTEN, Rewritten, rewritten
from daemon.journal.rows import AttemptRow, JobRow, StageRow
from daemon.journal.states import ENDED_JOB, OPEN_JOB

REBUILT = "journal-rebuilt"
"""Row of the table `control` that tells how the journal came back from damage: JSON with at, from, set_aside, why, jobs."""
_BRIEF = (
    "job, name, position, state, attempts, failures, retry_at, retry_delay, folder, fault, key, crashes, CASE WHEN json_valid(result) THEN"
    " json_remove(result, '$.figures', '$.files', '$.versions', '$.checks[0].figures') ELSE result END AS result"
)
_NEWEST = " UNION ALL ".join(
    f"SELECT * FROM (SELECT rowid AS row, state, created FROM job WHERE state = '{state}' ORDER BY created DESC LIMIT ?1)"
    for state in (*OPEN_JOB, *ENDED_JOB)
)
"""The newest jobs of each state, of which an index tells without a look at all others."""
ALIKE = 8
"""Earlier exports from which the time of one is estimated."""
LATELY = 1000
"""Jobs among which these are looked for, the latest."""
LEAST_HANDLE = 4


@dataclass(frozen=True)
class JobView:
    """A job with its stages, in plan order."""

    job: JobRow
    stages: tuple[StageRow, ...]


@dataclass(frozen=True)
class Place:
    """A job's place in a list. What has ended stays as it is while these are the same."""

    id: str
    state: str
    ended: str | None


@dataclass(frozen=True)
class LostRow:
    """A checkpoint that was deleted before it could be pinned. Times are ISO 8601; `lived` is in seconds."""

    path: str
    first_seen: str
    last_seen: str
    lived: float
    at: str


@dataclass(frozen=True)
class TargetState:
    """A service that gets notifications, known by its key in the configuration."""

    target: str
    waiting: int
    """Notifications that wait for it."""
    given_up: int
    """Notifications of the last week that it never accepted."""
    failures: int
    """Number of failed attempts in a row."""
    error: str | None
    """Why the last attempt failed; None if it succeeded."""
    next_at: float | None
    """Time of the next attempt, in seconds since the epoch; None if nothing waits."""


@dataclass(frozen=True)
class Overview:
    """The journal as a whole."""

    jobs: tuple[Place, ...] = ()
    """In the order in which they were entered."""
    counts: dict[str, int] = field(default_factory=dict)
    """State → number of jobs."""
    outbox: dict[str, int] = field(default_factory=dict)
    """State → number of notifications."""
    targets: tuple[TargetState, ...] = ()
    """Those who get notifications, as the running daemon's configuration names them."""
    lost: tuple[LostRow, ...] = ()
    """Newest first."""
    rewritten: tuple[Rewritten, ...] = ()
    """Directories whose exports gave way OFTEN times or more in a row."""
    paused_since: str | None = None
    """When everything was paused; None while it is not."""
    rebuilt: Json | None = None
    """How the journal came back from damage; None where it never had to."""


@dataclass(frozen=True)
class JournalCare:
    """State of the journal. Times are ISO 8601 in UTC; None if this has not happened since the daemon's start."""

    checked: str | None
    """Time of the last full check without damage."""
    backed_up: str | None
    """Time of the last backup."""
    problem: str | None
    """The present problem with it or with its backups."""
    rebuilt: Json | None
    """How it was rebuilt after damage; None if it was never damaged."""


@dataclass(frozen=True)
class SeenRow:
    """What was decided about a directory, and the state of the job that it was decided for."""

    fingerprint: str
    verdict: str
    at: str
    job: str | None
    job_state: str | None


def overview(connection: sqlite3.Connection, limit: int) -> Overview:
    """The open jobs and the latest ended ones, at most `limit`, and what else there is to tell."""
    rows = connection.execute(
        f"SELECT id, state, ended FROM job WHERE rowid IN (SELECT row FROM ({_NEWEST})"
        " ORDER BY state = 'running' DESC, state = 'pending' DESC, created DESC LIMIT ?1) ORDER BY created, step",
        (limit,),
    ).fetchall()
    said = {row[0]: (row[1], row[2]) for row in connection.execute("SELECT name, value, at FROM control")}
    return Overview(
        jobs=tuple(Place(*row) for row in rows),
        counts=_counts(connection, "job"),
        outbox=_counts(connection, "outbox", f"CASE WHEN state = 'pending' AND {ONLY_HELD} THEN 'held' ELSE state END"),
        targets=_targets(connection),
        lost=_lost(connection, limit),
        rewritten=tuple(rewrite for rewrite in rewritten(connection.execute(OF_ALL).fetchall()) if rewrite.count >= OFTEN),
        paused_since=said[PAUSED][1] if PAUSED in said else None,
        rebuilt=object_of(said[REBUILT][0]) if REBUILT in said else None,
    )


def standing(connection: sqlite3.Connection) -> tuple[str | None, int]:
    """When everything was paused, None while it is not, and how many jobs were begun and have not ended: without a look at all jobs."""
    paused = connection.execute("SELECT at FROM control WHERE name = ?", (PAUSED,)).fetchone()
    (running,) = connection.execute("SELECT count(*) FROM job WHERE state = 'running'").fetchone()
    return paused[0] if paused else None, int(running)


def ids_failed(connection: sqlite3.Connection) -> list[str]:
    """The ids of the jobs that failed, in the order in which they were taken."""
    return [str(row[0]) for row in connection.execute("SELECT id FROM job WHERE state = 'failed' ORDER BY created, id")]


def is_meant(id: str, wanted: str) -> bool:
    """Whether a job may be called so: by the beginning of its id, or, in LEAST_HANDLE letters or more, by its end or the beginning of the
    id's last part, after run and step."""
    if id.startswith(wanted):
        return True
    return len(wanted) >= LEAST_HANDLE and (id.endswith(wanted) or id.rpartition("-")[2].startswith(wanted))


def job_of_id(connection: sqlite3.Connection, id: str, *, brief: bool = False) -> JobView | None:
    """One job; None where there is none of that id. `brief`: as `overview` has it, without figures and files."""
    row = connection.execute("SELECT * FROM job WHERE id = ?", (id,)).fetchone()
    return None if row is None else _view(connection, row, brief=brief)


def jobs_before(
    connection: sqlite3.Connection,
    before: str | None,
    states: Sequence[str],
    since: str,
    is_run: Callable[[str], bool] | None,
    run: str | None = None,
    root: str = "",
    *,
    by_end: bool = False,
) -> Iterator[Place]:
    """Yield the places of jobs, the newest first: those entered before the job `before`, in one of `states` if any are given, of a
    checkpoint taken at `since` or later, or `by_end` that ended then, of runs that `is_run` takes, or of `run` alone, below `root` if that
    is given.

    Raises LookupError where there is no job `before`.
    """
    last = None
    if before is not None:
        last = connection.execute("SELECT rowid FROM job WHERE id = ?", (before,)).fetchone()
        if last is None:
            raise LookupError(before)
    wanted = [
        "coalesce(ended, created) >= ?" if by_end and since else "created >= ?",
        *(["rowid < ?"] if last else []),
        *([f"state IN ({', '.join('?' * len(states))})"] if states else []),
    ]
    values = (since, *([last[0]] if last else []), *states)
    if run is not None:
        wanted, values = [*wanted, "run = ?"], (*values, run)
    if root:
        wanted, values = [*wanted, "root = ?"], (*values, root)
    if is_run is not None:
        connection.create_function("is_run", 1, is_run, deterministic=True)
        wanted.append("is_run(run)")
    if run is None and (len(values) > 1 + bool(last) or since or is_run is not None):  # an index has all that is asked: the rows are long
        matching = connection.execute(
            f"SELECT rowid FROM job INDEXED BY job_queue WHERE {' AND '.join(wanted)} ORDER BY rowid DESC", values
        )
    else:
        matching = connection.execute(f"SELECT rowid FROM job WHERE {' AND '.join(wanted)} ORDER BY rowid DESC", values)
    for (row,) in matching:
        yield Place(*connection.execute("SELECT id, state, ended FROM job WHERE rowid = ?", (row,)).fetchone())


@dataclass(frozen=True)
class RunView:
    """A run of the journal."""

    root: str
    """The watched directory below which it lies."""
    run: str
    counts: Mapping[str, int]
    """State → number of jobs."""
    step: int
    """The largest step of its jobs."""
    latest: str
    """When its newest checkpoint was taken."""


def runs_of(connection: sqlite3.Connection) -> tuple[RunView, ...]:
    """All runs, those with the newest checkpoints first."""
    rows = connection.execute(
        "SELECT root, run, state, count(*) AS count, max(created) AS latest,"
        " (SELECT max(step) FROM job AS same WHERE same.run = job.run) AS step"
        " FROM job INDEXED BY job_queue GROUP BY root, run, state"
    )
    runs: dict[tuple[str, str], RunView] = {}
    for row in rows:
        key = (str(row["root"]), str(row["run"]))
        known = runs.get(key, RunView(*key, {}, int(row["step"]), ""))
        counts = {**known.counts, str(row["state"]): int(row["count"])}
        runs[key] = RunView(*key, counts, known.step, max(known.latest, str(row["latest"])))
    return tuple(sorted(runs.values(), key=lambda run: run.latest, reverse=True))


def targets_of(connection: sqlite3.Connection, run: str) -> list[tuple[str, str]]:
    """Folder and state of the exports of a run that have a report, the oldest first."""
    rows = connection.execute(
        "SELECT target, state FROM job WHERE run = ? AND state IN ('succeeded', 'partial') ORDER BY step, created", (run,)
    )
    return [(str(row[0]), str(row[1])) for row in rows]


def id_of_target(connection: sqlite3.Connection, target: str) -> str | None:
    """The latest job that was published as this folder; None where there is none."""
    row = connection.execute(
        "SELECT id FROM job WHERE target = ? ORDER BY state IN ('succeeded', 'partial') DESC, rowid DESC LIMIT 1", (target,)
    ).fetchone()
    return None if row is None else str(row[0])


def run_within(connection: sqlite3.Connection, folder: str) -> tuple[str, str] | None:
    """Root and name of the run of the latest export below a folder; None where there is none."""
    row = connection.execute(
        "SELECT root, run FROM job WHERE target >= ? AND target < ? ORDER BY target DESC LIMIT 1", (f"{folder}/", f"{folder}0")
    ).fetchone()
    return None if row is None else (str(row[0]), str(row[1]))


def checkpoint_state(connection: sqlite3.Connection, run: str, root: str) -> dict[str, object] | None:
    """What the trainer's state said at the latest checkpoint of a run; None where there is none."""
    row = connection.execute(
        "SELECT checkpoint FROM job WHERE run = ? AND (root = ? OR ? = '') ORDER BY step DESC, rowid DESC LIMIT 1", (run, root, root)
    ).fetchone()
    known = object_of(row[0]) if row is not None else None
    metadata = known.get("metadata") if known else None
    return metadata if isinstance(metadata, dict) else {}


def durations(connection: sqlite3.Connection, job: JobRow) -> tuple[dict[str, list[float]], float]:
    """What the stages of the latest exports like this job took, newest first, in seconds, and how many of them ran at a time.

    Alike are exports of the same run, and of the same base.
    """
    base = str(job.base) if job.base else None
    alike = connection.execute(
        # By rowid, whatever index there is for the state: the latest are wanted, and they are found soon.
        "SELECT id FROM job WHERE rowid > (SELECT max(rowid) FROM job) - ? AND +state IN ('succeeded', 'partial', 'failed') AND id <> ? AND"
        f" ((root = ? AND run = ?) OR base = ? OR {json_at('checkpoint', 'base_name')} = ?) ORDER BY rowid DESC LIMIT ?",
        (LATELY, job.id, job.checkpoint.root, job.checkpoint.run, base, job.checkpoint.base_name, ALIKE),
    ).fetchall()  # fmt: skip
    seconds: dict[str, list[float]] = {}
    worked = passed = 0.0
    for (id,) in alike:
        for row in connection.execute(
            f"SELECT name, {json_at('result', 'seconds')} AS seconds FROM stage WHERE job = ? AND state = 'succeeded'", (id,)
        ):  # fmt: skip
            seconds.setdefault(row["name"], []).append(float(row["seconds"] or 0))
        spans = connection.execute(
            "SELECT started, ended FROM attempt WHERE job = ? AND outcome = 'succeeded' AND ended IS NOT NULL ORDER BY started", (id,)
        )
        mine, together = _worked(spans.fetchall())
        worked, passed = worked + mine, passed + together
    return seconds, worked / passed if passed > 0 else 1.0


def _worked(spans: list[sqlite3.Row]) -> tuple[float, float]:
    """Seconds of all spans, begin to end each and by their begin, and of what they cover together."""
    total = covered = 0.0
    until = 0.0
    for row in spans:
        start, end = (datetime.fromisoformat(row[name]).timestamp() for name in ("started", "ended"))
        total += max(0.0, end - start)
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return total, covered


def attempts_of(connection: sqlite3.Connection, job: str) -> list[AttemptRow]:
    """All attempts of a job, in the order of their start."""
    rows = connection.execute("SELECT * FROM attempt WHERE job = ? ORDER BY started, number", (job,))
    return [legible_attempt(row) for row in rows]


def measured_by_stage(connection: sqlite3.Connection) -> dict[str, list[Measured]]:
    """Stage → what its latest attempts took, newest first."""
    by_stage: dict[str, list[Measured]] = {}
    for row in connection.execute("SELECT * FROM measured ORDER BY id DESC"):
        by_stage.setdefault(row["stage"], []).append(measured_of(row))
    return by_stage


def bases_used(connection: sqlite3.Connection) -> set[str]:
    """Names of the bases with which exports have begun, as their checkpoints give them ("" where they name none)."""
    rows = connection.execute(f"SELECT DISTINCT {json_at('checkpoint', 'base_name')} FROM job WHERE base IS NOT NULL")
    return {str(row[0] or "") for row in rows}


def open_ids(connection: sqlite3.Connection) -> set[str]:
    """Ids of the jobs that are not finished."""
    return {str(row[0]) for row in connection.execute("SELECT id FROM job WHERE state IN ('pending', 'running')")}


def known_ids(connection: sqlite3.Connection) -> set[str]:
    """Ids of all jobs."""
    return {str(row[0]) for row in connection.execute("SELECT id FROM job")}


def seen_as(connection: sqlite3.Connection, path: str) -> SeenRow | None:
    """What was last decided about a directory; None where nothing was."""
    row = connection.execute(
        "SELECT seen.*, job.state AS job_state FROM seen LEFT JOIN job ON job.id = seen.job WHERE path = ?", (path,)
    ).fetchone()
    return SeenRow(row["fingerprint"], row["verdict"], row["at"], row["job"], row["job_state"]) if row is not None else None


def _view(connection: sqlite3.Connection, row: sqlite3.Row, *, brief: bool = False) -> JobView:
    """`brief`: without figures, files and versions of the stages' results, which are most of a job and of which a list shows nothing."""
    columns = _BRIEF if brief else "*"
    stages = connection.execute(f"SELECT {columns} FROM stage WHERE job = ? ORDER BY position", (row["id"],))
    return JobView(*legible_job(row, stages.fetchall()))


def _counts(connection: sqlite3.Connection, table: str, state: str = "state") -> dict[str, int]:
    return {str(row[0]): int(row[1]) for row in connection.execute(f"SELECT {state}, count(*) FROM {table} GROUP BY 1")}


def _targets(connection: sqlite3.Connection) -> tuple[TargetState, ...]:
    rows = connection.execute(
        "SELECT place, failures, last_error, next_at,"
        " (SELECT count(*) FROM delivery WHERE target = digest AND state = 'pending') waiting,"
        " (SELECT count(*) FROM delivery WHERE target = digest AND state = 'abandoned' AND ended >= datetime('now', '-7 days')) given_up"
        " FROM target ORDER BY rowid"
    )
    return tuple(
        TargetState(
            row["place"], row["waiting"], row["given_up"], row["failures"], row["last_error"], row["next_at"] if row["waiting"] else None
        )
        for row in rows
    )  # fmt: skip


def _lost(connection: sqlite3.Connection, limit: int) -> tuple[LostRow, ...]:
    rows = connection.execute("SELECT path, first_seen, last_seen, lived, at FROM lost ORDER BY id DESC LIMIT ?", (limit,))
    return tuple(LostRow(*row) for row in rows)
