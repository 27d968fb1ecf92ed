"""The job of the checkpoint that `ckptd export` is given: a new one, one to go on with, or one that need not be made again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.inspection import Inspection
from daemon.checkpoints.names import run_of
from daemon.checkpoints.pinning.pins import Moved
from daemon.config.places.paths import Paths, StatePaths
from daemon.config.settings import Settings
from daemon.contract.disk.export_layout import ANSWERS, manifest_of
from daemon.contract.disk.files import remove_tree
from daemon.contract.faults.errors import CkptdError, Permanent, Retryable, UsageError, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.plan import find_spec, with_fallbacks
from daemon.journal.file.opening import reading
from daemon.journal.journal import Journal
from daemon.journal.overview import JobView, job_of_id
from daemon.journal.rows import JobRow
from daemon.journal.states import ENDED_JOB, ENDED_STAGE, OPEN_JOB
from daemon.operating.engine import Engine
from daemon.publishing.publication import REJECTED
from daemon.running.endings import clear_staging
from daemon.system.lock import is_locked
from daemon.watching.entries import innermost_first
from daemon.watching.taking.entering import Candidate
from daemon.watching.taking.intake import run_name


@dataclass(frozen=True)
class Entered:
    """The job of a checkpoint. `state`: where its journal is; `finished`: it is published, so that there is nothing to do; `by_daemon`: the
    job is the daemon's."""

    job: str
    state: Path
    finished: bool
    by_daemon: bool = False


def enter(parts: Engine, inspection: Inspection, *, force: bool) -> Entered:
    """The job of this checkpoint.

    An interrupted job goes on and a good one is left unless forced, if it is for the same output and of the same base, also where the
    daemon made it or makes it now; every other is made afresh. UsageError where variants that another configuration published there would
    be lost.
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
        return Entered(candidate.job, parts.paths.state, finished=not goes_on)
    made = _of_daemon(parts.paths, candidate.job)
    if made and not force and _is_for(parts, made, target):
        open_ = made.job.state in OPEN_JOB and is_locked(StatePaths(parts.paths.outer).lock)
        if open_ or _is_good(made.job):
            candidate.drop()
            return Entered(candidate.job, parts.paths.outer, finished=not open_, by_daemon=True)
    if not force:
        _refuse_loss(parts.settings, candidate, target)
    if existing:
        if goes_on:  # it is begun again, in another output or of another base
            earlier = _output_of(existing.target, target, parts.paths)
            with suppress(FileNotFoundError):  # the folder that it was begun in is gone, with what was staged in it
                clear_staging(earlier, earlier / parts.paths.staging.relative_to(parts.paths.output) / existing.id)
        journal.jobs.forget(existing.id)
    intake.entering.enter(candidate)
    return Entered(candidate.job, parts.paths.state, finished=False)


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
    published = {folder for folder, slash, _ in paths if folder and slash and folder not in (REJECTED, ANSWERS)}
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
