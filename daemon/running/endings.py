"""How attempts and jobs end: results are taken in, a finished job is published, and what ended jobs leave is cleared away.

A part of the runner, used by its thread alone.
"""

from __future__ import annotations

import structlog

from daemon.checkpoints.pins import rewritten
from daemon.contract.away import is_away
from daemon.contract.errors import CkptdError, from_oserror
from daemon.contract.events import Event
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.journal.rewrites import IN_PLACE
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing.closing import close_job
from daemon.publishing.tidying import tidy_job
from daemon.running.children import Running
from daemon.running.outcomes import inputs_are_there, measure, settle
from daemon.running.outside import key_of
from daemon.running.parts import Parts

log = structlog.get_logger("runner")


class Endings:
    """Ends attempts and jobs."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.left: dict[str, JobRow] = {}
        """Finished jobs whose pin and staging are not cleared away yet."""
        self._stays: dict[str, FaultCode | str] = {}
        """Job of which something can't be cleared away → the code of what was said about that."""

    def reap(self) -> None:
        """Take in progress and the results of children that ended."""
        parts = self._parts
        for running, result in parts.children.finished():
            job = running.job
            context = {"job": job.id, "run": job.checkpoint.run, "step": job.checkpoint.step}
            with structlog.contextvars.bound_contextvars(**context):
                if self.is_rewritten(job) or self._inputs_vanished(running):
                    result = parts.children.interrupted(result)
                result = self._if_away(job, result)
                settle(parts.journal, parts.settings.limits, running.id, result, measured=measure(running, result))
            parts.waits.refused(result.fault)
            parts.children.forget(running)  # last: if the journal could not take it, the next round tries again
            parts.waits.end(job.id)
        if parts.children.running:
            parts.changed()

    def is_rewritten(self, job: JobRow) -> bool:
        """Return whether the trainer wrote into a file that the pin shares with it; the job is superseded then."""
        try:
            name = rewritten(job.pin)
        except OSError as error:
            if not is_away(error):
                raise
            name = None  # what is away can't be told from what it was, and is waited for
        if name is None:
            return False
        self._parts.journal.jobs.supersede(
            job.id, f"{IN_PLACE}{name} in place while it was exported; the new content is exported as a new checkpoint"
        )
        return True

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
        try:
            refused = parts.resumption.keep(job, stages, int(parts.settings.output.kept_size))
        finally:
            self._forget(job.id)
        parts.waits.refused(refused)
        parts.wake()  # the next one need not wait for the end of a pause
        parts.changed()
        self._tidy_left()

    def end_refused(self, job: JobRow) -> None:
        """Clear away a job that ended at its start."""
        self.left[job.id] = job
        self._forget(job.id)
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

    def end_waits(self) -> None:
        """What has ended waits for nothing, also where it ended in a round that failed."""
        waits = self._parts.waits
        for job in list(waits.of.keys() - self._parts.journal.jobs.open_ids()) if len(waits) else ():
            waits.end(job)
            self._parts.away.ended(job)

    def _if_away(self, job: JobRow, result: StageResult) -> StageResult:
        """Return the result of an attempt, with what follows where it met something that is away: a pause, in the end a failure."""
        gate = self._parts.gate
        if result.outcome == Outcome.SUCCEEDED:
            self._parts.away.further(job.id)
        fault = result.fault
        if fault is None or not gate.is_away(fault):
            return result
        fault = fault.model_copy(update={"code": FaultCode.SOURCE_AWAY})
        said = gate.told(fault)
        pause = gate.waits(job, key_of(job, fault.path or job.id, gate.toolchains), said)
        if pause is None:
            return result.model_copy(update={"outcome": Outcome.PERMANENT, "fault": gate.given_up(fault)})
        return result.model_copy(update={"outcome": Outcome.RETRYABLE, "fault": said, "retry_after": pause})

    def _inputs_vanished(self, running: Running) -> bool:
        """Return whether somebody removed what the attempt read; finished stages are then verified, and made again, first."""
        if inputs_are_there(self._parts.journal, running):
            return False
        log.warning("what the stage read was removed while it ran; it is made again", event_id=Event.STAGE_REPEATED, stage=running.stage)
        self._parts.resumption.forget(running.job.id)
        return True

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

    def _forget(self, job: str) -> None:
        self._parts.waits.end(job)
        self._parts.resumption.forget(job)
        self._parts.starter.forget(job)
        self._parts.away.ended(job)
