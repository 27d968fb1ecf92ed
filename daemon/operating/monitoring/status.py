"""The status for users and programs: the journal and the running daemon's live file, read from outside.

Never blocks the daemon: the journal is opened read-only for the length of a few queries.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

from daemon.config.places.export_names import folder_of, is_kept
from daemon.config.places.paths import FOREGROUND, JOB_FILE, LOG_FILE, StatePaths
from daemon.contract.disk.answers import ask
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import local_time
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.messages import ArtifactCheck
from daemon.contract.jobs.plan import find_spec
from daemon.contract.jobs.verdicts import is_published
from daemon.contract.light import dataclass
from daemon.contract.values import Json
from daemon.contract.version import __version__
from daemon.journal.file.opening import reading
from daemon.journal.named import ids_named
from daemon.journal.overview import (
    JobView,
    JournalCare,
    LostRow,
    Overview,
    TargetState,
    attempts_of,
    durations,
    ids_failed,
    job_of_id,
    overview,
    standing,
)
from daemon.journal.overview import Place as JobPlace
from daemon.journal.rewrites import Rewritten
from daemon.journal.rows import AttemptRow, JobRow, StageRow
from daemon.journal.shipment_rows import TargetDeliveries, deliveries
from daemon.journal.states import ENDED_JOB
from daemon.operating.disks.advice import advice
from daemon.operating.last_end import LastEnd
from daemon.operating.last_end import read as read_last_end
from daemon.operating.monitoring.artifacts import Became, LostArtifact, became
from daemon.operating.monitoring.deliveries import DeliveryStatus, looked_up
from daemon.operating.monitoring.live import (
    REWRITE_SECONDS,
    STILL_SECONDS,
    ConfigLoad,
    DelayedState,
    IncompleteState,
    LiveFile,
    PageState,
    RootState,
    StageProgress,
    read_live,
)
from daemon.operating.monitoring.outlook import CROWDED, Earlier, job_left, retrying, stage_left, starved, starving
from daemon.operating.monitoring.reasons import failure, together, waiting
from daemon.running.attempts.executor import Whereabouts
from daemon.running.rules import ready
from daemon.system.elsewhere import elsewhere
from daemon.system.filesystems.disks import LEAST_BYTES, Place, Shortage, short_of_room
from daemon.system.lock import holder, is_locked
from daemon.system.processes.rivals import Rival
from daemon.system.processes.threads import Death

T = TypeVar("T")
J = TypeVar("J", bound="JobStatus")
REPORT = "report.json"
_MOST_ENDED = 1000
"""Exports that are kept for lists, some KiB each."""
_ended: dict[tuple[str, ...], JobStatus] = {}
_reading = threading.Lock()


@dataclass(frozen=True)
class DaemonState:
    """The daemon of a state directory, with the information that it last wrote; None if no daemon runs.

    Of a daemon that runs no more `configuration` and `said` remain.
    """

    running: bool
    pid: int | None
    started: str | None
    healthy: bool | None
    configuration: ConfigLoad | None
    journal: JournalCare | None
    verdict: str | None = None
    """`healthy`; `full`: a disk has too little free space, and work waits; `unwell`."""
    unwell: tuple[str, ...] = ()
    """Why it is unwell, as sentences."""
    deaths: tuple[Death, ...] = ()
    """Threads that ended with an error since the start and were restarted; the latest error of each."""
    said: str | None = None
    """Time when it last wrote its state; if no daemon runs, when the last one did."""
    killed: bool = False
    """Whether no daemon runs, and the last one did not shut down cleanly: it was killed or it crashed, or the machine stopped."""
    stopping: str | None = None
    """Time since which it shuts down: it starts nothing new and waits until the running stages have ended."""
    starved: tuple[str, ...] = ()
    """Sentences on the stages that other processes have kept from most of their CPU time for minutes. The daemon is well all the same."""
    page: PageState | None = None
    """The page and the API; None while they are off."""
    schedulers: tuple[str, ...] = ()
    """Sentences on schedulers of other machines: which gives no answer, and, if no daemon runs, which jobs of the last one may still run
    there."""
    host: str | None = None
    """The machine on which it runs, if that is another one and the file system does not show its lock here: then jobs, counts and all else
    that stands in the journal are left out."""


@dataclass(frozen=True)
class StageStatus:
    """A stage of a job."""

    name: str
    state: str
    attempts: int
    fraction: float | None
    """The completed part, 0 to 1; None if it is not known."""
    message: str | None
    """What it does now; None if it does not run."""
    seconds: float | None
    """How long it took, or how long it has run until now."""
    error: str | None
    left_seconds: float | None = None
    """Estimated remaining time, from earlier stages and from its progress, never from that alone; None if there is no estimate, or if it
    does not run."""
    cores: float | None = None
    """CPU time that it got recently, in cores; None if it is not known, or if it does not run."""
    place: Whereabouts | None = None
    """Where it runs or waits, where a scheduler has it."""
    starved: str | None = None
    """A sentence if other processes take the CPU time that it could use; None if they do not."""
    rivals: tuple[Rival, ...] = ()
    """The processes that take it, the largest first, as far as this user can see them."""
    memory_bytes: int | None = None
    """Memory that it held at the daemon's last look; None if it is not known, or if it does not run."""
    retry_at: str | None = None
    """When it is tried again, ISO 8601 in UTC; None if it does not wait for that."""

    @property
    def is_reused(self) -> bool:
        """Whether it ended without an attempt of its own, with the output of an earlier one."""
        return self.state == "succeeded" and self.attempts == 0


