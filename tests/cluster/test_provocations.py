"""What happens to real jobs of a real Slurm: machines lost, limits reached, jobs requeued and killed, files late, clocks wrong."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome
from daemon.running.cluster import executor
from daemon.running.cluster.attempt import ClusterAttempt
from daemon.running.cluster.slurm.scheduler import Slurm
from tests.cluster.bench import BOUNDS, LATE, Bench, child_of, outcome, result_of, runs, stays, until
from tests.cluster.slurm_site import SlurmSite, download

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rough(site_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    """A Slurm of which machines are lost."""
    made = SlurmSite(site_tree, tmp_path_factory.mktemp("rough"))
    yield made
    made.close()


@pytest.fixture
def bench(tmp_path: Path, rough: SlurmSite) -> Iterator[Bench]:
    made = Bench(tmp_path, Slurm(directory=str(rough.commands)))
    yield made
    made.close()


@pytest.fixture(scope="module")
def faketime(site_tree: Path) -> Path:
    """The library that shows a process another time."""
    try:
        (library,) = download(site_tree.parent / "faketime", ("libfaketime",)).glob("usr/lib/*/faketime/libfaketime.so.1")
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"the package libfaketime can't be fetched here: {error}")
    return library


@pytest.fixture
def held(bench: Bench) -> ClusterAttempt:
    """An attempt at work."""
    return at_work(bench)


def at_work(bench: Bench) -> ClusterAttempt:
    """Start an attempt that stays until it is released."""
    attempt = bench.start(held=True)
    until(lambda: runs(attempt) and attempt.place.state == "running" and attempt.place.id)
    return attempt


def follows(bench: Bench) -> None:
    """The next attempt succeeds, and no other was begun twice."""
    following = bench.start()
    assert outcome(following) == (Outcome.SUCCEEDED, None)
    begun = bench.begun()
    assert len(begun) == len(set(begun)), "no attempt is begun twice"


def test_a_machine_that_is_lost_is_followed_by_another_attempt(bench: Bench, held: ClusterAttempt, rough: SlurmSite) -> None:
    rough.kill_node()
    try:
        assert outcome(held) == (Outcome.RETRYABLE, FaultCode.NODE_LOST)
        assert not held.ended_surely
    finally:
        rough.start_node()
    follows(bench)


def test_what_died_with_its_slurmd_that_is_back_at_once(bench: Bench, held: ClusterAttempt, rough: SlurmSite) -> None:
    rough.kill_node()
    rough.start_node()
    result = result_of(held)
    assert result.fault is not None and result.fault.code in (FaultCode.NODE_LOST, FaultCode.LOST_THERE), result
    assert not held.ended_surely, "no end file: nobody has seen its processes end"
    follows(bench)


def test_an_administrator_who_requeues_a_job_has_nothing_done_twice(bench: Bench, held: ClusterAttempt, rough: SlurmSite) -> None:
    rough.run("scontrol", "update", f"jobid={held.place.id}", "requeue=1")
    rough.run("scontrol", "requeue", held.place.id)
    result = result_of(held)
    assert result.fault is not None and result.fault.code == FaultCode.PREEMPTED, result
    assert "back into the queue" in result.fault.cause
    follows(bench)
    until(lambda: rough.run("squeue", "--me", "--noheader", "--states=PD,R") == "", 30)
    assert bench.begun().count(held.context.attempt_id) == 1


def test_a_stage_that_is_killed_is_told_apart_from_want_of_memory(bench: Bench, held: ClusterAttempt) -> None:
    child_of(held.folder).kill()
    assert outcome(held) == (Outcome.RETRYABLE, FaultCode.KILLED)
    follows(bench)


def test_a_signal_to_the_job_is_said_and_a_warning_before_a_limit_is_none(bench: Bench, held: ClusterAttempt, rough: SlurmSite) -> None:
    rough.run("scancel", "--signal=USR1", "--full", held.place.id)
    assert stays(lambda: held.poll() is None, 2)
    rough.run("scancel", "--signal=HUP", "--batch", held.place.id)
    result = result_of(held)
    assert result.fault is not None and result.fault.code == FaultCode.LOST_THERE, result
    assert "was told to end by a signal" in result.fault.cause and held.ended_surely
    follows(bench)


def test_slurms_time_limit_is_said_and_followed_by_twice_the_time(bench: Bench, rough: SlurmSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "TIME_SLACK", -80.0)  # so that Slurm's limit comes first
    first = at_work(bench)
    until(lambda: first.poll() is not None, 200)
    result = result_of(first)
    assert result.fault is not None and result.fault.code == FaultCode.SCHEDULER_TIME, result
    assert "time limit of 1 min" in result.fault.cause
    second = at_work(bench)
    assert "TimeLimit=00:02:00" in rough.run("scontrol", "show", "job", second.place.id)
    bench.release(second)
    assert outcome(second) == (Outcome.SUCCEEDED, None)


def test_a_job_that_slurm_suspends_for_longer_than_a_silence_goes_on_later(bench: Bench, rough: SlurmSite) -> None:
    attempt = bench.start(dataclasses.replace(BOUNDS, silence=8.0), held=True)
    until(lambda: runs(attempt) and attempt.place.state == "running" and attempt.place.id)
    rough.run("scontrol", "suspend", attempt.place.id)
    until(lambda: attempt.place.word == "SUSPENDED" and "Slurm has suspended it" in attempt.progress.message)
    assert stays(lambda: attempt.poll() is None, 12)
    rough.run("scontrol", "resume", attempt.place.id)
    until(lambda: attempt.place.word == "RUNNING")
    bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)


@pytest.mark.parametrize("seen", [True, False], ids=["in-time", "too-late"])
def test_a_result_that_is_seen_a_minute_late(bench: Bench, held: ClusterAttempt, seen: bool) -> None:
    """The daemon's clock runs twenty times as fast as this one: late_seconds are 90 of its own."""
    bench.executor.close()
    bench.release(held)
    until(lambda: (held.folder / "end.json").exists())
    result, away = held.folder / "result.json", held.folder.parent / "away.json"
    result.rename(away)
    bench.late, bench.clock = 90.0, lambda: 20 * time.monotonic()
    taken, began = bench.restart(held), bench.clock()
    until(lambda: not seen or bench.clock() - began > 60)
    if seen:
        assert taken.poll() is None
        away.rename(result)
        assert outcome(taken) == (Outcome.SUCCEEDED, None)
    else:
        assert result_of(taken).outcome is Outcome.RETRYABLE
        assert bench.clock() - began >= 90
        away.rename(result)
        assert result_of(taken).outcome is Outcome.RETRYABLE, "what comes later changes nothing"
        follows(bench)


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_machine_whose_clock_is_off_by_minutes(bench: Bench, faketime: Path, minutes: int) -> None:
    """It runs under another time, and so do the times of the files that it writes, as on Lustre."""
    clock = ("env", f"LD_PRELOAD={faketime}", f"FAKETIME={minutes:+d}m")
    bench.executor.terms = dataclasses.replace(bench.executor.terms, prefix=clock)
    attempt = at_work(bench)
    for name in ("claim.json", "progress.jsonl"):
        os.utime(attempt.folder / name, (time.time() + 60 * minutes,) * 2)
    off = float((attempt.folder / "clock").read_text()) - time.time()
    assert abs(off - 60 * minutes) < 60, "the clock there is wrong indeed"
    taken = bench.restart(attempt)
    assert taken.course.ran < 60, "how long it has run is nobody's but the daemon's to say"
    until(lambda: runs(taken))
    assert stays(lambda: taken.poll() is None, 2 * LATE)
    bench.release(taken)
    assert outcome(taken) == (Outcome.SUCCEEDED, None)


