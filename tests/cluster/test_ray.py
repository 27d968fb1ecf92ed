"""A real Ray keeps what schedulers promise, and what fails of it ends no attempt that goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome
from daemon.running.cluster.attempt import ClusterAttempt
from daemon.running.cluster.port import CALL_SECONDS, Ending, Resources, State, Unsure
from daemon.running.cluster.ray import connection
from daemon.running.cluster.ray.scheduler import Ray
from tests.cluster.bench import LATE, Bench, outcome, result_of, runs, stays, until
from tests.cluster.contract import CONTRACT
from tests.cluster.ray_site import CORES, RaySite

pytestmark = pytest.mark.slow


@pytest.fixture
def ray(ray_site: RaySite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    for name, value in ray_site.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(connection, "PAUSE_SECONDS", 1.0)
    made = Ray(ray_site.address, str(ray_site.python), patience=20.0)
    yield made
    made.close()


@pytest.fixture
def ray_bench(tmp_path: Path, ray: Ray) -> Iterator[Bench]:
    made = Bench(tmp_path, ray)
    yield made
    made.close()


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_ray_keeps(promise: Callable[[Bench], None], ray_bench: Bench) -> None:
    promise(ray_bench)


# What fails


def begun(bench: Bench) -> ClusterAttempt:
    """An attempt that runs, and stays until it is released."""
    attempt = bench.start(held=True)
    until(lambda: runs(attempt) and attempt.place.id)
    return attempt


def actor_of(site: RaySite) -> psutil.Process:
    """The process of the one actor that runs."""
    (process,) = site.processes("ray::Attempt")
    return process


def names(site: RaySite) -> object:
    """The actors that the cluster has."""
    return site.ask("ray.util.list_named_actors()")


def test_an_actor_ends_with_its_attempt_and_gives_back_what_it_held(ray_bench: Bench, ray_site: RaySite) -> None:
    attempt = begun(ray_bench)
    assert names(ray_site) == [attempt.orders.token]
    ray_bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)
    until(lambda: not ray_site.processes("ray::Attempt"))
    assert names(ray_site) == []
    assert ray_site.ask("ray.available_resources()['CPU']") == CORES


def test_a_killed_actor_is_lost_and_nothing_of_it_goes_on(ray_bench: Bench, ray_site: RaySite) -> None:
    attempt = begun(ray_bench)
    actor = actor_of(ray_site)
    below = actor.children(recursive=True)
    assert any("handlers" in " ".join(process.cmdline()) or "tests.cluster.child" in " ".join(process.cmdline()) for process in below)
    actor.kill()
    assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.LOST_THERE)
    psutil.wait_procs(below, 10)
    assert not [process for process in below if process.is_running() and process.status() != "zombie"]
    assert ray_bench.begun() == [attempt.context.attempt_id], "Ray started nothing again"


def test_an_actor_that_somebody_else_kills_counts_as_cancelled(ray_bench: Bench, ray_site: RaySite) -> None:
    attempt = begun(ray_bench)
    ray_site.ask(f"ray.kill(ray.get_actor({attempt.orders.token!r}))")
    assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.CANCELLED_THERE)


def test_a_machine_that_is_lost_is_named_as_that(ray_bench: Bench, ray_site: RaySite) -> None:
    attempt = begun(ray_bench)
    until(lambda: attempt.sighting.state is State.RUNNING)
    ray_site.kill("node")
    try:
        assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.NODE_LOST)
        waiting = ray_bench.start()
        until(lambda: "no machine of the cluster has" in waiting.place.reason)
    finally:
        ray_site.start_node()
    assert outcome(waiting) == (Outcome.SUCCEEDED, None)


def test_rays_memory_monitor_is_named(tmp_path: Path, ray: Ray, ray_site: RaySite) -> None:
    """On a machine where any use of memory is too much."""
    ray_site.start_other("little", RAY_memory_usage_threshold="0.0", RAY_memory_monitor_refresh_ms="4000")
    try:
        bench = Bench(tmp_path, Ray(ray_site.address, str(ray_site.python), {"": {"little": 1}}, patience=20.0))
        result = result_of(bench.start(held=True))
        bench.close()
        assert result.fault is not None and result.fault.code == FaultCode.OUT_OF_MEMORY, result
    finally:
        ray_site.end_other()


def test_a_head_that_hangs_ends_nothing(ray_bench: Bench, ray: Ray, ray_site: RaySite) -> None:
    attempt = begun(ray_bench)
    (head,) = ray_site.processes("gcs_server", "head")
    ray.connection.patience = 2.0
    head.suspend()
    try:
        until(lambda: ray_bench.executor.link.away_since is not None)
        assert stays(lambda: attempt.poll() is None and attempt.sighting.state is State.UNKNOWN, 5)
    finally:
        head.resume()
        ray.connection.patience = 20.0
    until(lambda: ray_bench.executor.link.away_since is None and attempt.sighting.state is State.RUNNING)
    ray_bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)
    assert ray_bench.begun() == [attempt.context.attempt_id]


def test_a_cluster_that_is_lost_and_made_again_runs_the_next_attempt(ray_bench: Bench, ray: Ray, ray_site: RaySite) -> None:
    attempt = begun(ray_bench)
    ray_site.kill("node")
    ray_site.kill("head")
    try:
        until(lambda: ray_bench.executor.link.away_since is not None)
        assert stays(lambda: attempt.poll() is None, 2 * LATE), "nobody has said that it is gone"
    finally:
        ray_site.start_head()
        ray_site.start_node()
    assert outcome(attempt)[0] is Outcome.RETRYABLE
    assert outcome(ray_bench.start()) == (Outcome.SUCCEEDED, None)


def test_a_cluster_that_is_made_again_at_once_is_connected_with_again(ray_bench: Bench, ray: Ray, ray_site: RaySite) -> None:
    attempt = begun(ray_bench)
    before = ray.connection.pid
    ray.connection.patience = CALL_SECONDS
    ray_site.kill("node")
    ray_site.kill("head")
    ray_site.start_head()
    ray_site.start_node()
    until(lambda: ray_bench.executor.link.away_since is None and ray.connection.pid not in (None, before), 2 * CALL_SECONDS)
    assert outcome(attempt)[0] is Outcome.RETRYABLE
    assert outcome(ray_bench.start()) == (Outcome.SUCCEEDED, None)


def test_a_client_that_dies_is_replaced_and_loses_nothing(ray_bench: Bench, ray: Ray) -> None:
    attempt = begun(ray_bench)
    before = ray.connection.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    until(lambda: ray.connection.pid not in (None, before) and attempt.sighting.state is State.RUNNING)
    assert attempt.poll() is None
    ray_bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)


def test_an_answer_that_was_lost_submits_nothing_twice(ray_bench: Bench, ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, calls = ray.connection.ask, []

    def swallow(verb: str, **values: Any) -> Any:
        calls.append(verb)
        answer = ask(verb, **values)
        if verb == "submit":
            ray.connection.close()
            raise Unsure("the answer was lost")
        return answer

    monkeypatch.setattr(ray.connection, "ask", swallow)
    attempt = ray_bench.start()
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)
    assert calls.count("submit") == 1
    assert ray_bench.begun() == [attempt.context.attempt_id]


def test_what_is_submitted_twice_is_one_actor(ray: Ray, ray_site: RaySite, tmp_path: Path) -> None:
    script = tmp_path / "attempt.sh"
    script.write_text(f"#!/bin/sh\necho begun >> {tmp_path}/begun\nsleep 60\n")
    script.chmod(0o755)
    first = ray.submit("ckptd.twice", script, Resources(1, 0, 60))
    ray.close()
    assert ray.submit("ckptd.twice", script, Resources(1, 0, 60)) == first
    until(lambda: ray.look(["ckptd.twice"])["ckptd.twice"].state is State.RUNNING)
    until(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text())
    assert (tmp_path / "begun").read_text() == "begun\n"
    ray.cancel({"ckptd.twice": first})
    until(lambda: ray.look(["ckptd.twice"])["ckptd.twice"].state is State.GONE)
    assert ray.look(["ckptd.twice"])["ckptd.twice"].ending is Ending.CANCELLED


def test_why_an_actor_waits_is_said_and_it_can_be_taken_back(ray_bench: Bench, ray: Ray, ray_site: RaySite) -> None:
    script = ray_bench.folder / "sleep.sh"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    ray.submit("ckptd.wide", script, Resources(CORES, 0, 60))
    until(lambda: ray.look(["ckptd.wide"])["ckptd.wide"].state is State.RUNNING)
    attempt = ray_bench.start()
    until(lambda: attempt.place.state == "pending" and "CPUs" in attempt.place.reason)
    assert f"(0 of {CORES} free)" in attempt.place.reason and "waits for" in attempt.progress.message
    attempt.stop()
    assert outcome(attempt) == (Outcome.INTERRUPTED, None)
    until(lambda: names(ray_site) == ["ckptd.wide"])
    assert ray_bench.begun() == []
    ray.cancel({"ckptd.wide": ""})
    until(lambda: names(ray_site) == [])


def test_gpus_custom_resources_and_a_machine_alone_are_given(ray_site: RaySite, ray: Ray, tmp_path: Path) -> None:
    script = tmp_path / "attempt.sh"
    script.write_text(f"#!/bin/sh\nenv > {tmp_path}/seen.tmp; mv {tmp_path}/seen.tmp {tmp_path}/seen; sleep 30\n")
    script.chmod(0o755)
    queued = Ray(ray_site.address, str(ray_site.python), {"": {}, "fast": {"disk": 3}}, patience=20.0)
    queued.submit("ckptd.alone", script, Resources(2, 1 << 30, 60, gpus=1, alone=True, queue="fast"))
    until((tmp_path / "seen").exists)
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines() if "=" in line)
    assert seen["CKPTD_SCHEDULER_CPUS"] == "2" and seen["CUDA_VISIBLE_DEVICES"] in ("0", "1") and "RAY_AUTH_MODE" not in seen
    free = ray_site.ask("ray.available_resources()")
    assert isinstance(free, dict)
    assert (free.get("CPU", 0), free["GPU"], free["disk"]) == (0, 1, 1)
    queued.cancel({"ckptd.alone": ""})
    until(lambda: queued.look(["ckptd.alone"])["ckptd.alone"].state is State.GONE)
    queued.close()


def test_a_script_that_its_machine_does_not_see_is_said(ray: Ray, tmp_path: Path) -> None:
    ray.submit("ckptd.blind", tmp_path / "nowhere" / "attempt.sh", Resources(1, 0, 60))
    until(lambda: ray.look(["ckptd.blind"])["ckptd.blind"].state is State.GONE)
    assert "can't start" in ray.tail("ckptd.blind", tmp_path / "nowhere")


def test_a_cluster_that_is_not_there_or_refuses_the_token_is_said(
    ray: Ray, ray_site: RaySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unsure, match="nobody answers at 127"):
        Ray("127.0.0.1:1", str(ray_site.python)).look([])
    (tmp_path / "token").write_text("0" * 64)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    stranger = Ray(ray_site.address, str(ray_site.python), patience=60.0)
    with pytest.raises(Unsure, match=r"(?i)token"):
        stranger.look([])
    stranger.close()
