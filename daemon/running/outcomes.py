"""Takes the outcome of an attempt into the journal: what becomes of the stage, what is cleared away, what is said.

A part of the runner; called for children that ended and, at the start, for those of a daemon that died.
"""

from __future__ import annotations

import contextlib
import os
import random
from datetime import UTC, datetime
from pathlib import Path

import structlog

from daemon.config.settings import LimitSettings
from daemon.config.sources import as_asked
from daemon.contract.events import Event
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import remove_tree
from daemon.contract.formats.stages import LAYER_BY_LAYER, WITHOUT_TWIN
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.contract.jobs.plan import find_spec
from daemon.journal.attempts import Measured
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId, AttemptRow
from daemon.publishing.lending import is_as_lent
from daemon.publishing.publication import same_files
from daemon.running.children import Running
from daemon.running.rules.retry import RetryDecision, after_crash, decide

log = structlog.get_logger("runner")

_jitter = random.Random()
TOO_SMALL = 1.25
"""An attempt that was ended for want of memory needs more than it had, by an unknown factor."""
WANTED_MORE = (FaultCode.OUT_OF_MEMORY, FaultCode.MEMORY_LIMIT, FaultCode.MEMORY_UNEXPECTED)


def settle(
    journal: Journal, limits: LimitSettings, ended: AttemptId, result: StageResult, *, crashed: bool = False,
    measured: Measured | None = None,
) -> None:  # fmt: skip
    """Record how the attempt `ended` did end. `crashed`: the daemon died while it ran, and it left no result."""
    stage, attempt = ended.stage, journal.attempts.get(ended)
    row = journal.stages.of(ended.job)[stage]
    log_file = str(attempt.folder / "log.txt")
    spec = find_spec(stage)
    resumable = bool(spec and spec.resumable)
    result = _as_asked(result)
    if result.fault is not None and result.fault.code in (FaultCode.UNEXPECTED, FaultCode.LIBRARY_REFUSES) and result.fault.path is None:
        result = result.model_copy(update={"fault": result.fault.model_copy(update={"path": log_file})})  # it says to read that log
    if crashed:
        decision = after_crash(stage, row.crashes + 1, limits.crashes, log_file)
    else:
        kept = resumable and _has_written(attempt)
        decision = decide(result, row.failures, limits.attempts, limits.retry_seconds, _jitter, kept=kept)
    if result.outcome != Outcome.SUCCEEDED:
        result = result.model_copy(update={"fault": decision.fault})
        if not (resumable and decision.state == "waiting"):
            _clear(attempt.staging)
    _clear(attempt.folder / "tmp")
    journal.attempts.settle(
        ended, result, state=decision.state, retry_delay=decision.delay, crashed=crashed, counted=decision.counted, measured=measured
    )  # fmt: skip
    _say(ended, result, decision, log_file)


def _as_asked(result: StageResult) -> StageResult:
    """What a child says to do, by the names that whoever gave variants on the command line knows."""
    fault = result.fault and result.fault.model_copy(update={"remedy": as_asked(result.fault.remedy)})
    checks = tuple(one.model_copy(update={"remedy": as_asked(one.remedy)}) if one.remedy else one for one in result.checks)
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


def inputs_are_there(journal: Journal, running: Running) -> bool:
    """Whether what an attempt read is all still there: a verdict on files that somebody took away says nothing."""
    stages = journal.stages.of(running.job.id)
    read = [stages[name] for name in running.context.inputs if name in stages]
    return all(
        stage.folder and stage.result and same_files(stage.folder, stage.result.files) and is_as_lent(stage.folder) for stage in read
    )  # fmt: skip


def measure(running: Running, result: StageResult) -> Measured | None:
    """What an attempt took, where that says something about the next one."""
    peak = result.peak_rss
    if running.context.strategy in (LAYER_BY_LAYER, WITHOUT_TWIN):
        return None  # it says nothing about what the whole model takes, by which the way is chosen
    if result.outcome == Outcome.SUCCEEDED:
        return Measured(running.size, peak, result.size, result.seconds)
    if result.fault is not None and result.fault.code in WANTED_MORE and peak:
        return Measured(running.size, int(TOO_SMALL * max(peak, running.estimate.memory)), 0, result.seconds)
    return None


def _say(ended: AttemptId, result: StageResult, decision: RetryDecision, log_file: str) -> None:
    if result.outcome == Outcome.SUCCEEDED:
        log.info(
            "stage succeeded",
            event_id=Event.STAGE_SUCCEEDED,
            stage=ended.stage,
            attempt=ended.number,
            seconds=result.seconds,
            strategy=result.strategy,
        )
    elif result.fault:
        (log.error if decision.state == "failed" else log.warning)(
            result.fault.sentence(), event_id=Event.STAGE_FAILED, stage=ended.stage, attempt=ended.number, code=result.fault.code,
            outcome=str(result.outcome),
            retry_in=round(decision.delay, 1) if decision.delay is not None else None, log=log_file,
        )  # fmt: skip
    for fallback in result.fallbacks:
        log.warning(
            "fallback taken",
            event_id=Event.STAGE_FALLBACK,
            stage=ended.stage,
            wanted=fallback.wanted,
            taken=fallback.taken,
            reason=fallback.reason,
        )