@pytest.fixture
def strict(site_tree: Path, tmp_path: Path) -> Iterator[Bench]:
    """Attempts by a Slurm that ends a job that takes more memory than it asked for. Without control groups it looks at processes."""
    gather = "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherParams=OverMemoryKill\nJobAcctGatherFrequency=task=1\n"
    made = SlurmSite(site_tree, tmp_path / "strict", gather)
    bench = Bench(tmp_path, Slurm(directory=str(made.commands)))
    yield bench
    bench.close()
    made.close()


def test_a_job_that_takes_more_memory_than_it_asked_for_is_followed_by_one_that_asks_for_more(strict: Bench) -> None:
    strict.executor.terms = dataclasses.replace(strict.executor.terms, memory=300 << 20)
    attempt = at_work(strict)
    (attempt.folder / "greedy.now").write_text(str(500 << 20))
    (attempt.folder / "greedy.now").rename(attempt.folder / "greedy")
    result = result_of(attempt)
    assert result.fault is not None and result.fault.code == FaultCode.OUT_OF_MEMORY, result
    assert "300 MiB" in result.fault.cause and "on " in result.fault.cause
    assert result.peak_rss >= 300 << 20, "by which the next attempt is given more"
    killed = at_work(strict)
    child_of(killed.folder).kill()
    assert outcome(killed) == (Outcome.RETRYABLE, FaultCode.KILLED), "of which that is told apart"
