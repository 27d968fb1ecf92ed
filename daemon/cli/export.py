"""`ckptd export`: the same journal, intake and runner as the daemon's, for one checkpoint.

An export in the foreground has a journal of its own per checkpoint below the state directory, so it neither
disturbs a running daemon nor waits for it, and an interrupted one goes on where it was.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from pydantic import ValidationError

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.inspection import Inspection
from daemon.checkpoints.models.base_models import is_model
from daemon.checkpoints.names import run_of
from daemon.checkpoints.pinning.additions import FULL
from daemon.checkpoints.pinning.pins import Moved
from daemon.cli.checkpoint_argument import checkpoint_at
from daemon.cli.views.tables import ExportView
from daemon.config.loading import lies_in
from daemon.config.places.paths import Paths, StatePaths, foreground_state, prepare, refuse_file
from daemon.config.settings import LARGEST_FACTOR, AddedAdapter, BaseModelSettings, OutputSettings, Settings
from daemon.contract.disk.answers import real_path
from daemon.contract.disk.export_layout import MANIFEST, manifest_of
from daemon.contract.disk.files import remove_tree
from daemon.contract.faults.errors import CkptdError, Fault, Permanent, Retryable, UsageError, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.plan import find_spec, with_fallbacks
from daemon.contract.language.catalog import translated, translated_text
from daemon.contract.values import Json
from daemon.journal.file.opening import reading
from daemon.journal.journal import Journal
from daemon.journal.overview import JobView, job_of_id
from daemon.journal.rows import JobRow, StageRow, now
from daemon.journal.states import ENDED_JOB, ENDED_STAGE
from daemon.operating.diagnosis import packages
from daemon.operating.engine import Engine, engine
from daemon.operating.log import logs
from daemon.operating.monitoring.live import ExportLive, of_export
from daemon.operating.monitoring.status import JobStatus, find
from daemon.publishing.publication import REJECTED
from daemon.running.endings import clear_staging
from daemon.running.sources.gate import FOR_SOURCES
from daemon.running.waits import SOON, Waiting
from daemon.system.elsewhere import elsewhere
from daemon.system.filesystems.private import private_files
from daemon.system.lock import holder
from daemon.system.logger import Logger
from daemon.system.processes.signals import on_signals
from daemon.system.processes.threads import Supervised
from daemon.toolchains.overview import lacking_for
from daemon.toolchains.registry import Toolchains
from daemon.watching.events.observers import innermost_first
from daemon.watching.taking.entering import Candidate
from daemon.watching.taking.intake import damaged, run_name

log = Logger("runner")

LACKING = (FaultCode.DISK_NOW, FaultCode.MEMORY_NOW, FaultCode.DISK_FULL, FaultCode.READ_ONLY, FaultCode.UNEXPECTED)
"""Faults that a person at a terminal wants to hear of at once, instead of waiting."""
PASSING = SOON | {FaultCode.RETRY, FaultCode.TIMING, FaultCode.TOOLCHAIN_COMING, FaultCode.WINDOW_CLOSED}
"""What an export waits for that comes by itself."""
SHORT_SECONDS = 5.0
"""A wait that is shorter is not worth a line."""
PATIENCE_SECONDS = 30.0
"""How long the runner or the export's end may fail, again and again, before the command ends with the error: longer than a journal is
ever busy."""


@dataclass(frozen=True)
class ExportedJob(JobStatus):
    """A job that was exported in the foreground."""

    report: Json | None
    """The contents of its report.json; None if there is no report."""


def export_now(
    settings: Settings, checkpoint: Path, *, output: Path | None, base: Path | None, add: Sequence[str] = (), force: bool,
    quiet: bool = False,
) -> ExportedJob:  # fmt: skip
    """Export one checkpoint; gives its job with its report. `add`: adapters as PATH or PATH=WEIGHT, in place of `merge.add`.

    Raises UsageError for a path that is no checkpoint, Permanent for one that is incomplete or damaged (nothing is written) or can't be
    merged with what is to be added, Retryable when disk or memory are lacking now.
    """
    inspection = checkpoint_at(Path(os.path.abspath(checkpoint)))
    if not inspection.complete:
        raise Permanent(**damaged(inspection, then="then run the same command again").model_dump())
    settings = _adjusted(settings, inspection, output, base)
    checkpoint = inspection.path
    if add:
        if inspection.method == FULL:
            raise Permanent(
                FaultCode.ADAPTERS_NOT_ADDITIVE, "use --add",
                "the checkpoint is a whole model without an adapter, and --add is for adapters over one base",
                "leave --add out; to merge an adapter into this model, train the adapter with this model as its base, and export it",
                path=checkpoint,
            )  # fmt: skip
        settings = settings.model_copy(update={"merge": settings.merge.model_copy(update={"add": tuple(map(_added, add))})})
    state = foreground_state(settings.state_directory, checkpoint)
    with _opened(settings, state, checkpoint) as parts:
        logs.say_closed(parts.paths.closed)
        entered = _enter(parts, inspection, force=force)
        job, state = entered.job, entered.state
        view = ExportView(inspection, parts.paths.log, quiet=quiet)
        if entered.finished and state == parts.paths.outer:
            view.say(translated("the daemon has exported it already; --force makes it again"))
        elif entered.finished:
            view.say(translated("already exported; --force makes it again"))
        else:
            if not settings.toolchains.auto_install:
                for sentence in lacking_for(settings.variants, Toolchains(settings.state_directory)):
                    view.say(translated_text(f"{sentence}."))  # now, and not when the other variants are made
            _work(parts, job, view)
        (status,) = find(state, job)
        if status.state != "succeeded":
            for sentence in packages.unsuitable():
                view.say(translated_text(f"{sentence}."))
    report = Path(status.target) / "report.json"
    known = {field.name: getattr(status, field.name) for field in fields(JobStatus)}
    value = ExportedJob(**known, report=json.loads(report.read_bytes()) if report.is_file() else None)
    view.finish(value, value.report)
    return value


@contextmanager
def _opened(settings: Settings, state: Path, checkpoint: Path) -> Iterator[Engine]:
    """The engine of one export, whose log goes to its file alone: also what is said while an interrupted export is taken up.

    Retryable where the same checkpoint is being exported by another command.
    """
    paths = prepare(state, settings.output.directory)
    with private_files():
        logs.set_up(settings.log, paths.log, stderr=False)
    try:
        with engine(settings, state, work_of=lambda now, job: now.work, at_once=True) as parts:
            yield parts
    except UsageError as error:
        if error.fault.code != FaultCode.ALREADY_RUNNING:
            raise
        other = elsewhere(state)
        who = f"{other.pid} on {other.host}" if other else holder(paths.lock)[0] or "unknown"
        cause = f"another `ckptd export` (pid {who}) exports it just now"
        remedy = "wait until that has ended, or stop it; then run the command again"
        raise Retryable(FaultCode.ALREADY_RUNNING, "export", cause, remedy, path=checkpoint) from None


def _adjusted(settings: Settings, inspection: Inspection, output: Path | None, base: Path | None) -> Settings:
    """The command line over the configuration; output never goes into the checkpoint."""
    checkpoint = inspection.path
    if output is not None:
        settings = settings.model_copy(
            update={"output": OutputSettings(**{**settings.output.model_dump(), "directory": Path(os.path.abspath(output))})}
        )
    folder = settings.output.directory
    if output is not None:
        refuse_file(folder, "use --output", "give a directory; it does not have to exist yet")
    if (inside := _why_not_in(folder, checkpoint, settings.watch.roots if output is not None else ())) is not None:
        raise UsageError(
            FaultCode.OUTPUT_IN_CHECKPOINT,
            "export",
            f"the output would be inside {inside}",
            "give another folder with --output",
            path=folder,
        )
    if base is not None:
        if not is_model(base):
            raise UsageError(
                FaultCode.BASE_NOT_FOUND,
                "use --base",
                "it has no config.json with weights",
                "give the folder of the base model",
                path=base,
            )
        name = inspection.base_name or ""
        mapped = {**settings.base.map, name: base.absolute()}
        settings = settings.model_copy(update={"base": BaseModelSettings(search=settings.base.search, map=mapped)})
    return settings


def _why_not_in(folder: Path, checkpoint: Path, roots: Sequence[Path]) -> str | None:
    """What an output may not be inside of, and why; None where it may lie there."""
    if (root := next((root for root in roots if lies_in(folder, root, real_path(root))), None)) is not None:
        return f"the watched root {root}, where only trainers may write"
    around = (folder, *folder.parents)
    if checkpoint in around:
        return "the checkpoint, where only the trainer may write"
    export = next((place for place in around if os.path.isfile(place / MANIFEST)), None)
    return None if export is None else f"the export {export}, and go when that is replaced"


def _added(text: str) -> AddedAdapter:
    """An adapter of --add: PATH, or PATH=WEIGHT where PATH=WEIGHT is no folder. Raises UsageError for a weight that is none."""
    path, equals, weight = text.rpartition("=")
    if not equals or Path(text).is_dir():
        return AddedAdapter(path=Path(text).absolute())
    try:
        return AddedAdapter.model_validate({"path": Path(path).absolute(), "weight": weight})
    except ValidationError:
        raise UsageError(
            FaultCode.BAD_OPTION,
            "use --add",
            f"its weight {weight!r} is not a number, or is 0, or is beyond {LARGEST_FACTOR:g}, so that nothing of the base would remain",
            "write PATH=WEIGHT, for example style=0.5",
            path=path,
        ) from None


@dataclass(frozen=True)
class _Entered:
    """The job of a checkpoint. `state`: where its journal is; `finished`: it is published, so that there is nothing to do."""

    job: str
    state: Path
    finished: bool


def _enter(parts: Engine, inspection: Inspection, *, force: bool) -> _Entered:
    """The job of this checkpoint.

    An interrupted job goes on and a good one is left unless forced, if it is for the same output and of the same base, also where the
    daemon made it; every other is made afresh. UsageError where variants that another configuration published there would be lost.
    """
    root, run = _run_and_root(parts.settings, inspection.path)
    intake, journal, seen = parts.intake, parts.journal, fingerprint(inspection.path)
    try:
        candidate = intake.pin(root, run, inspection, seen)
    except Moved:
        raise Retryable(
            FaultCode.STILL_WRITTEN,
            "export",
            "the checkpoint changes while it is read",
            "wait until the trainer has written it completely",
            path=inspection.path,
        ) from None
    except OSError as error:
        raise from_oserror(error, "pin the checkpoint") from error
    if candidate.fault is not None:
        raise Permanent(**candidate.fault.model_dump())
    existing, target = journal.jobs.get(candidate.job), intake.entering.place_of(candidate.reference)
    own = JobView(existing, tuple(journal.stages.of(existing.id).values())) if existing else None
    goes_on = existing is not None and existing.state not in ENDED_JOB
    if own and (goes_on or (_is_good(own.job) and not force)) and _is_for(parts, own, target):
        candidate.drop()
        if goes_on:
            _try_again(journal, own.job.id)
        return _Entered(candidate.job, parts.paths.state, finished=not goes_on)
    made = _of_daemon(parts.paths, candidate.job)
    if made and not force and _is_good(made.job) and _is_for(parts, made, target):
        candidate.drop()
        return _Entered(candidate.job, parts.paths.outer, finished=True)
    if not force:
        _refuse_loss(parts.settings, candidate, target)
    if existing:
        if goes_on:  # it is begun again, in another output or of another base
            earlier = _output_of(existing.target, target, parts.paths)
            with suppress(FileNotFoundError):  # the folder that it was begun in is gone, with what was staged in it
                clear_staging(earlier, earlier / parts.paths.staging.relative_to(parts.paths.output) / existing.id)
        journal.jobs.forget(existing.id)
    intake.entering.enter(candidate)
    return _Entered(candidate.job, parts.paths.state, finished=False)


def _is_good(job: JobRow) -> bool:
    """Whether an export has succeeded, and lies where it was published."""
    return job.state == "succeeded" and manifest_of(job.target).get("export_id") == job.id


def _is_for(parts: Engine, view: JobView, target: Path) -> bool:
    """Whether a job is for the output of this command, and of the base that is found for it now."""
    same = _output_of(view.job.target, target, parts.paths) == parts.paths.output
    return same and not parts.runner.is_of_another_base(view.job, {stage.name: stage for stage in view.stages})


def _of_daemon(paths: Paths, job: str) -> JobView | None:
    """The job of this id, and so of the same content and configuration, in the daemon's journal; None where there is none, or where that
    can't be read now: an export in the foreground does not depend on it."""
    try:
        with reading(StatePaths(paths.outer).journal) as connection:
            return job_of_id(connection, job)
    except (FileNotFoundError, CkptdError):
        return None


