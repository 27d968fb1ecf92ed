"""The end of a job: its verdict, its publication, its links, its notification, and the tidying up afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from daemon.checkpoints.pins import held
from daemon.config.output_owners import is_anothers, owner_of, record_of
from daemon.config.paths import Paths
from daemon.config.settings import Settings
from daemon.contract import away
from daemon.contract.errors import CkptdError, Fault, Permanent, from_oserror
from daemon.contract.events import Event
from daemon.contract.export_layout import manifest_of
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import remove_tree
from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, Verdict
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.jobs.verdicts import checked_on, is_published, judge, needs, replaced_by, status_that_follows
from daemon.contract.own_folders import own
from daemon.journal.journal import Journal, facts_of
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing.access import Access, access_of
from daemon.publishing.beneath import Spot, held_below
from daemon.publishing.lending import PUBLISH, lend_others, lend_staged, take_back
from daemon.publishing.links import ByQuality, move_links
from daemon.publishing.moving import move_elsewhere
from daemon.publishing.ours import forget, look, remember
from daemon.publishing.owners import owned, refusal
from daemon.publishing.publication import ExportPart, assemble, put_in
from daemon.publishing.retention import prune
from daemon.publishing.run_figures import published_of
from daemon.publishing.swap import complete_swap, leave
from daemon.system.box import human

log = structlog.get_logger("runner")

FAILED_SUFFIX = ".failed"
REJECTED = "rejected"


def target_of(job: JobRow, state: str) -> Path:
    """Where the export goes. A failed one never takes the place of a good one."""
    return job.target.with_name(job.target.name + FAILED_SUFFIX) if state == "failed" else job.target


def parts_of(
    checks: Sequence[ArtifactCheck], stages: Mapping[str, StageRow], *, rules: ValidateOptions, keep_rejected: bool
) -> list[ExportPart]:
    """What is published: the report on top, a folder a variant that passed, or that the `rules` let out."""
    parts = []
    for check in checks:
        stage = stages.get(check.variant)
        if stage is None or stage.result is None or stage.folder is None:
            continue
        if is_published(check, rules):
            parts.append(ExportPart(check.variant, stage.folder, stage.result.files))
        elif keep_rejected:
            parts.append(ExportPart(f"{REJECTED}/{check.variant}", stage.folder, stage.result.files))
    report = stages.get("report")
    if report and report.result and report.folder:
        parts.append(ExportPart("", report.folder, report.result.files))
    return parts


@dataclass(frozen=True)
class Published:
    """How a job ended and where its export lies."""

    state: str
    target: Path
    checks: tuple[ArtifactCheck, ...]


def publish_job(
    job: JobRow, facts: JobFacts, stages: Mapping[str, StageRow], paths: Paths, *, keep_rejected: bool, access: Access | None = None,
    by_quality: ByQuality | None = None,
) -> Published:  # fmt: skip
    """Put the export in its place, readable as `access` says, and move the run's links. Can be repeated after a crash."""
    checks = judge(facts)
    state = status_that_follows(facts)
    rules = facts.work.validation
    target = target_of(job, state)
    top = top_of(target, paths)
    head = {
        "export_id": job.id, "status": state, "root": job.checkpoint.root, "run": job.checkpoint.run, "step": job.checkpoint.step,
        "ending": job.checkpoint.ending, "checkpoint": job.checkpoint.path, "identity": job.checkpoint.identity, "taken": job.created,
        **({"mixture": job.checkpoint.mixture, "additions": [one.model_dump() for one in job.checkpoint.additions]}
           if job.checkpoint.mixture else {}),
        **({"in_place_of": instead} if (instead := replaced_by(facts, checks)) else {}),
        "checked_on": checked_on(facts),
        "needs": {check.variant: found for check in checks if is_published(check, rules) and (found := needs(check))},
    }  # fmt: skip
    with (
        own(paths.output, paths.staging / job.id, make=True) as staging,
        own(paths.output, paths.kept, make=True) as kept,
        held_below(top, target.parent, make=True, access=access) as around,
        owned(around, job.checkpoint, paths, staging),
    ):
        complete_swap(staging / PUBLISH)
        parts = _reached(parts_of(checks, stages, rules=rules, keep_rejected=keep_rejected), {
            paths.staging / job.id: staging, paths.kept: kept,
        })  # fmt: skip
        place = around.spot(target.name)
        _refuse_anothers(place, job)
        looked = look(place.at, target, paths.published)
        assemble(parts, staging / PUBLISH, head, replaced=target if looked and looked.known else None, access=access)
        try:
            lend_staged(staging, target, (kept, job.pin))
            put_in(staging / PUBLISH, place, top, looked)
        except BaseException:
            with contextlib.suppress(OSError):  # then what was finished is no longer whole, and is made again
                take_back(staging)
            raise
        remember(paths.published, target, place.at)
        lend_others(staging, target, kept, job.pin)
        if state != "failed":
            _remove_failed(around.spot(job.target.name + FAILED_SUFFIX), job, top, paths)
        if any(check.verdict == Verdict.PASSED for check in checks):
            move_links(job, place, by_quality)
    return Published(state, target, checks)