@dataclass(frozen=True)
class AttemptStatus:
    """One attempt at a stage. Times are ISO 8601 in UTC."""

    stage: str
    number: int
    strategy: str
    outcome: str | None
    """None while it runs."""
    estimate: int | None
    """Estimated memory at its start, in bytes."""
    started: str
    ended: str | None
    error: str | None
    job_file: str
    log: str


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """An export. Times are ISO 8601 in UTC; the fields from `loss` to `evaluation` are from the trainer, None if it did not write them."""

    id: str
    run: str
    step: int
    ending: bool
    """Whether it was written at the end of the training, after the checkpoint of that step."""
    state: str
    created: str
    started: str | None
    ended: str | None
    checkpoint: str
    """Folder into which the training wrote it."""
    method: str
    base: str | None
    """Folder of the base model, or its name if it is not found yet."""
    loss: float | None
    epoch: float | None
    rank: int | None
    best_metric: float | None
    evaluation: Json | None
    target: str
    """Folder of the export."""
    waiting_for: str | None
    """Why no stage of it runs now; None if a stage runs or starts soon."""
    error: str | None
    """Why it did not end as requested, or the first stage that failed."""
    paused: bool
    warnings: tuple[str, ...]
    artifacts: Mapping[str, str]
    """Variant → verdict; if the export has not ended, of the variants that are checked already. `unpublished`: it passed, and the export
    could not be published."""
    stages: tuple[StageStatus, ...]
    """The stages, in the order of the plan."""
    activity: str = ""
    """Its present state: `running`, `waiting`, `paused`, `stopped` (it was running, and no daemon runs), or the state in which it
    ended."""
    left_seconds: float | None = None
    """Estimated remaining work, in seconds; None if there is no estimate."""
    report_file: str | None = None
    """Path of its report, if there is one."""
    first: bool = False
    """Whether it waits at the front of the queue, because of `ckptd queue first`."""
    checkpoint_gone: bool = False
    """Whether an export that did not succeed has no folder of its checkpoint any more, so that it can't be tried again."""
    kept: bool = False
    """Whether `ckptd prune --keep` named its export, so that no rule of `[retention]` removes it."""
    foreground: bool = False
    """Whether `ckptd export` makes it, and not the daemon."""
    reason: str | None = None
    """In a few words: what it waits for, or why it failed or is partial, for example `waits for its base`, `base not found`,
    `rejected: KL`, `timed out`; None if there is nothing to say."""
    lost: tuple[LostArtifact, ...] = ()
    """The variants of an export that has ended which were not made or not checked, each with the stage that failed."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Variant asked for that was not exact enough → the form that is published in its place."""
    deliveries: tuple[DeliveryStatus, ...] = ()
    """Its deliveries to targets of `[[deliver]]`, by their names."""
    added: tuple[str, ...] = ()
    """The forms in `artifacts` that nobody asked for, made in the place of others."""
    undecided: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variant → the limits (`kl`, `agreement`, `perplexity`, `fine_tuning`) of which its check does not say whether it keeps them."""


@dataclass(frozen=True, kw_only=True)
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
    """Time since which everything is paused."""
    journal: Json | None
    """How the journal was rebuilt after damage; None if it was never damaged."""
    roots: tuple[RootState, ...]
    incomplete: tuple[IncompleteState, ...]
    passed_over: Mapping[str, str]
    """Directory with a checkpoint that is not taken → why, and what to set."""
    unreadable: Mapping[str, str]
    """Directory that the daemon can't read → why: usually which user needs which right on which path, and what to do."""
    lost: tuple[LostRow, ...]
    """Checkpoints that were deleted before they could be pinned, newest first."""
    rewritten: tuple[Rewritten, ...]
    """Directories that are overwritten again and again before their export ends."""
    jobs: tuple[JobStatus, ...]
    """The open jobs and the latest ended ones, in the order in which they were created."""
    counts: Mapping[str, int]
    """State → number of jobs."""
    outbox: Mapping[str, int]
    """State → number of notifications: `pending`, `held` (until quiet hours end), `delivered`, `abandoned`."""
    notified: tuple[TargetState, ...]
    """The services that get notifications."""
    disks: tuple[Shortage, ...] = ()
    """File systems with too little free space."""
    last_end: LastEnd | None = None
    """Why the daemon, or the previous one, stopped because of an error."""
    foreground: tuple[JobStatus, ...] = ()
    """Exports that `ckptd export` makes now in this state directory."""
    config: str | None = None
    """The configuration file that this command used; None if there is none."""
    delayed: tuple[DelayedState, ...] = ()
    """Complete checkpoints that can't be taken now, for example because a disk is full; they are tried again until they can."""
    deliveries: tuple[TargetDeliveries, ...] = ()
    """The deliveries to each target of `[[deliver]]` that has any."""
    config_problem: str | None = None
    """Why that file can't be used as it is now, as a sentence; None if it can. A running daemon continues with what it read before."""


