"""How attempts on other machines end. What such a machine does not see, and this one does, only another attempt there can find again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.contract.disk import away
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from daemon.journal.rows import StageRow
from daemon.operating.monitoring.outlook import retrying
from daemon.running.attempts.executor import Whereabouts
from daemon.system import episodes
from tests.runner.desk import Desks, done, failing
from tests.runner.outside_world import World, begin, tick_until

HOUR = 3600.0


class Site:
    """The world, whose stages run on a machine that does not see the base, and whose time the test moves."""

    def __init__(self, world: World) -> None:
        self.world, self.shift = world, 0.0
        self.told: list[tuple[str | None, bool]] = []
        self.blind, self.held = {"merge"}, set[str]()
        desk = world.desk
        desk.runner.away._clock = lambda: time.time() + self.shift
        desk.runner.away.tell = lambda fault, over: self.told.append((fault.path, over))
        desk.place, desk.script = Whereabouts("slurm", "7", "running", "RUNNING", host="node7"), self._run
        desk.elsewhere("merge", "pytorch", "reference", "merged", "report")

    def _run(self, context: StageContext) -> StageResult | None:
        if context.stage in self.held:
            return None
        if context.stage not in self.blind:
            return done(context)
        missing = FileNotFoundError(2, "No such file or directory")
        fault = away.fault_of(self.world.paths["a file of the base"], missing, f"run the stage {context.stage}")
        return StageResult(outcome=Outcome.RETRYABLE, fault=fault)

    def attempts(self) -> int:
        """At the merge."""
        return len(self.world.desk.order("merge"))

    def merge(self) -> StageRow:
        """The stage, as the journal has it."""
        return self.world.desk.journal.stages.of(self.world.job)["merge"]

    def try_again(self) -> float:
        """Let the time of the next try come; gives how long that was."""
        before, waited = self.attempts(), self.merge().retry_delay
        assert waited is not None
        self.shift += waited
        self.world.desk.journal.stages.end_waits(self.world.job)
        tick_until(self.world, lambda: self.attempts() > before, "tried again")
        tick_until(self.world, lambda: self.merge().state != "running", "ended")
        return waited

    def ended(self) -> set[str]:
        """Stages that have succeeded."""
        stages = self.world.desk.journal.stages.of(self.world.job)
        return {name for name, stage in stages.items() if stage.state == "succeeded"}

    def fault(self) -> Fault:
        """Of the merge."""
        fault = self.merge().fault
        assert fault is not None
        return fault


@pytest.fixture
def site(world: World) -> Iterator[Site]:
    made = Site(world)
    begin(world)
    tick_until(world, lambda: made.attempts() == 1 and made.merge().state == "waiting", "tried")
    yield made


def test_it_is_tried_there_again_after_pauses_that_grow_and_the_machine_and_what_to_do_are_named(site: Site) -> None:
    base, began = str(site.world.paths["base"]), site.shift
    said = retrying([site.merge()], time.time())
    assert said is not None and base in said and "on node7, a machine of slurm" in said
    assert 'stages = { merge = "local" }' in said and "it waits for 24 h, limits.away_hours" in said
    pauses = [site.try_again() for _ in range(12)]
    assert site.merge().failures == 0 and site.merge().state == "waiting", "that says nothing about the stage"
    assert pauses[0] >= episodes.LONGEST_PAUSE and all(pause <= 1.25 * episodes.LONGEST_THERE for pause in pauses)
    assert sum(pauses[:3]) < sum(pauses[3:6]) < sum(pauses[9:]), pauses
    assert site.shift - began == pytest.approx(sum(pauses))


def test_that_this_box_sees_it_is_no_sign_that_the_other_does(site: Site) -> None:
    with capture_logs() as log:
        for _ in range(3):
            site.world.desk.tick(5)  # looks at the base, which is there
            site.try_again()
    assert not [row for row in log if row["event_id"] == "source.back"]
    assert [over for _, over in site.told] == [False]
    site.blind.clear()
    site.try_again()
    assert site.merge().state == "succeeded"
    assert [over for _, over in site.told] == [False, True], "once, by the attempt that saw it"
    tick_until(site.world, lambda: site.world.desk.state(site.world.job) == "succeeded", "succeeded")


def test_the_success_of_another_stage_does_not_end_it(world: World) -> None:
    site = Site(world)
    site.blind, site.held = {"reference"}, {"pytorch"}
    begin(world)
    tick_until(world, lambda: site.told, "told")
    site.held.clear()
    tick_until(world, lambda: {"merge", "pytorch"} <= site.ended(), "made but for the reference")
    assert [over for _, over in site.told] == [False]
    site.blind.clear()
    world.desk.journal.stages.end_waits(world.job)
    tick_until(world, lambda: "reference" in site.ended(), "made")
    assert [over for _, over in site.told] == [False, True]


def test_after_away_hours_the_stage_fails_and_names_the_machine(site: Site) -> None:
    site.shift += 24 * HOUR
    site.try_again()
    assert site.merge().state == "failed"
    sentence = site.fault().sentence()
    assert "on node7, a machine of slurm" in sentence and "has waited for 24 h (limits.away_hours)" in sentence
    assert 'stages = { merge = "local" }' in sentence and "`ckptd queue retry`" in sentence
    assert site.told[0][1] is False


def test_what_this_box_does_not_see_either_is_waited_for_here_without_attempts(site: Site) -> None:
    base = site.world.paths["base"]
    base.rename(base.with_name("aside"))
    site.world.desk.journal.stages.end_waits(site.world.job)
    tick_until(site.world, lambda: site.world.told(), "waits here")
    before = site.attempts()
    site.world.desk.tick(20)
    assert site.attempts() == before
    site.blind.clear()
    base.with_name("aside").rename(base)
    tick_until(site.world, lambda: site.world.desk.state(site.world.job) == "succeeded", "succeeded")


def test_a_success_whose_machine_was_lost_before_its_last_words_keeps_its_output(make_desk: Desks) -> None:
    desk = make_desk()
    desk.sure, desk.place = False, Whereabouts("slurm", "7", "gone", "NODE_FAIL", host="node7")
    job = desk.add("run", 1)
    end = time.monotonic() + 60
    while desk.state(job) == "running" or not desk.started:
        assert time.monotonic() < end
        desk.tick()
    assert desk.state(job) == "succeeded"
    assert len(desk.started) == len(set(desk.started)), "nothing of it was made a second time"


def test_nothing_goes_on_in_the_folder_of_a_failed_attempt_that_may_still_write(make_desk: Desks) -> None:
    left: list[bool] = []

    def script(context: StageContext) -> StageResult:
        if context.stage != "merge" or len(left) > 1:
            return done(context)
        shard = Path(context.staging) / "shard"
        left.append(shard.exists())
        shard.write_text("of an attempt that failed")
        return failing(context)

    for sure in (True, False):
        desk = make_desk(limits={"retry_seconds": 0})
        desk.sure, desk.script = sure, script
        left.clear()
        desk.add("run", 1)
        end = time.monotonic() + 60
        while len(left) < 2:
            assert time.monotonic() < end
            desk.tick()
        assert left == [False, sure]


@pytest.mark.parametrize("seconds", [5.0, 0.0], ids=["while-it-ran", "while-it-waited"])
def test_a_stage_that_takes_down_one_machine_after_the_other_is_given_up(make_desk: Desks, seconds: float) -> None:
    desk = make_desk()
    desk.place = Whereabouts("slurm", "7", "gone", "NODE_FAIL", host="node7")
    fault = Fault(code=FaultCode.NODE_LOST, operation="run the stage merge by slurm", cause="its machine was lost", remedy="nothing")
    desk.script = lambda context: StageResult(outcome=Outcome.RETRYABLE, fault=fault, retry_after=0.0, seconds=seconds)
    job, allowed = desk.add("run", 1), desk.runner.settings.limits.crashes
    end = time.monotonic() + 60
    while len(desk.started) < allowed + (3 if not seconds else 0) or desk.state(job) == "pending":
        assert time.monotonic() < end
        desk.tick()
    desk.tick(3)
    merge = desk.journal.stages.of(job)["merge"]
    if seconds:
        assert merge.state == "failed" and merge.attempts == allowed and merge.fault is not None
        assert "the stage may be the reason" in merge.fault.remedy
    else:
        assert merge.state != "failed" and merge.failures == 0