def _reached(parts: Sequence[ExportPart], folders: Mapping[Path, Path]) -> list[ExportPart]:
    """The parts with the paths that lead to their outputs through folders which are held open. `folders`: path → the path that does."""
    found = []
    for part in parts:
        through = next((at / part.source.relative_to(folder) for folder, at in folders.items() if folder in part.source.parents), None)
        found.append(replace(part, at=through))
    return found


def _remove_failed(place: Spot, job: JobRow, top: Path, paths: Paths) -> None:
    """Remove the report of an earlier try that failed: this one takes its place. What is not ours stays."""
    looked = look(place.at, place.path, paths.published)
    if looked is None or looked.known is None or job.checkpoint.other_than(manifest_of(place.at)) is not None:
        return
    with own(paths.output, paths.staging) as staging:
        if leave(place, top, looked, staging):
            forget(paths.published, place.path)


def top_of(target: Path, paths: Paths) -> Path:
    """From where on no link is followed to an export: the output, or the folder around what a former configuration placed elsewhere."""
    return paths.output if paths.output in target.parents else target.parent


def _refuse_anothers(place: Spot, job: JobRow) -> None:
    """Raises Permanent where another checkpoint was published meanwhile, from another journal, under the name that this one was given."""
    # A run's link there is no export of another one: it gives way.
    owner = None if place.at.is_symlink() else job.checkpoint.other_than(manifest_of(place.at))
    if owner is not None:
        raise Permanent(
            FaultCode.TARGET_TAKEN, "publish the export", f"another checkpoint, {owner}, was published there meanwhile",
            "move that export away, or set output.naming so that the two differ; then run `ckptd retry` on the job", path=place.path,
        )  # fmt: skip


def message_of(job: JobRow, stages: Mapping[str, StageRow], published: Published) -> tuple[str, str]:
    """Title and body of the notification."""
    place = f"final (step {job.checkpoint.step})" if job.checkpoint.ending else f"step {job.checkpoint.step}"
    title = f"{job.checkpoint.run} {place}: {published.state}"
    lines = [f"{check.variant}: {check.verdict}" + (f" ({check.reasons[0]})" if check.reasons else "") for check in published.checks]
    lines += [stage.fault.sentence() for stage in stages.values() if stage.fault and stage.state == "failed"]
    return title, "\n".join([*lines, f"Export: {published.target}"])


def close_job(job: JobRow, stages: Mapping[str, StageRow], journal: Journal, paths: Paths, settings: Settings) -> Fault | None:
    """Publish, record the end with its notification, prune. Gives what keeps the export from being published, if anything does.

    Can be repeated after a crash anywhere in it. A job that was superseded or cancelled meanwhile stays as it is.
    """
    current = journal.jobs.get(job.id)
    if current is None or current.state != "running":
        return None
    try:
        access, rejected = access_of(job, settings.output), settings.output.keep_rejected
        select = settings.select
        by_quality = ByQuality(select.best_variant, published_of(journal, job)) if select.best_by == "quality" else None
        facts = facts_of(journal, job)
        published = publish_job(current, facts, stages, paths, keep_rejected=rejected, access=access, by_quality=by_quality)
    except CkptdError as error:
        if isinstance(error, Permanent) and error.fault.code == FaultCode.TARGET_TAKEN:
            if move_elsewhere(current, journal, paths):
                return close_job(job, stages, journal, paths, settings)
            _end_refused(job, error.fault, journal, settings)
            return None
        problem = away.problem_of_whole(paths.output)  # whatever is said of a file in it then
        return error.fault if problem is None else away.fault_of(paths.output, problem, error.fault.operation)
    except OSError as error:
        operation = f"publish the export of {job.checkpoint.run} step {job.checkpoint.step}"
        return _away(error, paths.output, operation) or from_oserror(error, operation, str(paths.output)).fault
    wanted = settings.notify.wants(published.state)
    if not journal.jobs.finish(job.id, published.state, message_of(job, stages, published) if wanted else None):
        return None  # superseded or cancelled while it was published: the newer export replaces this one
    (log.info if published.state == "succeeded" else log.warning if published.state == "partial" else log.error)(
        "export finished", event_id=Event.EXPORT_FINISHED, state=published.state, target=str(published.target),
        artifacts={check.variant: str(check.verdict) for check in published.checks},
    )  # fmt: skip
    if access.why:
        log.warning(access.why, event_id=Event.EXPORT_ACCESS, target=str(published.target))
    _prune(job, published.target, journal, paths, settings)
    return None


