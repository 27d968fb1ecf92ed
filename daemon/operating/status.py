"""The status for users and programs: the journal and the running daemon's live file, read from outside.

Never blocks the daemon: the journal is opened read-only for the length of a few queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.config.paths import JOB_FILE, LOG_FILE, StatePaths
from daemon.contract.jobs.messages import ArtifactCheck
from daemon.contract.jobs.verdicts import is_published
from daemon.contract.values import Json
from daemon.contract.version import __version__
from daemon.journal.database import reading
from daemon.journal.overview import JobView, JournalCare, LostRow, Overview, TargetState, attempts_of, jobs_named, overview
from daemon.journal.rewrites import Rewritten
from daemon.journal.rows import AttemptRow, StageRow
from daemon.operating.disk_watch import advice
from daemon.operating.last_end import LastEnd
from daemon.operating.last_end import read as read_last_end
from daemon.operating.live import ConfigLoad, IncompleteState, LiveFile, RootState, StageProgress, read_live
from daemon.publishing.closing import target_of
from daemon.system.disks import LEAST_BYTES, Place, Shortage, short_of_room
from daemon.system.lock import is_locked
from daemon.system.threads import Death


@dataclass(frozen=True)
class DaemonState:
    """The daemon of a state directory; what it last wrote of itself, None where none runs."""

    running: bool
    pid: int | None
    started: str | None
    healthy: bool | None
    configuration: ConfigLoad | None
    journal: JournalCare | None
    verdict: str | None = None
    """`healthy`; `full`: a disk has no room, and work waits; `unwell`."""
    unwell: tuple[str, ...] = ()
    """Why it is unwell, as sentences."""
    deaths: tuple[Death, ...] = ()
    """Threads that died of an error since the start, and were begun again: the latest of each."""
    said: str | None = None
    """When it last wrote of itself."""


@dataclass(frozen=True)
class StageStatus:
    """A stage of a job."""

    name: str
    state: str
    attempts: int
    fraction: float | None
    """How much of it is done; None where that is not known."""
    message: str | None
    """What it does now; None where it does not run."""
    seconds: float | None
    """How long it took, or has run up to now."""
    error: str | None


@dataclass(frozen=True)
class AttemptStatus:
    """One attempt at a stage. Times are ISO 8601 in UTC."""

    stage: str
    number: int
    strategy: str
    outcome: str | None
    """None while it runs."""
    estimate: int | None
    """Bytes of memory that it was started for."""
    started: str
    ended: str | None
    error: str | None
    job_file: str
    log: str


@dataclass(frozen=True)
class JobStatus:
    """An export. Times are ISO 8601 in UTC; `loss` to `evaluation` are as the trainer wrote them, None where it did not."""

    id: str
    run: str
    step: int
    ending: bool
    """Written when training had ended, after the checkpoint of that step."""
    state: str
    created: str
    started: str | None
    ended: str | None
    checkpoint: str
    """Folder in which training wrote it."""
    method: str
    base: str | None
    """Folder of the base model, or its name where it was not found yet."""
    loss: float | None
    epoch: float | None
    rank: int | None
    best_metric: float | None
    evaluation: Json | None
    target: str
    """Folder of the export."""
    waiting_for: str | None
    """Why none of its stages can start now."""
    error: str | None
    """Why it ended otherwise than asked for, or the first stage that failed."""
    paused: bool
    warnings: tuple[str, ...]
    artifacts: Mapping[str, str]
    """Variant → verdict."""
    stages: tuple[StageStatus, ...]
    """In the plan's order."""


@dataclass(frozen=True)
class JobDetails(JobStatus):
    """An export with its attempts, in the order of their start."""

    attempts: tuple[AttemptStatus, ...]


@dataclass(frozen=True)
class Snapshot:
    """The daemon, its open jobs and the latest ended ones, and the outbox. The names are stable for programs."""

    version: str
    state_directory: str
    daemon: DaemonState
    paused: str | None
    """Since when everything is paused."""
    journal: Json | None
    """How the journal came back from damage; None where it was never damaged."""
    roots: tuple[RootState, ...]
    incomplete: tuple[IncompleteState, ...]
    passed_over: Mapping[str, str]
    """Directory that holds a checkpoint and is not taken → why, and what to set."""
    unreadable: Mapping[str, str]
    """Directory that the daemon can't read → why: mostly who lacks which right on which path, and what to do."""
    lost: tuple[LostRow, ...]
    """Checkpoints that were deleted before they could be pinned, newest first."""
    rewritten: tuple[Rewritten, ...]
    """Directories that are written again and again before an export of them ends."""
    jobs: tuple[JobStatus, ...]
    """In the order in which they were entered."""
    counts: Mapping[str, int]
    """State → number of jobs."""
    outbox: Mapping[str, int]
    """State → number of notifications."""
    notified: tuple[TargetState, ...]
    """The services that get them."""
    disks: tuple[Shortage, ...] = ()
    """File systems without room for what is to be written."""
    last_end: LastEnd | None = None
    """Why the daemon, or the one before it, ended by itself."""


