"""How jobs end: a finished job is published, recorded with its notification, and what it leaves is cleared away. Logs and job files stay.

A part of the runner, used by its thread alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from daemon.checkpoints.pinning.pins import held
from daemon.config.places.output_owners import is_anothers, owner_of, record_of
from daemon.config.places.paths import Paths
from daemon.config.settings import RetentionSettings, Settings
from daemon.contract import units
from daemon.contract.disk import away
from daemon.contract.disk.files import remove_tree
from daemon.contract.disk.own_folders import own
from daemon.contract.faults.errors import CkptdError, Fault, Permanent, from_oserror
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import JobFacts
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow, StageRow
from daemon.journal.shipment_rows import NewShipment
from daemon.publishing.access import access_of
from daemon.publishing.exchange.owners import refusal
from daemon.publishing.exchange.swap import complete_swap
from daemon.publishing.keeping import Scope, begin
from daemon.publishing.lending import PUBLISH
from daemon.publishing.links import ByQuality
from daemon.publishing.moving import move_elsewhere
from daemon.publishing.publication import Published, publish_job, top_of
from daemon.publishing.retention import prune
from daemon.publishing.run_figures import published_of
from daemon.publishing.telling import messages
from daemon.running.parts import Parts
from daemon.system.logger import Logger

log = Logger("runner")


class Endings:
    """Ends jobs."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.left: dict[str, JobRow] = {}
        """Finished jobs whose pin and staging are not cleared away yet."""
        self._stays: dict[str, FaultCode | str] = {}
        """Job of which something can't be cleared away → the code of what was said about that."""

    def finish(self, job: JobRow, stages: dict[str, StageRow]) -> None:
        """Publish a job all of whose stages have ended, keep its outputs, and clear away the rest."""
        parts = self._parts
        fault = close_job(job, stages, parts.journal, parts.paths, parts.settings)
        if fault:
            parts.resumption.forget(job.id)  # what was finished may be what is gone
            parts.waits.refused(fault)
            parts.gate.refused(job, fault)
            return
        self.left[job.id] = job  # first: whatever fails below, it is over and has to be cleared away
        parts.waits.end(job.id)
        parts.away.ended(job.id)
        try:
            in_use = parts.journal.jobs.outputs_in_use()
        finally:  # or a retry of the job would trust what is remembered of it
            is_known = parts.resumption.end(job, stages)
        if is_known:
            parts.waits.refused(parts.kept.take_over(job, stages, int(parts.settings.output.kept_size), in_use))
        self._go_on()

    def refuse_early(self, job: JobRow) -> bool:
        """End a running job at its start where another ckptd has its run's folder: hours of work would end so. Says whether it did."""
        parts = self._parts
        if not refuse_early(job, parts.journal, parts.paths, parts.settings):
            return False
        self.left[job.id] = job
        self._forget(job.id)
        self._go_on()
        return True

    def _go_on(self) -> None:
        self._parts.wake()  # the next one need not wait for the end of a pause
        self._parts.changed()
        self._tidy_left()  # not in the next round: the daemon may be told to stop before that

    def clear_ended(self) -> None:
        """End the children of superseded and cancelled jobs in order, then remove what is left of those jobs."""
        parts = self._parts
        self._tidy_left()
        for job in parts.journal.jobs.untidy():
            children = parts.children.of(job.id)
            for running in children:
                running.stop()
            if children or not self._is_tidied(job):
                continue
            self._forget(job.id)
            parts.journal.jobs.tidied(job.id)
            log.warning(
                "export given up", event_id=Event.EXPORT_GIVEN_UP, job=job.id, run=job.checkpoint.run, step=job.checkpoint.step,
                state=job.state, reason=job.reason,
            )  # fmt: skip
            parts.changed()
        # What has ended waits for nothing, also where it ended in a round that failed.
        for ended in list(parts.waits.of.keys() - parts.journal.jobs.open_ids()) if parts.waits.of else ():
            parts.waits.end(ended)
            parts.away.ended(ended)

    def _forget(self, job: str) -> None:
        self._parts.waits.end(job)
        self._parts.resumption.forget(job)
        self._parts.away.ended(job)

    def _tidy_left(self) -> None:
        """Clear away what finished jobs leave; one whose pin is being made again has its turn in a later round."""
        for job in list(self.left.values()):
            if self._is_tidied(job):
                del self.left[job.id]

    def _is_tidied(self, job: JobRow) -> bool:
        """Clear away what an ended job leaves; False where that is to be tried again in a later round, which keeps no other job waiting."""
        try:
            done = tidy_job(job, self._parts.journal, self._parts.paths)
        except (OSError, CkptdError) as error:
            operation = "remove what the export no longer needs"
            fault = error.fault if isinstance(error, CkptdError) else from_oserror(error, operation, str(job.pin)).fault
            if self._stays.get(job.id) != fault.code:
                log.warning(fault.sentence(), event_id=Event.EXPORT_FAULT, job=job.id, code=fault.code)
            self._stays[job.id] = fault.code
            return False
        if done:
            self._stays.pop(job.id, None)
        return done


