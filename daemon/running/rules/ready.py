"""Which run is served next, which stages of a job come next, and the fault of a stage that can't start: pure functions over the journal's
rows.

Called by the runner when it has room. Runs take turns, so that one that saves every minute can't keep the others waiting; within a
run the journal's own order counts (newest first under the policy `latest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.plan import spec_of
from daemon.journal.rows import Lane, StageRow
from daemon.journal.states import ENDED_STAGE

SOON = frozenset({FaultCode.VERIFYING, FaultCode.TURN})
"""What a job waits for that takes it no further from its next stage: it is not said in the log, and no other job is begun meanwhile."""
FEW = 3
"""Files that are named in a sentence."""


def ready_stages(stages: dict[str, StageRow]) -> list[StageSpec]:
    """The stages, in plan order, that wait and whose predecessors have all ended. None of them needs another."""
    ready = []
    for name, stage in stages.items():
        spec = spec_of(name)
        before = [other for other in (*spec.needs, *spec.after) if other in stages]
        if stage.state == "waiting" and all(stages[other].state in ENDED_STAGE for other in before):
            ready.append(spec)
    return ready


def because_of(need: str, stage: StageRow, spec: StageSpec) -> Fault:
    """Why a stage is skipped: one that it needs gave no output."""
    cause = stage.fault.cause if stage.fault else "it was skipped"
    remedy = stage.fault.remedy if stage.fault else f"fix the stage {need}"
    return Fault(
        code=FaultCode.SKIPPED, operation=f"run the stage {spec.name}", cause=f"the stage {need} gave no output: {cause}", remedy=remedy
    )


def retrying(spec: StageSpec) -> Fault:
    """The fault of a stage that waits for its next attempt."""
    return Fault(
        code=FaultCode.RETRY,
        operation=f"run the stage {spec.name}",
        cause="an earlier attempt failed",
        remedy="nothing; it is tried again automatically",
    )


def waiting_to_time(spec: StageSpec) -> Fault:
    """What is said of a stage that can't run beside another one, since one of the two measures time."""
    cause = (
        "it measures speed, but other stages are still running" if spec.alone else "another export is measuring the speed of its artifacts"
    )
    return Fault(
        code=FaultCode.TIMING,
        operation=f"start the stage {spec.name}",
        cause=cause,
        remedy="nothing; it starts automatically within minutes",
    )


def waiting_for_turn(spec: StageSpec, limit: str, others: Sequence[str]) -> Fault:
    """What is said of a stage that can't start beside the stages of `others` (job ids), by the key `limit` of `[limits]`."""
    return Fault(
        code=FaultCode.TURN, operation=f"start the stage {spec.name}",
        cause=f"limits.{limit} allows no more stages together with {', '.join(others)}",
        remedy=f"nothing; it starts when those have finished, or sooner if you raise limits.{limit}",
    )  # fmt: skip


def loading(spec: StageSpec) -> Fault:
    """What is said of a stage that starts when the process that it is to be forked from has loaded its libraries."""
    return Fault(
        code=FaultCode.TURN, operation=f"start the stage {spec.name}", cause="PyTorch is being loaded for it",
        remedy="nothing; it starts as soon as that is done",
    )  # fmt: skip


def base_changing(base: Path | None, files: Sequence[str]) -> Fault:
    """What is said of a job whose base is not the one any more that its finished stages were made of. `files`: what of it has changed."""
    names = ", ".join(files[:FEW]) + (f" and {len(files) - FEW} more" if len(files) > FEW else "")
    return Fault(
        code=FaultCode.BASE_CHANGED, operation="continue the export", cause=f"the base was changed while it was exported ({names})",
        remedy="do not change a base while it is exported; when it stays as it is, what was made of it is made again",
        path=str(base),
    )  # fmt: skip


def verifying() -> Fault:
    """The fault of a job whose finished outputs are being read again."""
    return Fault(
        code=FaultCode.VERIFYING, operation="continue the export",
        cause="the output of earlier attempts is being compared with its digests", remedy="nothing; it continues automatically",
    )  # fmt: skip


_MERE_WAITS = frozenset({FaultCode.RETRY, FaultCode.TIMING, FaultCode.TURN, FaultCode.VERIFYING})


def describe(fault: Fault) -> str:
    """Say why a job waits, in a sentence: what only takes time, and asks nothing of a person, is no fault in it."""
    if fault.code not in _MERE_WAITS:
        return fault.sentence()
    what = fault.operation.partition(" ")[2]
    return f"{what[:1].upper()}{what[1:]} waits: {fault.cause}; {fault.remedy.removeprefix('nothing; ')}."


def next_lane(lanes: Sequence[Lane]) -> Lane | None:
    """The lane of the root that was served longest ago, and of its runs the one that was; those never served come first, in the order in
    which they have waited. So a root with many new runs takes no more turns than any other."""
    return min(lanes, key=lambda lane: (lane.root_served or "", lane.served or "", lane.oldest, lane.root, lane.run), default=None)
