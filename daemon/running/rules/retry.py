"""The retry policy: the next state of a stage after an attempt."""

from __future__ import annotations

import random
from dataclasses import dataclass

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult

MAX_DELAY = 3600.0
NOT_ITS_OWN = frozenset({
    FaultCode.DISK_FULL, FaultCode.DISK_NOW, FaultCode.READ_ONLY, FaultCode.NO_PROCESS, FaultCode.SOURCE_AWAY,
    FaultCode.NODE_LOST, FaultCode.PREEMPTED, FaultCode.SCHEDULER_AWAY,
})  # fmt: skip
"""What says nothing about the stage: it is tried again for as long as that lasts, and never given up for it."""


@dataclass(frozen=True)
class RetryDecision:
    """The stage's next state, how long it waits before the next attempt, in seconds, and what is said in the end."""

    state: str
    delay: float | None = None
    fault: Fault | None = None
    counted: bool = True
    """Whether the attempt counts against `limits.attempts`."""


def decide(
    result: StageResult, failures: int, attempts_allowed: int, base_delay: float, jitter: random.Random, *, kept: bool = False
) -> RetryDecision:
    """`failures`: retryable outcomes before this one. Backoff doubles from `base_delay`, with up to a quarter of jitter.

    `kept`: the attempt left parts with which another one goes on. Without any, one that ran into its time limit would do so again.
    """
    if result.outcome == Outcome.SUCCEEDED:
        return RetryDecision("succeeded")
    if result.outcome == Outcome.INTERRUPTED:
        return RetryDecision("waiting")
    if result.outcome == Outcome.PERMANENT:
        return RetryDecision("failed", fault=result.fault)
    if result.fault is not None and result.fault.code == FaultCode.TIMEOUT and not kept:
        return RetryDecision("failed", fault=_not_again(result.fault))
    if result.fault is not None and result.fault.code == FaultCode.MEMORY_UNEXPECTED:
        return RetryDecision("failed", fault=result.fault)  # it would take more each time; a person may decide that it should
    if result.fault is not None and result.fault.code in NOT_ITS_OWN:
        delay = base_delay if result.retry_after is None else result.retry_after
        return RetryDecision("waiting", min(delay, MAX_DELAY) * (1 + 0.25 * jitter.random()), result.fault, counted=False)
    if failures + 1 >= attempts_allowed:
        return RetryDecision("failed", fault=_given_up(result.fault, failures + 1))
    delay = result.retry_after if result.retry_after is not None else base_delay * 2.0**failures
    return RetryDecision("waiting", min(delay, MAX_DELAY) * (1 + 0.25 * jitter.random()), result.fault)


def after_crash(stage: str, crashes: int, crashes_allowed: int, log: str) -> RetryDecision:
    """The daemon died while the stage ran, for the `crashes`-th time: again, until it looks as if the stage kills it."""
    if crashes < crashes_allowed:
        return RetryDecision("waiting")
    return RetryDecision("failed", fault=Fault(
        code=FaultCode.POISON, operation=f"run the stage {stage}",
        cause=f"the daemon died {crashes} times while it ran, so it is not tried again: the stage may be the reason",
        remedy="look for 'Out of memory' in the kernel's log and in the attempts' logs, then run `ckptd queue retry` with the export's id",
        path=log,
    ))  # fmt: skip


def after_loss(fault: Fault) -> RetryDecision:
    """Its machine was lost while the stage ran, once too often: it may take down one machine after the other."""
    return RetryDecision("failed", fault=fault.model_copy(update={
        "remedy": "it was lost so often that the stage may be the reason: look for 'Out of memory' in the kernel's logs of the machines,"
            " then run `ckptd queue retry` with the export's id",
    }))  # fmt: skip


def _not_again(fault: Fault) -> Fault:
    return fault.model_copy(update={
        "cause": f"{fault.cause}, and another attempt could not continue its work, so it is not tried again",
        "remedy": "read its log (`ckptd show`); raise limits.stage_timeout if it still made progress, or leave that variant out,"
            " and run `ckptd queue retry` with the export's id",
    })  # fmt: skip


def _given_up(fault: Fault | None, attempts: int) -> Fault | None:
    if fault is None or attempts < 2:
        return fault
    return fault.model_copy(update={"cause": f"{fault.cause} (attempt {attempts} of {attempts}; each one's log: `ckptd show`)"})