def _away(error: OSError, output: Path, operation: str) -> Fault | None:
    """What is away, the output as a whole or something in it, where that keeps an export from being published."""
    if not away.is_away(error):
        return None
    if (problem := away.problem_of_whole(output)) is not None:
        return away.fault_of(output, problem, operation)
    return None if isinstance(error, PermissionError) else away.fault_of(error.filename or output, error, operation)


def _end_refused(job: JobRow, fault: Fault, journal: Journal, settings: Settings) -> None:
    """End a job whose export can't be published before a person decides; `ckptd retry` goes on with what is finished."""
    sentence = fault.sentence()
    message = (f"{job.checkpoint.run} {job.checkpoint.label}: not published", sentence)
    wanted = settings.notify.wants("failed")
    if journal.jobs.finish(job.id, "failed", message if wanted else None, reason=sentence):
        log.error(sentence, event_id=Event.EXPORT_REFUSED, code=fault.code, target=str(job.target))


def refuse_early(job: JobRow, journal: Journal, paths: Paths, settings: Settings) -> bool:
    """End a running job at its start where another ckptd has its run's folder: hours of work would end so. Says whether it did."""
    folder, run = job.target.parent, job.checkpoint.run
    owner = owner_of(folder, run)
    if owner is None or not is_anothers(owner, paths, job.checkpoint) or move_elsewhere(job, journal, paths):
        return False
    fault = refusal(owner, folder / record_of(run)).fault
    for stage in journal.stages.of(job.id).values():
        if stage.state == "waiting":
            journal.stages.end(job.id, stage.name, "skipped", fault)
    _end_refused(job, fault, journal, settings)
    return True


def _prune(job: JobRow, target: Path, journal: Journal, paths: Paths, settings: Settings) -> None:
    """Remove what no rule keeps of the run; where that fails it is said, and tried again after the next export."""
    rules = settings.retention
    if not (rules.keep_last or rules.keep_best or rules.keep_days):
        return
    busy = journal.jobs.open_ids()
    folder, top = target.parent, top_of(target, paths)
    try:
        for gone in prune(
            [folder], job.checkpoint.run, rules, staging=paths.staging, top=top, busy=busy, select=settings.select, owner=paths.owner,
            records=paths.published,
        ):  # fmt: skip
            log.info("removed an old export", event_id=Event.EXPORT_REMOVED, path=str(gone.path), freed=human(gone.freed))
    except OSError as error:
        log.warning(from_oserror(error, "remove old exports").fault.sentence(), event_id=Event.EXPORT_NOT_REMOVED)
    except CkptdError as error:
        log.warning(error.fault.sentence(), event_id=Event.EXPORT_NOT_REMOVED)


def clear_staging(output: Path, staging: Path) -> None:
    """Remove the staging folder of a job that needs it no more. What a publication that was cut off left in it may be people's: that is
    set aside first. Raises OSError, also where the whole output is away, Permanent where it is not ours."""
    try:
        with own(output, staging.parent) as around:
            complete_swap(around / staging.name / PUBLISH)
            remove_tree(around / staging.name)
    except FileNotFoundError:
        if not output.is_dir():  # what is in it comes back with it
            raise


def tidy_job(job: JobRow, journal: Journal, paths: Paths) -> bool:
    """Remove what a finished job needs no more: staging, pin, temporary files. Logs and job files stay.

    The pin of a job that was put back in the queue since is a new one, and stays. Gives False where `ckptd retry` pins one just now:
    the job's may be it, so its turn comes later.
    """
    with held(paths.pins_lock, patience=0) as mine:
        if not mine:
            return False
        if job.id in journal.jobs.open_ids():
            return True
        remove_tree(job.pin)
    clear_staging(paths.output, paths.staging / job.id)
    for folder in (paths.jobs / job.id).glob("*/tmp"):
        remove_tree(folder)
    return True