def snapshot(state: Path, *, limit: int = 50, anywhere: bool = False) -> Snapshot:
    """The status of a state directory, with at most `limit` jobs. Raises ValueError where the journal can't be read.

    `anywhere`: also where a daemon of another machine keeps the journal from this one; then without what stands in it.
    """
    paths = StatePaths(state)
    away = elsewhere(state) if anywhere else None
    running = away is not None or is_locked(paths.lock)
    last = read_live(paths.live)
    live = last.aged() if running else LiveFile()
    still = _standing_still(paths, live) if running and away is None else None

    delivered: list[TargetDeliveries] = []

    def look(connection: Connection) -> tuple[Overview, tuple[JobStatus, ...]]:
        seen = overview(connection, limit)
        delivered.extend(deliveries(connection))
        scene = _scene(connection, live, running)
        return seen, tuple(job for place in seen.jobs if (job := _in_list(connection, state, place, scene)) is not None)

    seen, jobs = (None if away else _ask_journal(state, look)) or (Overview(), ())
    disks = _short(state, live)
    verdict = "unwell" if still else live.verdict if not running or not disks else "full"
    return Snapshot(
        version=__version__,
        state_directory=str(state),
        daemon=DaemonState(
            running,
            live.pid if away is None else away.pid,
            live.started if away is None else away.since,
            False if still else live.healthy,
            last.configuration,
            live.journal,
            verdict,
            (still, *live.unwell) if still else live.unwell,
            live.deaths,
            last.time,
            killed=not running and last.in_order is False,
            stopping=live.stopping,
            starved=live.starved,
            page=live.page,
            schedulers=_silent_schedulers(live) if running else _left_elsewhere(state),
            host=None if away is None else away.host,
        ),
        paused=seen.paused_since,
        journal=seen.rebuilt,
        roots=live.roots,
        incomplete=live.incomplete,
        passed_over=live.passed_over,
        delayed=live.delayed,
        unreadable=live.unreadable,
        lost=seen.lost,
        rewritten=seen.rewritten,
        jobs=jobs,
        counts=seen.counts,
        outbox=seen.outbox,
        notified=seen.targets,
        disks=disks,
        last_end=live.last_end or read_last_end(paths),
        foreground=_in_the_foreground(state),
        deliveries=tuple(delivered),
    )


