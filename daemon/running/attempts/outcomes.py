"""How attempts end: the result of each is taken into the journal, what becomes of its stage, what is cleared away, what is said.

A part of the runner, used by its thread alone; called for children that ended and, at the start, for those of a daemon that died.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import structlog

from daemon.checkpoints.pinning.pins import rewritten
from daemon.config.settings import LimitSettings
from daemon.config.sources import as_asked
from daemon.contract.disk.away import is_away
from daemon.contract.disk.files import remove_tree
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import LAYER_BY_LAYER, WITHOUT_TWIN
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.contract.jobs.plan import find_spec
from daemon.journal.attempts import Measured
from daemon.journal.journal import Journal
from daemon.journal.rewrites import IN_PLACE
from daemon.journal.rows import AttemptRow, JobRow, StageRow
from daemon.publishing.lending import is_there
from daemon.running.attempts.children import Children, Running
from daemon.running.attempts.executor import LOG_FILE
from daemon.running.resumption import Resumption
from daemon.running.rules.retry import after_crash, after_loss, decide
from daemon.running.sources.gate import Gate, met_there
from daemon.running.waits import Waits
from daemon.system.episodes import Away
from daemon.system.logger import Logger

log = Logger("runner")

_jitter = random.Random()
TOO_SMALL = 1.25
"""An attempt that was ended for want of memory needs more than it had, by an unknown factor."""
WANTED_MORE = (FaultCode.OUT_OF_MEMORY, FaultCode.MEMORY_LIMIT, FaultCode.MEMORY_UNEXPECTED)


class Outcomes:
    """Takes in how attempts end, by one configuration."""

    def __init__(
        self, limits: LimitSettings, journal: Journal, children: Children, waits: Waits, away: Away, gate: Gate, resumption: Resumption,
        wake: Callable[[], None], changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`wake`: called when there may be new work; `changed`: after whatever people may want to see."""
        self._limits, self._journal, self._children, self._waits = limits, journal, children, waits
        self._away, self._gate, self._resumption, self._wake, self._changed = away, gate, resumption, wake, changed

    def reap(self) -> None:
        """Take in progress and the results of children that ended."""
        for running, result in self._children.finished():
            job = running.job
            with structlog.contextvars.bound_contextvars(job=job.id, run=job.checkpoint.run, step=job.checkpoint.step):
                is_void, stages = self.is_rewritten(job), self._journal.stages.of(job.id)
                # A verdict on files that somebody took away says nothing: finished stages are verified, and made again, first.
                if not is_void and not all(is_there(stages[name]) for name in running.context.inputs if name in stages):
                    message = "what the stage read was removed while it ran; it is made again"
                    log.warning(message, event_id=Event.STAGE_REPEATED, stage=running.row.stage)
                    self._resumption.forget(job.id)
                    is_void = True
                if is_void:
                    result = StageResult(outcome=Outcome.INTERRUPTED, seconds=result.seconds)
                lost = running.unanswered is not None or not running.attempt.ended_surely
                if lost and result.outcome != Outcome.SUCCEEDED:  # a result is written last: what it names is whole, and is the output
                    _clear(running.row.staging)  # a lost attempt may still write there, and no other goes on with that
                result = self._if_away(running, result)
                self.settle(running.row, stages[running.row.stage], result, measured=_measure(running, result))
            self._waits.refused(result.fault)
            self._waits.end(job.id)
            self._wake()  # what a job that was given up leaves need not wait for the end of a pause
        if self._children.running:
            self._changed()

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
        self._journal.jobs.supersede(
            job.id, f"{IN_PLACE}{name} in place while it was exported; the new content is exported as a new checkpoint"
        )
        return True

    def settle(
        self, attempt: AttemptRow, stage: StageRow, result: StageResult, *, crashed: bool = False, measured: Measured | None = None
    ) -> None:
        """Record how an `attempt` of a `stage` ended. `crashed`: the daemon died while it ran, and it left no result."""
        _clear(attempt.folder / "tmp")
        resumable = bool((spec := find_spec(stage.name)) and spec.resumable)
        result, log_file = _as_asked(result), str(attempt.folder / LOG_FILE)
        fault = result.fault
        if fault is not None and fault.code in (FaultCode.UNEXPECTED, FaultCode.LIBRARY_REFUSES) and fault.path is None:
            result = result.model_copy(update={"fault": fault.model_copy(update={"path": log_file})})  # it says to read that log
        lost = fault is not None and fault.code == FaultCode.NODE_LOST and result.seconds > 0  # and not while it waited in a queue
        if fault is not None and lost and stage.crashes + 1 >= self._limits.crashes:
            decision = after_loss(fault)
        elif crashed:
            decision = after_crash(stage.name, stage.crashes + 1, self._limits.crashes, log_file)
        else:
            kept = resumable and _has_written(attempt)
            decision = decide(result, stage.failures, self._limits.attempts, self._limits.retry_seconds, _jitter, kept=kept)
        if result.outcome != Outcome.SUCCEEDED:
            result = result.model_copy(update={"fault": decision.fault})
            if not (resumable and decision.state == "waiting"):
                _clear(attempt.staging)
        self._journal.attempts.settle(
            attempt, result, state=decision.state, retry_delay=decision.delay, crashed=crashed or lost,
            counted=decision.counted, measured=measured,
        )  # fmt: skip
        if result.outcome == Outcome.SUCCEEDED:
            log.info(
                "stage succeeded",
                event_id=Event.STAGE_SUCCEEDED,
                stage=attempt.stage,
                attempt=attempt.number,
                seconds=result.seconds,
                strategy=result.strategy,
            )
        elif result.fault:
            (log.error if decision.state == "failed" else log.warning)(
                result.fault.sentence(), event_id=Event.STAGE_FAILED, stage=attempt.stage, attempt=attempt.number, code=result.fault.code,
                outcome=str(result.outcome), log=log_file,
                retry_in=round(decision.delay, 1) if decision.delay is not None else None,
            )  # fmt: skip
        for step in result.fallbacks:
            log.warning(
                "fallback taken",
                event_id=Event.STAGE_FALLBACK,
                stage=attempt.stage,
                wanted=step.wanted,
                taken=step.taken,
                reason=step.reason,
            )

    def _if_away(self, running: Running, result: StageResult) -> StageResult:
        """Return the result of an attempt, with what follows where it met something that is away: a pause, in the end a failure."""
        job, stage = running.job, running.row.stage
        if result.outcome == Outcome.SUCCEEDED:
            self._away.there(job.id, met_there(stage))
            self._away.further(job.id)
        fault = result.fault
        if fault is None or not self._gate.is_away(fault):
            return result
        fault, pause = self._gate.met(job, stage, fault.model_copy(update={"code": FaultCode.SOURCE_AWAY}), running.attempt.place)
        outcome = Outcome.PERMANENT if pause is None else Outcome.RETRYABLE
        return result.model_copy(update={"outcome": outcome, "fault": fault, "retry_after": pause})