def snapshot(state: Path, *, limit: int = 50) -> Snapshot:
    """The status of a state directory, with at most `limit` jobs. Raises ValueError where the journal can't be read."""
    paths = StatePaths(state)
    running = is_locked(paths.lock)
    live = read_live(paths.live) if running else LiveFile()
    try:
        with reading(paths.journal) as connection:
            seen = overview(connection, limit)
    except FileNotFoundError:
        seen = Overview()
    disks = _short(state, live)
    verdict = live.verdict if not running or not disks else "full"
    return Snapshot(
        version=__version__,
        state_directory=str(state),
        daemon=DaemonState(
            running, live.pid, live.started, live.healthy, live.configuration, live.journal, verdict, live.unwell, live.deaths, live.time
        ),
        paused=seen.paused_since,
        journal=seen.rebuilt,
        roots=live.roots,
        incomplete=tuple(replace(one, seconds=round(one.seconds + live.listed)) for one in live.incomplete),
        passed_over=live.passed_over,
        unreadable=live.unreadable,
        lost=seen.lost,
        rewritten=seen.rewritten,
        jobs=tuple(_job(view, live) for view in seen.jobs),
        counts=seen.counts,
        outbox=seen.outbox,
        notified=seen.targets,
        disks=disks,
        last_end=live.last_end or read_last_end(paths),
    )


def _short(state: Path, live: LiveFile) -> tuple[Shortage, ...]:
    """What has no room now: looked at afresh, since a daemon on a full disk may not be able to say so; else as it said."""
    places = live.places or (Place("state.directory", str(state), LEAST_BYTES),)
    told = {one.folder: one for one in live.disks}
    needs = [Place(one.keys[0], one.folder, one.needed) for one in live.disks]
    refused = {one.folder: one.refused for one in live.disks if one.refused is not None}
    found = short_of_room(places, needs, refused)
    return tuple(replace(one, delete=told[one.folder].delete if one.folder in told else advice(one, StatePaths(state))) for one in found)


def find(state: Path, wanted: str) -> list[JobDetails]:
    """The jobs whose id is `wanted`, else those whose id begins with it, at most two."""
    paths = StatePaths(state)
    live = read_live(paths.live) if is_locked(paths.lock) else LiveFile()
    try:
        with reading(paths.journal) as connection:
            return [
                JobDetails(**vars(_job(view, live)), attempts=tuple(_attempt(one) for one in attempts_of(connection, view.job.id)))
                for view in jobs_named(connection, wanted)
            ]
    except FileNotFoundError:
        return []


def _attempt(row: AttemptRow) -> AttemptStatus:
    return AttemptStatus(
        stage=row.stage,
        number=row.number,
        strategy=row.strategy,
        outcome=row.outcome,
        estimate=row.estimate,
        started=row.started,
        ended=row.ended,
        error=row.fault.sentence() if row.fault else None,
        job_file=str(row.folder / JOB_FILE),
        log=str(row.folder / LOG_FILE),
    )


def _stage(stage: StageRow, progress: StageProgress | None) -> StageStatus:
    live = progress if stage.state == "running" else None
    return StageStatus(
        name=stage.name,
        state=stage.state,
        attempts=stage.attempts,
        fraction=1.0 if stage.state == "succeeded" else live.fraction if live else None,
        message=live.message if live else None,
        seconds=stage.result.seconds if stage.result else live.seconds if live else None,
        error=stage.fault.sentence() if stage.fault else None,
    )


def _rejection(check: ArtifactCheck) -> str:
    """Why an artifact was not published, as a stage's fault would say it."""
    why = "; ".join(check.reasons) or "it did not pass its check"
    return f"Could not publish {check.variant}: {why}." + (f" To fix it: {check.remedy}." if check.remedy else "")


def _job(view: JobView, live: LiveFile) -> JobStatus:
    job, checkpoint = view.job, view.job.checkpoint
    progress, metadata = live.progress.get(job.id, {}), checkpoint.metadata
    checks = [check for stage in view.stages if stage.result for check in stage.result.checks]
    stages = tuple(_stage(stage, progress.get(stage.name)) for stage in view.stages)
    errors = [stage.error for stage in stages if stage.state == "failed" and stage.error]
    if job.state in ("failed", "partial"):
        errors += [_rejection(check) for check in checks if not is_published(check, job.work.validation.publish_unverified)]
    return JobStatus(
        id=job.id,
        run=checkpoint.run,
        step=checkpoint.step,
        ending=checkpoint.ending,
        state=job.state,
        created=job.created,
        started=job.started,
        ended=job.ended,
        checkpoint=checkpoint.path,
        method=checkpoint.method,
        base=str(job.base) if job.base else checkpoint.base_name,
        loss=metadata.get("loss"),
        epoch=metadata.get("epoch"),
        rank=metadata.get("rank"),
        best_metric=metadata.get("best_metric"),
        evaluation=metadata.get("evaluation"),
        target=str(target_of(job, job.state)),
        waiting_for=live.waiting.get(job.id),
        error=job.reason or (errors[0] if errors else None),
        paused=job.paused,
        warnings=job.warnings,
        artifacts={check.variant: str(check.verdict) for check in checks},
        stages=stages,
    )
