"""The end of a job: its verdict is published, recorded with its notification, and old exports of its run are removed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog

from daemon.config.output_owners import is_anothers, owner_of, record_of
from daemon.config.paths import Paths
from daemon.config.settings import Settings
from daemon.contract import away
from daemon.contract.errors import CkptdError, Fault, Permanent, from_oserror
from daemon.contract.events import Event
from daemon.contract.fault_codes import FaultCode
from daemon.journal.journal import Journal, facts_of
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing.access import access_of
from daemon.publishing.exchange.owners import refusal
from daemon.publishing.export_folder import Published, publish_job, top_of
from daemon.publishing.links import ByQuality
from daemon.publishing.moving import move_elsewhere
from daemon.publishing.retention import prune
from daemon.publishing.run_figures import published_of
from daemon.system.box import human

log = structlog.get_logger("runner")


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
        return away.fault_of_whole(paths.output, error.fault.operation) or error.fault
    except OSError as error:
        operation = f"publish the export of {job.checkpoint.run} step {job.checkpoint.step}"
        gone = away.fault_of_whole(paths.output, operation) if away.is_away(error) else None
        return gone or from_oserror(error, operation, str(paths.output)).fault
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