def _silent_schedulers(live: LiveFile) -> tuple[str, ...]:
    """Sentences on the schedulers that give no answer."""
    places = [row.place for stages in live.progress.values() for row in stages.values() if row.place is not None]
    away = dict.fromkeys(place.away for place in places if place.away)
    return tuple(f"{said}: what runs there goes on, the rest waits, and it is asked again." for said in away)


def _left_elsewhere(state: Path) -> tuple[str, ...]:
    """Sentences on what the daemon that runs no more handed in, and may still run."""
    if next(StatePaths(state).jobs.glob("*/*/orders.json"), None) is None:
        return ()
    from daemon.contract.jobs.processes.elsewhere import still_open  # seldom needed

    by_scheduler: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        for _, orders in still_open(StatePaths(state).jobs):
            if orders.submission != "none":
                by_scheduler.setdefault(orders.scheduler, []).append(orders.id or orders.token)
    return tuple(
        f"Jobs of {scheduler} that the daemon handed in may still wait or run there: {', '.join(ids)}. A daemon that is started takes them"
        " over."
        for scheduler, ids in by_scheduler.items()
    )


def _standing_still(paths: StatePaths, live: LiveFile) -> str | None:
    """The sentence that the running daemon has not written its state for long; what it wrote before is no longer true then.

    One that shuts down writes once and then waits for its stages. A daemon that has just been started had no time to write yet: there lies
    what the one before it wrote, which may have had the same pid in its container.
    """
    age, (pid, locked_seconds) = live.age(), holder(paths.lock)
    if age is None or live.stopping or pid != live.pid or age < STILL_SECONDS or 0 <= locked_seconds < STILL_SECONDS:
        return None
    since = local_time(datetime.fromtimestamp(time.time() - age, UTC).isoformat(), "seconds")
    return (
        f"The daemon (pid {pid}) stands still: since {since}, {age:.0f} s ago, it has not written its state, which it does at least every"
        f" {REWRITE_SECONDS:.0f} s, so what is shown here may be outdated. Fix: if its process was stopped (SIGSTOP), continue it with"
        f" `kill -CONT {pid}`; if {paths.state} does not answer, look at its disk; otherwise restart the daemon."
    )


def _in_the_foreground(state: Path) -> tuple[JobStatus, ...]:
    """What `ckptd export` works on now: each of its checkpoints has a state directory of its own."""
    folders = [folder for folder in _by_hand(state) if is_locked(StatePaths(folder).lock)]
    return tuple(_at_work(job) for folder in folders for job in snapshot(folder).jobs if job.state not in ENDED_JOB)


def _by_hand(state: Path) -> list[Path]:
    """The state directories of exports in the foreground."""
    try:
        return sorted((state / FOREGROUND).iterdir())
    except OSError:
        return []


def _at_work(job: J) -> J:
    """An open job that a command works on: no other is before it, so what it awaits between two stages is over in a moment."""
    passing = job.reason in (None, *map(waiting, ready.SOON))
    job = replace(job, foreground=True)
    return replace(job, activity="running", waiting_for=None, reason=None) if passing else job


def rows(value: Snapshot) -> tuple[JobStatus, ...]:
    """Every export once: one that is made by hand while the daemon's own job of it waits is shown as what it is, running."""
    made = {job.id for job in value.foreground}
    return (*(job for job in value.jobs if job.id not in made or job.activity not in ("waiting", "stopped")), *value.foreground)


@dataclass(frozen=True)
class _Scene:
    """What is known around a job."""

    live: LiveFile
    running: bool
    """Whether a daemon, or an export in the foreground, works on its journal."""
    paused: str | None
    at_work: int
    """Jobs that were begun and have not ended."""
    earlier: Callable[[JobRow], Earlier]
    deliveries: Callable[[str], tuple[DeliveryStatus, ...]]