def _output_of(earlier: Path, target: Path, paths: Paths) -> Path:
    """The output that an export's folder is in, as `target` is in that of `paths`: as far up, since its name may be of another day."""
    return earlier.parents[len(target.relative_to(paths.output).parts) - 1]


def _refuse_loss(settings: Settings, candidate: Candidate, target: Path) -> None:
    """Raise UsageError where variants of this checkpoint that were published in `target` would not be in the new export.

    The same job makes the same again. What takes the place of a variant that is not exact enough is none that somebody asked for.
    """
    manifest = manifest_of(target)
    files = manifest.get("files")
    if manifest.get("export_id") == candidate.job or candidate.reference.other_than(manifest) or not isinstance(files, list):
        return
    paths = (str(file.get("path", "")).partition("/") for file in files if isinstance(file, dict))
    published = {folder for folder, slash, _ in paths if folder and slash and folder != REJECTED}
    if lost := sorted(published - {*with_fallbacks(settings.variants)}):
        remove_tree(candidate.pin)
        wanted = " ".join(f"--to {name}" for name in (*settings.variants, *lost))
        raise UsageError(
            FaultCode.VARIANTS_LOST, "export",
            f"it holds {', '.join(lost)} of this checkpoint, which would be gone: this export would replace it",
            f"ask for all with {wanted}, give another folder with --output, or replace it with --force", path=target,
        )  # fmt: skip


