"""The result of an attempt on another machine whose course is over: its result file where it counts, else a fault that names the cause."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.disk.attempt_log import AttemptLog
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from daemon.contract.jobs.processes.elsewhere import End, Orders
from daemon.running.attempts.executor import LOG_FILE, Bounds
from daemon.running.attempts.post_mortem import READ_LOG, Death, conclude
from daemon.running.cluster.course import Breach, Course, Over
from daemon.running.cluster.port import Ending

RESUBMIT_SECONDS = 30.0
"""Before an attempt that lost its machine, or gave way to another job, is followed by the next."""
_MEMORY = re.compile(r"^slurmstepd.*(exceeded.* memory limit|oom[-_ ]kill|out of memory)", re.IGNORECASE | re.MULTILINE)
"""What Slurm writes into a job's output as it ends it for want of memory. Without control groups it calls that job failed, or cancelled."""


@dataclass(frozen=True)
class Case:
    """An attempt whose course is over, with all that is known of it."""

    context: StageContext
    folder: Path
    bounds: Bounds
    orders: Orders
    course: Course
    end: End | None
    scheduler: str
    """Its name."""
    seconds: float = 0.0
    """For which it ran, as far as that is known."""
    words: str = ""
    """The end of what the scheduler wrote about it."""

    @property
    def said(self) -> str:
        """The last line of that."""
        return next((line.strip()[:300] for line in reversed(self.words.splitlines()) if line.strip()), "")

    @property
    def ending(self) -> Ending:
        """What the scheduler says of the end of it, by the state of its job or in that job's output."""
        known = self.course.ending
        return Ending.OUT_OF_MEMORY if known in (Ending.ENDED, Ending.CANCELLED) and _MEMORY.search(self.words) else known


def result_of(case: Case) -> StageResult:
    """What the runner is told."""
    course, end = case.course, case.end
    log = AttemptLog(case.folder / LOG_FILE, case.bounds.log_size)
    stopped = _with_stage(course.stop_fault or _broken(case), case) if course.stopped else None
    if course.over is Over.NOT_BEGUN:
        return _not_begun(case, stopped)
    if end is not None and end.fault is not None and not course.stopped:
        return StageResult(outcome=Outcome.RETRYABLE, fault=end.fault)
    ended_by_scheduler = stopped is None and not course.stopped and (end is None or end.terminated)
    fault = stopped or (_by_scheduler(case) if ended_by_scheduler else None)
    death = Death(
        code=end.code if end else -9, memory=end.peak if end else 0, limit=case.orders.memory,
        out_of_memory=bool(end and end.out_of_memory), interrupted=course.stopped and fault is None, fault=fault,
    )  # fmt: skip
    result = conclude(case.context, log, death, case.seconds)
    peak = max(result.peak_rss, end.peak if end else 0)
    if result.fault is not None and result.fault.code == FaultCode.OUT_OF_MEMORY:
        peak = max(peak, case.orders.memory)  # it needs more than it was given, however little of that was seen
    pause = RESUBMIT_SECONDS if result.fault is not None and result.fault.code in _PASSING else result.retry_after
    return result.model_copy(update={"peak_rss": peak, "retry_after": pause})


_PASSING = frozenset({FaultCode.NODE_LOST, FaultCode.PREEMPTED, FaultCode.SCHEDULER_AWAY})


def _with_stage(fault: Fault | None, case: Case) -> Fault | None:
    return fault and fault.model_copy(update={"operation": f"run the stage {case.context.stage}"})


def _broken(case: Case) -> Fault | None:
    """The fault of an attempt that broke a bound."""
    return {Breach.TIMEOUT: _late, Breach.SILENCE: _silent}[case.course.breach](case) if case.course.breach is not None else None


def _late(case: Case) -> Fault:
    cause = f"it ran longer than limits.stage_timeout, {case.bounds.timeout:.0f} s"
    remedy = "raise limits.stage_timeout if the stage still made progress"
    return Fault(code=FaultCode.TIMEOUT, operation=f"run the stage {case.context.stage}", cause=cause, remedy=remedy)