def close_job(job: JobRow, stages: Mapping[str, StageRow], journal: Journal, paths: Paths, settings: Settings) -> Fault | None:
    """Publish, record the end with its notification, prune. Gives what keeps the export from being published, if anything does.

    Can be repeated after a crash anywhere in it. A job that was superseded or cancelled meanwhile stays as it is.
    """
    if job.id not in journal.jobs.open_ids():
        return None
    try:
        access, select = access_of(job, settings.output), settings.select
        by_quality = ByQuality(select.best_variant, published_of(journal, job), select.best_task) if select.by_quality else None
        facts = journal.attempts.facts(job, stages)
        published = publish_job(
            job, facts, stages, paths, keep_rejected=settings.output.keep_rejected, access=access,
            by_quality=by_quality,
        )  # fmt: skip
    except CkptdError as error:
        if isinstance(error, Permanent) and error.fault.code == FaultCode.TARGET_TAKEN:
            if (moved := move_elsewhere(job, journal, paths)) is not None:
                return close_job(moved, stages, journal, paths, settings)
            _end_refused(job, error.fault, journal, settings)
            return None
        return away.fault_of_whole(paths.output, error.fault.operation) or error.fault
    except OSError as error:
        operation = f"publish the export of {job.checkpoint.run} step {job.checkpoint.step}"
        gone = away.fault_of_whole(paths.output, operation) if away.is_away(error) else None
        return gone or from_oserror(error, operation, str(paths.output)).fault
    notice = None
    if settings.notify.wants(published.state, "rejected"):
        notice = messages.ended(job, stages, published.state, published.target, published.checks, facts.work.validation, settings.page.url)
    wanted = notice if notice and settings.notify.wants(*notice.events) else None
    if not journal.jobs.finish(job.id, published.state, wanted, shipments=_shipments(job, published, facts, paths, settings)):
        return None  # superseded or cancelled while it was published: the newer export replaces this one
    (log.info if published.state == "succeeded" else log.warning if published.state == "partial" else log.error)(
        "export finished", event_id=Event.EXPORT_FINISHED, state=published.state, target=str(published.target),
        artifacts={check.variant: str(check.verdict) for check in published.checks},
        retention=settings.retention.said if removes(settings.retention, paths) else "keeps all",
    )  # fmt: skip
    if access.why:
        log.debug(access.why, event_id=Event.EXPORT_ACCESS, target=str(published.target))
    if removes(settings.retention, paths):
        _prune(job, published.target, journal, paths, settings)
    return None


def _shipments(job: JobRow, published: Published, facts: JobFacts, paths: Paths, settings: Settings) -> Sequence[NewShipment]:
    """The deliveries of an export; the daemon's alone: nobody waits for those of one in the foreground."""
    if not settings.deliver or published.state == "failed" or paths.state != paths.outer:
        return ()
    from daemon.delivering.entering import entered  # for nobody who delivers nothing

    return entered(settings.deliver, job, published.target, published.checks, facts.work.validation)


def removes(rules: RetentionSettings, paths: Paths) -> bool:
    """Whether older exports go when one is published. By default an export in the foreground removes none: who makes one after the other
    wants them all."""
    by_hand = paths.state != paths.outer
    return bool(rules.keep_last or rules.keep_best or rules.keep_days) and not (by_hand and rules.by_default)


def _end_refused(job: JobRow, fault: Fault, journal: Journal, settings: Settings) -> None:
    """End a job whose export can't be published before a person decides; `ckptd queue retry` goes on with what is finished."""
    sentence = fault.sentence()
    notice = messages.refused(job, fault) if settings.notify.wants("failed") else None
    if journal.jobs.finish(job.id, "failed", notice, reason=sentence):
        log.error(sentence, event_id=Event.EXPORT_REFUSED, code=fault.code, target=str(job.target))


def refuse_early(job: JobRow, journal: Journal, paths: Paths, settings: Settings) -> bool:
    """End a running job at its start where another ckptd has its run's folder: hours of work would end so. Says whether it did."""
    folder, run = job.target.parent, job.checkpoint.run
    owner = owner_of(folder, run)
    if owner is None or not is_anothers(owner, paths, job.checkpoint) or move_elsewhere(job, journal, paths) is not None:
        return False
    fault = refusal(owner, folder / record_of(run)).fault
    for stage in journal.stages.of(job.id).values():
        if stage.state == "waiting":
            journal.stages.end(job.id, stage.name, "skipped", fault)
    _end_refused(job, fault, journal, settings)
    return True


def _prune(job: JobRow, target: Path, journal: Journal, paths: Paths, settings: Settings) -> None:
    """Remove what no rule keeps of the run; where that fails it is said, and tried again after the next export."""
    folder, top = target.parent, top_of(target, paths)
    try:
        ids = (place.job for place in journal.jobs.places() if place.state != "superseded")
        scope = Scope(begin(paths), frozenset(ids)) if settings.retention.by_default else None
        busy = journal.jobs.open_ids() | journal.shipments.exports_in_use()
        for gone in prune(
            [folder], job.checkpoint.run, settings.retention, staging=paths.staging, top=top, busy=busy,
            select=settings.select, owner=paths.owner, records=paths.published, scope=scope,
        ):  # fmt: skip
            log.info("removed an old export", event_id=Event.EXPORT_REMOVED, path=str(gone.path), freed=units.size(gone.freed))
    except OSError as error:
        log.warning(from_oserror(error, "remove old exports").fault.sentence(), event_id=Event.EXPORT_NOT_REMOVED)
    except CkptdError as error:
        log.warning(error.fault.sentence(), event_id=Event.EXPORT_NOT_REMOVED)


def tidy_job(job: JobRow, journal: Journal, paths: Paths) -> bool:
    """Remove what a finished job needs no more: staging, pin, temporary files.

    The pin of a job that was put back in the queue since is a new one, and stays. Gives False where `ckptd queue retry` pins one just now:
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