def _run_and_root(settings: Settings, checkpoint: Path) -> tuple[Path, str]:
    """The root and the run's name below it, as the daemon has them; where no root is around it, the directory around the run."""
    root = next((root for root in innermost_first(settings.watch.roots) if root in checkpoint.parents), None)
    return (run_of(checkpoint).parent, run_of(checkpoint).name) if root is None else (root, run_name(root, checkpoint))


def _try_again(journal: Journal, job: str) -> None:
    """What failed of a job that was broken off, and what came after that, is done again: a person asks for it now."""
    journal.stages.end_waits(job)
    stages = journal.stages.of(job)
    again = {name for name, row in stages.items() if row.state in ("failed", "skipped")}
    for name, row in stages.items():
        spec = find_spec(name)
        if name in again or (spec is not None and row.state in ENDED_STAGE and not again.isdisjoint((*spec.needs, *spec.after))):
            again.add(name)
            journal.stages.reopen(job, name)


def _needs_help(waiting: Waiting, stages: dict[str, StageRow], *, begun: bool) -> bool:
    """Whether the export waits for what does not pass by itself: at once where that is certain, else after some patience.

    `begun`: this command has started a stage. What is away before is an error; what goes away later may come back.
    """
    code, now = waiting.fault.code, time.time()
    if code in LACKING or (code in FOR_SOURCES and not begun):
        return True
    if code in FOR_SOURCES:
        return time.monotonic() - waiting.since > PATIENCE_SECONDS
    tried_again = code in PASSING or any(row.state == "waiting" and not row.due(now) for row in stages.values())
    return not tried_again and time.monotonic() - waiting.since > PATIENCE_SECONDS


