"""Which job a person or a program means, and which of its logs. Thin over `daemon.operating.monitoring.status`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from daemon.config.places.paths import StatePaths, existing, states_in
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.shipment_rows import OPEN_SHIPMENT
from daemon.journal.states import ENDED_JOB, ENDED_STAGE
from daemon.operating.log.stage_log import Attempted
from daemon.operating.monitoring.status import JobDetails, find, find_made, ids

_LISTED = 5
"""Jobs that are named where an id is not enough."""


def find_job(state: Path, wanted: str, *, by_hand: bool = False) -> JobDetails:
    """The one job of a state directory whose id is, or begins with, `wanted`. `by_hand`: also of exports in the foreground.

    Raises UsageError unless it is exactly one, and where there is no journal.
    """
    refuse_no_id(wanted)
    jobs = (find_made if by_hand else find)(state, wanted)
    if not jobs:
        existing(state)
    if len(jobs) != 1:
        raise _not_one(wanted, ids(state, wanted) or [job.id for job in jobs])
    return jobs[0]


def refuse_no_id(wanted: str) -> None:
    """Raise UsageError for an id without a letter, as a variable that is not set gives one."""
    if not wanted.strip():
        raise UsageError(FaultCode.NO_SUCH_JOB, "find the job", "the id is empty", "give the id of a job; `ckptd list` shows the ids")


def in_log(state: Path, wanted: str) -> tuple[Path, str]:
    """The log that has the job which is meant by `wanted`, the daemon's or that of an export by hand, and what it calls the job. Raises
    UsageError where neither journals nor logs have one, of which the log may be the older.
    """
    from daemon.operating.log.reading import follow

    refuse_no_id(wanted)
    for folder in states_in(state):
        named, log = ids(folder, wanted), StatePaths(folder).log
        if named or any(True for _ in follow(log, tail=1, forever=False, job=wanted)):
            return log, named[0] if len(named) == 1 else wanted
    existing(state)
    raise _not_one(wanted, [])


def attempted_at(state: Path, wanted: str | None, stage: str) -> Callable[[], Attempted]:
    """What gives the latest attempt at a stage of the job that is meant. Raises UsageError where there is no such stage."""
    if wanted is None:
        raise _no_stage(stage, "no export is named")
    id = find_job(state, wanted, by_hand=True).id

    def look() -> Attempted:
        job = find_job(state, id, by_hand=True)
        now = next((row for row in job.stages if row.name == stage), None)
        if now is None:
            raise _no_stage(stage, f"the stages of {id} are {', '.join(row.name for row in job.stages)}")
        latest = max((row for row in job.attempts if row.stage == stage), key=lambda row: row.number, default=None)
        over = now.state in ENDED_STAGE or job.state in ENDED_JOB
        doing = now.message or (job.waiting_for if now.state == "waiting" else None) or ""
        return Attempted(latest.number, Path(latest.log), over, doing) if latest is not None else Attempted(0, state, over, doing)

    look()
    return look


def delivered_at(state: Path, wanted: str | None, target: str) -> Callable[[], Attempted]:
    """What gives the latest attempt at a delivery of the job that is meant. Raises UsageError where there is no such delivery."""
    operation = f"show what a delivery to {target} prints"
    if wanted is None:
        raise UsageError(FaultCode.BAD_OPTION, operation, "no export is named", "give the export with `--job`, and its target")
    id = find_job(state, wanted).id

    def look() -> Attempted:
        deliveries = find_job(state, id).deliveries
        now = next((row for row in deliveries if row.target == target), None)
        if now is None:
            names = ", ".join(row.target for row in deliveries)
            cause = f"{id} is to be delivered to {names}" if names else f"{id} is to be delivered nowhere"
            raise UsageError(FaultCode.BAD_OPTION, operation, cause, f"take a target of `ckptd show {id}`")
        log = StatePaths(state).deliveries / id / f"{target}.{now.attempts}.log"
        return Attempted(now.attempts, log, now.state not in OPEN_SHIPMENT, now.error or "")

    look()
    return look


def _no_stage(stage: str, cause: str) -> UsageError:
    return UsageError(FaultCode.NO_SUCH_STAGE, f"show what the stage {stage} prints", cause, "give the export with `--job`, and its stage")


def _not_one(wanted: str, matches: Sequence[str]) -> UsageError:
    listed = ", ".join(matches[:_LISTED]) + (f" and {len(matches) - _LISTED} more" if len(matches) > _LISTED else "")
    none = f"no job's id begins or ends with {wanted!r}"
    if "/" in wanted:
        none = f"{wanted!r} is no run and step of a job, and no folder of its checkpoint or its export"
    cause = f"{len(matches)} jobs are meant by {wanted!r}: {listed}" if matches else none
    return UsageError(FaultCode.NO_SUCH_JOB, "find the job", cause, "take an id from `ckptd list`, the last part of one, or RUN/STEP")