def _scene(connection: Connection, live: LiveFile, running: bool) -> _Scene:
    return _Scene(live, running, *standing(connection), _earlier(connection), looked_up(connection, live.carried))


def _ask_journal(state: Path, look: Callable[[Connection], T]) -> T | None:
    """Return what `look` finds in the journal of a state directory; None where there is none."""
    try:
        with reading(StatePaths(state).journal) as connection:
            return look(connection)
    except FileNotFoundError:
        return None


def _earlier(connection: Connection) -> Callable[[JobRow], Earlier]:
    """Return what looks up the times of earlier exports like a job; those of one run and base are looked for once."""
    known: dict[tuple[object, ...], Earlier] = {}

    def of(job: JobRow) -> Earlier:
        alike = (job.checkpoint.root, job.checkpoint.run, job.base, job.checkpoint.base_name)
        if alike not in known:
            seconds, side_by_side = durations(connection, job)
            known[alike] = Earlier(seconds, min(max(1.0, side_by_side), CROWDED))
        return known[alike]

    return of


def _short(state: Path, live: LiveFile) -> tuple[Shortage, ...]:
    """What has no room now: looked at afresh, since a daemon on a full disk may not be able to say so; else as it said."""
    places = live.places or (Place("state.directory", str(state), LEAST_BYTES),)
    listed = {shortage.folder: shortage for shortage in live.disks}
    needs = [Place(shortage.keys[0], shortage.folder, shortage.needed) for shortage in live.disks]
    refused = {shortage.folder: shortage.refused for shortage in live.disks if shortage.refused is not None}
    shortages = short_of_room(places, needs, refused)
    return tuple(
        replace(shortage, delete=listed[shortage.folder].delete if shortage.folder in listed else advice(shortage, StatePaths(state)))
        for shortage in shortages
    )


def look_through(state: Path, select: Callable[[Connection], Iterator[JobPlace]], take: Callable[[Iterator[JobStatus]], T]) -> T | None:
    """Return what `take` makes of the jobs that `select` gives, each as it is now; None where there is no journal."""
    paths = StatePaths(state)
    running = is_locked(paths.lock)
    live = read_live(paths.live).aged() if running else LiveFile()

    def look(connection: Connection) -> T:
        scene = _scene(connection, live, running)
        return take(job for place in select(connection) if (job := _in_list(connection, state, place, scene)) is not None)

    return _ask_journal(state, look)


def _in_list(connection: Connection, state: Path, place: JobPlace, scene: _Scene) -> JobStatus | None:
    """A job of a list: what has ended is read once, but for what lies on the disk."""
    key = (str(state), place.id, place.state, place.ended or "")
    with _reading:
        known = _ended.pop(key, None)
        if known is not None:
            _ended[key] = known  # the last that goes
    if known is not None:
        report = Path(known.target, REPORT)
        gone = known.state in ("failed", "cancelled") and _is_gone(known.checkpoint)
        there = str(report) if report.is_file() else None
        kept, lies = is_kept(Path(known.target)), scene.deliveries(place.id)
        return replace(known, report_file=there, kept=kept, checkpoint_gone=gone, deliveries=lies)
    view = job_of_id(connection, place.id, brief=True)
    if view is None:
        return None
    job = _job(view, scene)
    if job.state in ENDED_JOB:
        with _reading:  # by what it is itself: it may have ended since the list was read
            _ended[str(state), job.id, job.state, job.ended or ""] = job
            while len(_ended) > _MOST_ENDED:
                del _ended[next(iter(_ended))]
    return job


def ids(state: Path, wanted: str) -> list[str]:
    """The jobs that `wanted` may mean: the one of that id, else all whose id begins with it, or whose id's last part does."""
    return _ask_journal(state, lambda connection: ids_named(connection, wanted)) or []


def failed_ids(state: Path) -> list[str]:
    """The exports that failed, in the order in which they were taken."""
    return _ask_journal(state, ids_failed) or []