def _work(parts: Engine, job: str, view: ExportView) -> None:
    """Run the job to its end while showing it; Ctrl-C ends the child in order and leaves the job to be gone on with."""
    stop = threading.Event()
    on_signals((signal.SIGINT, signal.SIGTERM), stop.set)
    thread = Supervised("runner", parts.runner.run, log, stop=parts.runner.stop)
    thread.start()
    lacking, live, began, begun = None, ExportLive(parts.paths.live), now(), False
    try:
        while not stop.is_set():
            parts.attention.wait(0.2)
            parts.attention.clear()
            row = parts.journal.jobs.get(job)
            stages = parts.journal.stages.of(job)
            live.write(of_export(parts.runner, began))
            waiting = parts.runner.waits.of.get(job)
            lasts = waiting is not None and waiting.fault.code not in SOON and time.monotonic() - waiting.since > SHORT_SECONDS
            view.show(stages, parts.runner.children.of(job), waiting.fault if waiting is not None and lasts else None)
            if row is None or row.state in ENDED_JOB:
                break
            begun = begun or bool(parts.runner.children.running)
            if waiting is not None and _needs_help(waiting, stages, begun=begun):
                lacking = waiting.fault
                break
            if thread.given_up is not None:
                lacking = Fault(
                    code=FaultCode.THREAD_LOST, operation="go on", cause=f"the thread that does the work died repeatedly:"
                    f" {thread.given_up.why}", remedy="look for its traceback in the log, and report it",
                )  # fmt: skip
                break
            trouble, since = parts.runner.complaints.trouble, parts.runner.complaints.since
            if trouble is not None and time.monotonic() - since > PATIENCE_SECONDS:
                lacking = trouble
                break
    finally:
        parts.runner.stop()
        thread.join()
        view.close()
    if stop.is_set():
        view.say(translated("interrupted; run the same command again to continue from here"))
        raise KeyboardInterrupt
    if lacking:
        raise Retryable(**lacking.model_copy(update={"remedy": view.advice(lacking.remedy)}).model_dump())