def _as_asked(result: StageResult) -> StageResult:
    """What a child says to do, by the names that whoever gave variants on the command line knows."""
    fault = result.fault and result.fault.model_copy(update={"remedy": as_asked(result.fault.remedy)})
    checks = tuple(check.model_copy(update={"remedy": as_asked(check.remedy)}) if check.remedy else check for check in result.checks)
    return result.model_copy(update={"fault": fault, "checks": checks})


def _has_written(attempt: AttemptRow) -> bool:
    """Whether the attempt itself put anything into its staging folder, which may hold what earlier ones left."""
    since = datetime.fromisoformat(attempt.started).replace(tzinfo=UTC).timestamp()
    try:
        return any(
            os.lstat(os.path.join(folder, name)).st_mtime >= since for folder, _, names in os.walk(attempt.staging) for name in names
        )
    except OSError:
        return True  # it can't be told: the limit of attempts bounds it


def _clear(folder: Path) -> None:
    """Remove what is of no use any more; what can't be removed now goes when the job has ended."""
    with contextlib.suppress(OSError):
        remove_tree(folder)


def _measure(running: Running, result: StageResult) -> Measured | None:
    """What an attempt took, where that says something about the next one."""
    peak = result.peak_rss
    if running.context.strategy in (LAYER_BY_LAYER, WITHOUT_TWIN):
        return None  # it says nothing about what the whole model takes, by which the way is chosen
    if result.outcome == Outcome.SUCCEEDED:
        return Measured(running.size, peak, result.size, result.seconds)
    if result.fault is not None and result.fault.code in WANTED_MORE and peak:
        return Measured(running.size, int(TOO_SMALL * max(peak, running.estimate.memory)), 0, result.seconds)
    return None