def find(state: Path, wanted: str) -> list[JobDetails]:
    """The jobs that `wanted` may mean, as by `ids`, the first two of them."""
    paths = StatePaths(state)
    running = is_locked(paths.lock)
    live = read_live(paths.live).aged() if running else LiveFile()

    def look(connection: Connection) -> list[JobDetails]:
        scene = _scene(connection, live, running)
        views = [view for id in ids_named(connection, wanted)[:2] if (view := job_of_id(connection, id, brief=True)) is not None]
        return [
            JobDetails(**vars(_job(view, scene)), attempts=tuple(map(_attempt, attempts_of(connection, view.job.id)))) for view in views
        ]

    return _ask_journal(state, look) or []


def find_made(state: Path, wanted: str) -> list[JobDetails]:
    """As `find`, also of exports by hand: of one that is made so just now, else where the daemon has none."""
    jobs = find(state, wanted)
    if any(job.activity not in ("waiting", "stopped") for job in jobs):
        return jobs
    own = [job for folder in _by_hand(state) for job in _made_by_hand(folder, jobs[0].id if len(jobs) == 1 else wanted)]
    return [job for job in own if not jobs or job.activity == "running"] or jobs


def _made_by_hand(state: Path, wanted: str) -> list[JobDetails]:
    """The jobs in the state directory of an export in the foreground."""
    jobs, at_work = find(state, wanted), is_locked(StatePaths(state).lock)
    left = "`ckptd export` was broken off; the same command goes on with it."
    return [
        replace(job, foreground=True) if job.state in ENDED_JOB
        else _at_work(job) if at_work
        else replace(job, foreground=True, waiting_for=left)
        for job in jobs
    ]  # fmt: skip


def job_meant(state: Path, wanted: str, operation: str, remedy: str) -> JobDetails:
    """The one job that a person means by `wanted`, where no path of that name is there. Raises UsageError unless it is exactly one."""
    jobs = find(state, wanted)
    if len(jobs) == 1:
        return jobs[0]
    named = ids(state, wanted)
    several = f"{len(named)} jobs are meant by this: {', '.join(named[:5])}{' …' if len(named) > 5 else ''}"
    several = several if jobs else "there is no such folder, and no job id begins with this"
    raise UsageError(FaultCode.NO_SUCH_JOB, operation, f"{wanted!r}: {several}", remedy)


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


def _stage(stage: StageRow, progress: StageProgress | None, expected: float | None, rivals: tuple[Rival, ...]) -> StageStatus:
    live = progress if stage.state == "running" else None
    share = live.share if live else None
    left = stage_left(expected, live.seconds, live.fraction, share) if live else None
    rivals = rivals if starved(share) else ()
    return StageStatus(
        name=stage.name,
        state=stage.state,
        attempts=stage.attempts,
        fraction=1.0 if stage.state == "succeeded" else live.fraction if live else None,
        message=live.message if live else None,
        seconds=stage.result.seconds if stage.result else live.seconds if live else None,
        error=stage.fault.sentence() if stage.fault else None,
        left_seconds=None if left is None else round(left),
        cores=share.got if share else None,
        place=live.place if live else None,
        starved=starving(share, live.priority, rivals) if live and share and starved(share) else None,
        rivals=rivals,
        memory_bytes=live.memory or None if live else None,
        retry_at=_tried_again(stage),
    )


def _tried_again(stage: StageRow) -> str | None:
    if stage.state != "waiting" or stage.retry_at is None or stage.due(time.time()):
        return None
    return datetime.fromtimestamp(stage.retry_at, UTC).isoformat(timespec="seconds")


def _waits_for(view: JobView, scene: _Scene) -> str | None:
    """Why no stage of a job runs now."""
    job = view.job
    if job.state in ENDED_JOB or scene.live.progress.get(job.id):
        return None
    if not scene.running and not (job.paused or scene.paused):
        return "No daemon runs: the export continues when one is started."
    if job.paused:
        return f"It is paused; `ckptd queue resume {job.id}` continues it."
    if scene.paused:
        return "Everything is paused; `ckptd queue resume` continues the work."
    said, later = scene.live.waiting.get(job.id), retrying(view.stages, time.time())
    if later is not None and said in (None, *(ready.describe(ready.retrying(spec)) for spec in _specs(view))):
        return later
    if said is None and job.state == "pending" and scene.live.jobs and scene.at_work >= scene.live.jobs:
        return f"It waits for its turn: limits.jobs allows {scene.live.jobs} at a time."
    return said


