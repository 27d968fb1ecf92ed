"""Invariants of the journal alone: each a query that finds what must not be, or a small function.

Called by `daemon.operating.integrity.fsck` inside one read transaction. A query gives the columns `job` and `what`; its row is a finding.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from daemon.contract.jobs.messages import CheckpointRef, JobFacts, StageFacts
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import find_spec, spec_of, stage_names
from daemon.contract.jobs.verdicts import status_that_follows
from daemon.journal.file.integrity import odd_rows, unbelievable, unsound
from daemon.journal.file.sqlite_errors import REPAIR
from daemon.journal.rows import JobRow, job_of, stage_of
from daemon.journal.states import ENDED_STAGE
from daemon.operating.integrity.scene import REPORTED, Scene

LATEST = 200
"""Ended jobs whose verdict is derived again unless everything is to be checked."""
_REPORT = "stop the daemon and keep a copy of the journal for a bug report; `ckptd queue retry` repeats the export"
_WAIT = "start the daemon, which corrects this; if it does not, report it with a copy of the journal"


@dataclass(frozen=True)
class JournalRule:
    """A query whose every row is a finding. `text` may use {what}."""

    code: str
    query: str
    text: str
    remedy: str = _REPORT


def _listed(values: tuple[str, ...]) -> str:
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"


_REPORTED, _GIVEN_UP = _listed(REPORTED), "('superseded', 'cancelled')"

RULES = (
    JournalRule(
        "job-without-stages", "SELECT id job, '' what FROM job WHERE NOT EXISTS (SELECT 1 FROM stage WHERE stage.job = job.id)",
        "it has no stages, so it can neither run nor end",
    ),
    JournalRule(
        "ended-job-open-stage",
        f"SELECT job, name || ' is ' || stage.state what FROM stage JOIN job ON job.id = stage.job"
        f" WHERE job.state IN {_REPORTED} AND stage.state NOT IN {_listed(ENDED_STAGE)}",
        "it has ended, but its stage {what}",
    ),
    JournalRule(
        "given-up-job-running",
        f"SELECT job, name what FROM stage JOIN job ON job.id = stage.job"
        f" WHERE job.state IN {_GIVEN_UP} AND job.untidy = 0 AND stage.state = 'running'",
        "it was cancelled or superseded and removed, but its stage {what} is running", _WAIT,
    ),
    JournalRule(
        "pending-job-running",
        "SELECT job, name what FROM stage JOIN job ON job.id = stage.job WHERE job.state = 'pending' AND stage.state = 'running'",
        "it has not been started, but its stage {what} is running",
    ),
    JournalRule(
        "untidy-open-job", f"SELECT id job, state what FROM job WHERE untidy = 1 AND state NOT IN {_GIVEN_UP}",
        "it is marked for removal although it is {what}",
    ),
    JournalRule(
        "job-end-time",
        "SELECT id job, state || ' with the end ' || COALESCE(ended, 'missing') what FROM job"
        " WHERE (ended IS NULL) <> (state IN ('pending', 'running'))",
        "it is {what}",
    ),
    JournalRule(
        "attempts-open",
        "SELECT job, count(*) || ' of ' || stage what FROM attempt WHERE outcome IS NULL GROUP BY job, stage HAVING count(*) > 1",
        "several attempts are open at once: {what}",
    ),
    JournalRule(
        "attempt-without-stage",
        "SELECT attempt.job job, stage || '.' || number || ', whose stage is ' || state what FROM attempt"
        " JOIN stage ON stage.job = attempt.job AND stage.name = attempt.stage WHERE outcome IS NULL AND state <> 'running'",
        "an attempt is open, but no stage runs it: {what}",
    ),
    JournalRule(
        "stage-without-attempt",
        "SELECT job, name what FROM stage WHERE state = 'running' AND NOT EXISTS"
        " (SELECT 1 FROM attempt WHERE attempt.job = stage.job AND attempt.stage = stage.name AND outcome IS NULL)",
        "the stage {what} is running without an open attempt, so it would never end",
    ),
    JournalRule(
        "attempts-miscounted",
        "SELECT stage.job job, name || ' counts ' || attempts || ', there are ' || count(number) || ' up to number '"
        " || COALESCE(max(number), 0) what FROM stage LEFT JOIN attempt ON attempt.job = stage.job AND attempt.stage = stage.name"
        " GROUP BY stage.job, name HAVING attempts <> count(number) OR attempts <> COALESCE(max(number), 0)",
        "attempts are not numbered consecutively: {what}",
    ),
    JournalRule(
        "attempt-half-ended",
        "SELECT job, stage || '.' || number what FROM attempt WHERE (outcome IS NULL) <> (ended IS NULL)",
        "the attempt {what} has an outcome without an end, or the other way round",
    ),
    JournalRule(
        "stage-without-result",
        "SELECT job, name what FROM stage WHERE state = 'succeeded' AND (result IS NULL OR folder IS NULL)",
        "the stage {what} has succeeded without a result",
    ),
    JournalRule(
        "failure-without-reason", "SELECT job, name what FROM stage WHERE state = 'failed' AND fault IS NULL",
        "the stage {what} has failed, but no reason is recorded",
    ),
    JournalRule(
        "shared-target",
        "SELECT later.id job, later.target || ', as ' || earlier.id what FROM job later JOIN job earlier"
        " ON earlier.target = later.target AND earlier.rowid < later.rowid AND earlier.identity <> later.identity"
        " AND (json_extract(earlier.checkpoint, '$.path') <> json_extract(later.checkpoint, '$.path')"
        "  OR COALESCE(json_extract(earlier.checkpoint, '$.weight'), 1.0) <> COALESCE(json_extract(later.checkpoint, '$.weight'), 1.0)"
        "  OR COALESCE(json_extract(earlier.checkpoint, '$.additions'), '[]')"
        "   <> COALESCE(json_extract(later.checkpoint, '$.additions'), '[]'))"
        " WHERE 'superseded' NOT IN (earlier.state, later.state)"
        " AND (earlier.state IN ('pending', 'running') OR later.state IN ('pending', 'running'))",
        "it is to be published in another checkpoint's folder: {what}", "cancel one of the two and export it with `ckptd export --output`",
    ),
    JournalRule(
        "taken-without-job",
        "SELECT seen.job job, path what FROM seen WHERE verdict = 'taken' AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = seen.job)",
        "a checkpoint was taken, but its job is missing: {what}", "run `ckptd export` on that checkpoint",
    ),
    JournalRule(
        "message-twice",
        f"SELECT job.id job, count(*) what FROM job JOIN outbox ON outbox.job = job.id AND outbox.created >= job.ended"
        " AND outbox.kind NOT IN ('delivered', 'delivery_failed')"
        f" WHERE job.state IN {_REPORTED} GROUP BY job.id HAVING count(*) > 1",
        "it has {what} notifications of its end",
    ),
    JournalRule(
        "delivery-without-end",
        "SELECT job, target what FROM shipment WHERE (state = 'delivered' AND receipt IS NULL) OR (state = 'failed' AND fault IS NULL)",
        "its delivery to {what} has ended, but how is not recorded", "run `ckptd deliver` with that export and that target again",
    ),
    JournalRule(
        "message-state",
        "SELECT job, id || ' is ' || state what FROM outbox WHERE (state = 'delivered') <> (delivered IS NOT NULL)"
        " OR (state <> 'pending' AND EXISTS (SELECT 1 FROM delivery WHERE message = id AND delivery.state = 'pending'))",
        "the message {what}, but its time or its deliveries say otherwise",
    ),
)  # fmt: skip


def check_file(connection: sqlite3.Connection, scene: Scene, *, thorough: bool) -> bool:
    """Whether the file is a sound database of ours; where not, nothing else in it can be believed."""
    problems = unsound(connection, full=thorough) or unbelievable(connection) or list(odd_rows(connection))
    for problem in problems:
        scene.find("journal-damaged", f"the journal is not a valid database: {problem}", REPAIR, path=scene.paths.journal)
    return not problems


def check_rules(connection: sqlite3.Connection, scene: Scene) -> None:
    """Every rule of the table."""
    for rule in RULES:
        for row in connection.execute(rule.query):
            scene.find(rule.code, rule.text.format(what=row["what"]), rule.remedy, job=row["job"])


def check_plans(scene: Scene) -> None:
    """An open job has the stages that its configuration asks for, each after what it needs."""
    stages: dict[str, list[str]] = {}
    for row in scene.stages:
        stages.setdefault(row["job"], []).append(row["name"])
    planned: dict[tuple[str, str], tuple[str, ...]] = {}
    for job in scene.jobs:
        if not job["work"] or job["id"] not in stages:
            continue
        plan = (job["work"], CheckpointRef.model_validate_json(job["checkpoint"]).layout)
        if plan not in planned:
            planned[plan] = tuple(stage_names(Work.recovered(job["work"]), plan[1]))
        names = stages[job["id"]]
        if unknown := [name for name in names if find_spec(name) is None]:
            scene.find("stage-unknown", f"it has unknown stages: {', '.join(unknown)}",
                       "install the ckptd version that planned it, or cancel it",
                       job=job["id"])  # fmt: skip
        elif missing := [name for name in planned[plan] if name not in names]:
            scene.find(
                "plan-incomplete", f"it lacks the stage {', '.join(missing)}, which its configuration asks for", _REPORT, job=job["id"]
            )
        elif early := [name for i, name in enumerate(names) if any(need in names[i:] for need in spec_of(name).needs)]:
            scene.find("plan-order", f"the stage {', '.join(early)} comes before one that it needs", _REPORT, job=job["id"])


def check_verdicts(connection: sqlite3.Connection, scene: Scene) -> None:
    """The state of a job that ended is the one that follows from its stages and their checks."""
    limit = -1 if scene.deep else LATEST
    for row in connection.execute(f"SELECT * FROM job WHERE state IN {_REPORTED} ORDER BY ended DESC LIMIT ?", (limit,)).fetchall():
        stages = connection.execute("SELECT * FROM stage WHERE job = ? ORDER BY position", (row["id"],)).fetchall()
        try:
            job, facts = _facts(row, stages)
        except (ValueError, TypeError):  # JSON, but of another kind than ours
            scene.find("journal-damaged", "a text of the job or of its stages in the journal can't be read", REPAIR, job=row["id"])
            continue
        if job.state == "failed" and job.reason is not None:  # it was not published, whatever its checks say
            continue
        follows = status_that_follows(facts)
        if job.state != follows:
            scene.find("job-state-wrong", f"it is {job.state}, but its stages and checks say {follows}", _REPORT, job=job.id)


def _facts(row: sqlite3.Row, stages: list[sqlite3.Row]) -> tuple[JobRow, JobFacts]:
    """A job, and what its state follows from. Raises ValueError and TypeError for texts that can't be read."""
    job, rows = job_of(row), map(stage_of, stages)
    return job, JobFacts(
        export_id=job.id, created=job.created, checkpoint=job.checkpoint, work=job.work,
        stages=tuple(StageFacts(name=stage.name, state=stage.state, result=stage.result, fault=stage.fault) for stage in rows),
    )  # fmt: skip