def _silent(case: Case) -> Fault:
    cause = f"it hung: it showed no activity for {case.bounds.silence:.0f} s"
    remedy = "read the attempt's log; look at its machine, and at the file system that it shares with this one"
    return Fault(code=FaultCode.HUNG, operation=f"run the stage {case.context.stage}", cause=cause, remedy=remedy)


def _not_begun(case: Case, stopped: Fault | None) -> StageResult:
    if case.course.stopped:
        return StageResult(outcome=Outcome.RETRYABLE if stopped else Outcome.INTERRUPTED, fault=stopped)
    operation = f"start the stage {case.context.stage} by {case.scheduler}"
    if case.course.refusal:
        fault = Fault(
            code=FaultCode.SCHEDULER_REFUSED, operation=operation, cause=f"{case.scheduler} does not take it: {case.course.refusal}",
            remedy="correct the keys of [cluster], or ask the site's administrator; `ckptd check` submits a probe",
        )  # fmt: skip
        return StageResult(outcome=Outcome.RETRYABLE, fault=fault)
    if case.orders.submission == "asked":
        fault = Fault(
            code=FaultCode.SCHEDULER_AWAY, operation=operation,
            cause=f"{case.scheduler} gave no answer when it was handed in, and has no job of its name",
            remedy="nothing; it is handed in again",
        )  # fmt: skip
        return StageResult(outcome=Outcome.RETRYABLE, fault=fault, retry_after=RESUBMIT_SECONDS)
    if case.ending is not Ending.ENDED:
        return StageResult(outcome=Outcome.RETRYABLE, fault=_by_scheduler(case), retry_after=RESUBMIT_SECONDS)
    fault = Fault(
        code=FaultCode.WORKER_NOT_BEGUN, operation=operation, path=str(case.folder),
        cause=f"{case.scheduler} ran its job {case.orders.id or case.orders.token}, which could not begin{_quoted(case)}",
        remedy="make sure that the machines see this folder and the interpreter by the same paths; `ckptd check` submits a probe",
    )  # fmt: skip
    return StageResult(outcome=Outcome.RETRYABLE, fault=fault)


def _by_scheduler(case: Case) -> Fault:
    """The fault of an attempt that its scheduler ended, or lost."""
    known, name = case.course.last_known, case.scheduler
    where = f" on {known.host}" if known.host else ""
    said = f" ({known.word})" if known.word else ""
    code, cause, remedy = {
        Ending.CANCELLED: (
            FaultCode.CANCELLED_THERE, f"somebody cancelled its job {case.orders.id}{said}; ckptd did not",
            "find out who cancels jobs there; `ckptd queue cancel` ends an export for good",
        ),
        Ending.PREEMPTED: (
            FaultCode.PREEMPTED, f"its job{where} had to give way to another one{said}", "nothing; it is handed in again",
        ),
        Ending.REQUEUED: (
            FaultCode.PREEMPTED, f"somebody put its job {case.orders.id} back into the queue, where it can't go on; ckptd did not",
            "nothing; it is handed in again",
        ),
        Ending.NODE_LOST: (FaultCode.NODE_LOST, f"its machine was lost{where}{said}", "nothing; it is handed in again"),
        Ending.TIME_LIMIT: (
            FaultCode.SCHEDULER_TIME, f"its job reached the scheduler's time limit of {case.orders.seconds / 60:.0f} min{where}{said}",
            "nothing; it is handed in again with twice the time, as far as cluster.most_minutes allows",
        ),
        Ending.OUT_OF_MEMORY: (
            FaultCode.OUT_OF_MEMORY, f"its job used up the memory that was asked for it, {case.orders.memory >> 20:,} MiB{where}{said}",
            "nothing; it is handed in again with more memory",
        ),
        Ending.ENDED: (
            FaultCode.LOST_THERE,
            # Its worker has last words only where it was told to end, by somebody or by the death of what had started it.
            f"its job{where} was told to end by a signal{said}{_quoted(case)}" if case.end is not None
            else f"its job{where} is gone and left no result{said}{_quoted(case)}", READ_LOG,
        ),
    }[case.ending]  # fmt: skip
    return Fault(code=code, operation=f"run the stage {case.context.stage} by {name}", cause=cause, remedy=remedy)


def _quoted(case: Case) -> str:
    return f': "{case.said}"' if case.said else ""