def _reason(view: JobView, variants: Became, scene: _Scene, waiting_for: str | None) -> str | None:
    """Why a job waits, or did not end as requested, in a few words."""
    job = view.job
    if job.state in ("failed", "partial"):
        refused = job.state == "failed" and job.reason is not None
        failed = (stage.fault.code for stage in view.stages if stage.state == "failed" and stage.fault)
        return "not published" if refused else together(variants.reasons) or together(map(failure, failed))
    if waiting_for is None or job.paused or scene.paused or not scene.running:
        return None  # its state says it
    return waiting(scene.live.waiting_codes.get(job.id, FaultCode.RETRY if job.id in scene.live.waiting else FaultCode.TURN))


def _specs(view: JobView) -> list[StageSpec]:
    return [spec for stage in view.stages if (spec := find_spec(stage.name)) is not None]


def _activity(view: JobView, scene: _Scene, waiting_for: str | None) -> str:
    job = view.job
    if job.state in ENDED_JOB:
        return job.state
    if scene.live.progress.get(job.id):
        return "running"
    if job.paused or scene.paused:
        return "paused"
    if not scene.running:
        return "stopped" if job.state == "running" else "waiting"
    return "waiting" if waiting_for or job.state == "pending" else "running"


def _rejection(check: ArtifactCheck, taken: str | None) -> str:
    """Why an artifact was not published, as a stage's fault would say it; `taken`: what is published in its place."""
    why = "; ".join(check.reasons) or "it did not pass its check"
    if taken:
        return f"Could not publish {check.variant}: {why}. Fix: use {taken}, which is published in its place."
    return f"Could not publish {check.variant}: {why}." + (f" Fix: {check.remedy}." if check.remedy else "")


def _is_gone(path: str) -> bool:
    try:
        return not ask(path, lambda: Path(path).exists())
    except (OSError, TimeoutError):
        return False  # a file system that does not answer may give it back


def _job(view: JobView, scene: _Scene) -> JobStatus:
    job, checkpoint = view.job, view.job.checkpoint
    progress, metadata = scene.live.progress.get(job.id, {}), checkpoint.metadata
    earlier = Earlier() if job.state in ENDED_JOB else scene.earlier(job)
    checks = [check for stage in view.stages if stage.result for check in stage.result.checks]
    variants = became(view)
    stages = tuple(_stage(stage, progress.get(stage.name), earlier.of(stage.name), scene.live.rivals) for stage in view.stages)
    running = {stage.name: stage.left_seconds for stage in stages if stage.name in progress and stage.state == "running"}
    left = None if job.state in ENDED_JOB else job_left(view.stages, running, earlier)
    waiting_for, target = _waits_for(view, scene), folder_of(job.target, job.state)
    report = target / REPORT
    errors = [stage.error for stage in stages if stage.state == "failed" and stage.error]
    if job.state in ("failed", "partial"):
        unpublished = [check for check in checks if not is_published(check, job.terms.validation)]
        tried = set(variants.added) if variants.replaced else set()
        errors += [_rejection(check, variants.replaced.get(check.variant)) for check in unpublished if check.variant not in tried]
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
        target=str(target),
        waiting_for=waiting_for,
        error=job.reason or (errors[0] if errors else None),
        reason=_reason(view, variants, scene, waiting_for),
        paused=job.paused,
        first=job.first,
        warnings=job.warnings,
        artifacts=variants.verdicts,
        lost=variants.lost,
        replaced=variants.replaced,
        added=variants.added,
        undecided=variants.undecided,
        stages=stages,
        activity=_activity(view, scene, waiting_for),
        left_seconds=None if left is None else round(left),
        report_file=str(report) if job.state in ENDED_JOB and report.is_file() else None,
        checkpoint_gone=job.state in ("failed", "cancelled") and _is_gone(checkpoint.path),
        kept=job.state in ENDED_JOB and is_kept(target),
        deliveries=scene.deliveries(job.id),
    )
