"""A stage that ran into `limits.stage_timeout`: again only where the attempt left something with which the next one goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from tests.runner.desk import Desk, done

Desks = Callable[..., Desk]
SOON = {"limits": {"attempts": 3, "retry_seconds": 0.001}}


def timed_out(code: FaultCode = FaultCode.TIMEOUT) -> StageResult:
    fault = Fault(code=code, operation="run the stage", cause="it ran longer than limits.stage_timeout, 60 s", remedy="raise it")
    return StageResult(outcome=Outcome.RETRYABLE, fault=fault)


def ended(desk: Desk, job: str, stage: str) -> tuple[int, Fault | None]:
    """Number of attempts of a stage, and the fault with which it failed."""
    for _ in range(400):
        desk.tick()
        if desk.state(job) in ("succeeded", "partial", "failed"):
            break
    row = desk.journal.stages.of(job)[stage]
    assert row.state == "failed"
    return sum(one.endswith(f" {stage}") for one in desk.started), row.result.fault if row.result else None


def test_a_stage_that_left_nothing_is_not_tried_again_as_it_was_and_the_next_export_goes_on(make_desk: Desks) -> None:
    desk = make_desk(**SOON)
    desk.script = lambda context: timed_out() if context.stage == "merge" and context.checkpoint.run == "slow" else done(context)
    slow, other = desk.add("slow", 1), desk.add("sound", 1)
    attempts, fault = ended(desk, slow, "merge")
    assert attempts == 1
    assert fault is not None and fault.code == "timeout"
    assert "another attempt could not continue its work" in fault.cause
    assert "raise limits.stage_timeout if it still made progress" in fault.remedy and "`ckptd queue retry`" in fault.remedy
    desk.tick(200)
    assert desk.state(other) == "succeeded"


def test_a_stage_that_keeps_parts_goes_on_as_long_as_each_attempt_adds_some(make_desk: Desks) -> None:
    desk, written = make_desk(**{"limits": {"attempts": 9, "retry_seconds": 0.001}}), list[Path]()

    def merge(context: StageContext) -> StageResult | None:
        if context.stage != "merge":
            return done(context)
        if len(written) < 2:  # the third attempt finds what was left, and adds nothing
            written.append(Path(context.staging, f"part-{len(written)}"))
            written[-1].write_bytes(b"a part")
        return timed_out()

    desk.script = merge
    attempts, fault = ended(desk, desk.add("run", 1), "merge")
    assert (attempts, fault is not None and fault.code) == (3, "timeout")


def test_a_stage_that_keeps_no_parts_is_not_tried_again_whatever_it_wrote(make_desk: Desks) -> None:
    desk = make_desk(**SOON)

    def script(context: StageContext) -> StageResult | None:
        if context.stage != "pytorch":
            return done(context)
        Path(context.staging, "half").write_bytes(b"half")
        return timed_out()

    desk.script = script
    assert ended(desk, desk.add("run", 1), "pytorch")[0] == 1


def test_what_hung_or_crashed_is_still_tried_again(make_desk: Desks) -> None:
    for code in (FaultCode.HUNG, FaultCode.CRASHED):
        desk = make_desk(**SOON)
        desk.script = lambda context, code=code: timed_out(code) if context.stage == "merge" else done(context)  # type: ignore[misc]
        assert ended(desk, desk.add("run", 1), "merge")[0] == 3
