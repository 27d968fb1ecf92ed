"""A thousand stages on a cluster in which two hundred things go wrong, in virtual time: nothing is lost, nothing done twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from daemon.running.attempts.executor import read_job_file
from tests.cluster.bench import Bench
from tests.cluster.fake import FakeScheduler
from tests.cluster.virtual import FAULTS, VirtualCluster, VirtualRunner

LATE = 90.0
LONGEST = 24 * 3600.0


def storm(
    folder: Path, seed: int, stages: int, faults: int, outages: tuple[float, float] = (10, 600), longest: float = 60
) -> tuple[VirtualCluster, VirtualRunner]:
    """Run `stages` to their end; `faults` of the submissions meet one.

    `outages`: of the scheduler, shortest and longest; `longest`: of the stages' work; both in seconds.
    """
    chance = random.Random(seed)
    planned: list[str | None] = [*(chance.choice(FAULTS) for _ in range(faults)), *[None] * (stages - faults)]
    chance.shuffle(planned)
    cluster = VirtualCluster(stages // 10, planned, chance)
    cluster.longest = longest
    runner = VirtualRunner(folder, cluster, stages, LATE)
    next_death, next_outage = chance.uniform(20, 200), chance.uniform(50, 300)
    while runner.round():
        cluster.advance(1.0)
        if cluster.now > next_death:
            runner.die_and_start_again()
            next_death = cluster.now + chance.uniform(20, 400)
        if cluster.now > next_outage:
            cluster.down_until = cluster.now + chance.uniform(*outages)
            next_outage = cluster.down_until + chance.uniform(50, 600)
        assert cluster.now < LONGEST, "stages are lost"
    cluster.advance(2000.0)  # machines that come back, and submissions that are late
    return cluster, runner


def check(cluster: VirtualCluster, runner: VirtualRunner) -> None:
    """What may never happen has not happened."""
    assert all(len(stage.accepted) == 1 for stage in runner.stages), "each stage has succeeded, once"
    assert max(cluster.accepted.values()) == 1, "no attempt was handed in twice"
    assert max(job.workers for job in cluster.jobs.values()) == 1, "no two workers did one attempt's work"
    taken = {stage.accepted[0] for stage in runner.stages}
    assert cluster.finished <= taken, "what was finished is not done again"
    wrong = [stage.name for stage in runner.stages if runner.content(stage) != stage.accepted[0]]
    assert wrong == [], "what was taken is what that very attempt wrote, whatever came back later"


def test_a_small_storm_loses_nothing(tmp_path: Path) -> None:
    cluster, runner = storm(tmp_path, 2, 30, 15)
    check(cluster, runner)


def test_a_scheduler_that_is_down_for_an_hour_ends_no_attempt(tmp_path: Path) -> None:
    cluster, runner = storm(tmp_path, 4, 30, 0, outages=(3600, 3600), longest=900)
    check(cluster, runner)
    assert cluster.down_until > 3600 and len(cluster.accepted) == 30, "each stage was handed in once"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_thousand_stages_with_two_hundred_faults(seed: int, tmp_path: Path) -> None:
    cluster, runner = storm(tmp_path, 100 + seed, 1000, 200)
    check(cluster, runner)
    assert sum(cluster.met.values()) == 200
    assert cluster.looks <= 12 * cluster.now / 60 + 60, "twelve questions a minute, however many attempts there are"


def test_attempts_that_are_taken_over_hold_one_copy_of_their_configuration(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakeScheduler())
    contexts = [read_job_file(order.folder) for order in (bench.order(), bench.order()) if order.write_job_file()]
    bench.close()
    first, second = contexts
    assert first is not None and second is not None and first.attempt != second.attempt
    assert first.work is second.work
