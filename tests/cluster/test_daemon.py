"""The real daemon with a real Slurm: whole exports, and what happens to daemon, controller and machine meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from daemon.config.cluster import ClusterSettings
from daemon.operating.integrity.fsck import examine
from daemon.running.cluster.by_stage import with_cluster
from daemon.running.workers.executor import LocalExecutor
from tests.cluster.slurm_site import SlurmSite
from tests.runner.conftest import STAGES_OF_ONE, Toy, add
from tests.service import making

__all__ = ["add"]
Add = Callable[..., Path]
PASSED = ["PYTHONPATH", "TOY_LOG", "TOY_HOLD"]
CLUSTER = '[cluster]\nexecutor = "slurm"\nlate_seconds = 3\n'


class Submitting(Toy):
    """The toy daemon, whose stages run by a Slurm."""

    command = (sys.executable, "-m", "tests.cluster.toy_daemon")
    commands: Path

    def __init__(self, folder: Path, *, cluster: str = "", **options: Any) -> None:
        super().__init__(folder, **{"extra": CLUSTER + cluster, **options})
        self.environment["CKPTD_LIMITS__PASS_ENVIRONMENT"] = json.dumps(PASSED)
        self.environment["PATH"] = f"{self.commands}:{os.environ['PATH']}"

    def sound(self) -> None:
        """Nothing is wrong with state and output."""
        executor = with_cluster(ClusterSettings(executor="slurm"), LocalExecutor())
        findings = examine(self.state, self.exports, quiescent=True, deep=True, executor=executor)
        assert findings.findings == (), findings

    def job_id(self) -> str:
        """Id of its job, once there is one."""
        return str(self.wait_for(lambda v: v["jobs"])["jobs"][0]["id"])

    @contextlib.contextmanager
    def follows(self, stage: str) -> Iterator[IO[str]]:
        """What `ckptd logs --follow` shows of a stage."""
        words = ("logs", "--follow", "--job", self.job_id(), "--stage", stage, "--config", str(self.config))
        with subprocess.Popen([sys.executable, "-m", "daemon", *words], stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            bound = threading.Timer(60, reader.kill)
            bound.start()
            try:
                yield reader.stdout
            finally:
                bound.cancel()
                reader.kill()

    def ends_well(self) -> None:
        """The export succeeds, each of its stages was begun once, and nothing is wrong afterwards."""
        (job,) = self.wait_ended()
        assert self.stop() == 0
        assert job["state"] == "succeeded", self.log()[-3000:]
        assert sorted(self.stages_begun()) == sorted(STAGES_OF_ONE), "each once"
        self.sound()


@pytest.fixture
def make_submitting(tmp_path: Path, site: SlurmSite) -> Iterator[Callable[..., Submitting]]:
    """Makes daemons over the real Slurm."""

    class Here(Submitting):
        commands = site.commands

    yield from making(Here, tmp_path)


@pytest.fixture
def held(make_submitting: Callable[..., Submitting], add: Add) -> Submitting:
    """A daemon whose merge runs by Slurm, and stays at its second shard."""
    return make_submitting().start_held(add)


def test_an_export_runs_by_slurm_and_is_seen_where_it_runs(held: Submitting, site: SlurmSite) -> None:
    (stage,) = [stage for job in held.status()["jobs"] for stage in job["stages"] if stage["state"] == "running"]
    assert stage["place"]["scheduler"] == "slurm" and stage["place"]["state"] == "running" and stage["place"]["host"], stage
    assert "ckptd." in site.run("squeue", "--me", "--noheader", "--format=%j")
    held.held.unlink()
    held.ends_well()


@pytest.mark.slow
def test_what_a_stage_prints_elsewhere_is_followed_until_it_has_ended(held: Submitting) -> None:
    with held.follows("merge") as reader:
        assert [reader.readline(), reader.readline()] == ["printed with shard 0\n", "printed with shard 1\n"]
        held.held.unlink()
        assert "printed with shard 2\n" in reader.readlines(), "and the command ends with the stage"
    held.ends_well()


@pytest.mark.slow
def test_what_slurm_says_is_shown_of_a_stage_whose_log_can_not_be_seen(make_submitting: Callable[..., Submitting], add: Add) -> None:
    service = make_submitting(cluster='prefix = ["/nowhere/loader"]\n')
    add(service)
    service.start()
    with service.follows("merge") as reader:
        assert "/nowhere/loader: not found" in reader.readline()
    assert service.run_verb("queue", "cancel", service.job_id()) == 0, service.said
    assert service.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", [Submitting.kill, Submitting.stop], ids=["killed", "stopped"])
def test_a_daemon_that_ends_and_starts_again_goes_on_with_what_runs(held: Submitting, end: Callable[[Submitting], object]) -> None:
    end(held)
    time.sleep(2)
    held.start_again()
    held.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["before.spawned", "runner.spawned"])
def test_a_daemon_that_dies_around_the_handing_in_hands_nothing_in_twice(
    make_submitting: Callable[..., Submitting], add: Add, fault: str
) -> None:
    service = make_submitting()
    add(service)
    service.start(fault=fault)
    assert service.wait_dead() == -signal.SIGKILL
    service.start()
    (job,) = service.wait_ended()
    assert service.stop() == 0
    assert job["state"] == "succeeded"
    assert sorted(service.stages_begun()) == sorted(STAGES_OF_ONE)
    service.sound()


@pytest.mark.slow
def test_a_controller_that_is_away_ends_nothing(held: Submitting, site: SlurmSite) -> None:
    site.stop_controller()
    try:
        held.wait_for(lambda v: "gives no answer" in held.log())
        held.held.unlink()
        held.wait_for(lambda v: any(s["state"] == "succeeded" for job in v["jobs"] for s in job["stages"]), 60)
    finally:
        site.start_controller()
    (job,) = held.wait_ended()
    assert held.stop() == 0
    assert job["state"] == "succeeded", held.log()[-3000:]
    assert sorted(held.stages_begun()) == sorted(STAGES_OF_ONE)
    assert "gives no answer" in held.log()
    held.sound()


@pytest.mark.slow
def test_a_cancelled_export_is_cancelled_there(held: Submitting, site: SlurmSite) -> None:
    (job,) = held.status()["jobs"]
    assert held.run_verb("queue", "cancel", job["id"]) == 0, held.said
    held.wait_for(lambda v: [job["state"] for job in v["jobs"]] == ["cancelled"])
    assert held.stop() == 0
    assert site.run("squeue", "--me", "--noheader", "--states=R,PD") == ""
    held.sound()


@pytest.mark.slow
def test_stages_run_where_the_configuration_says(make_submitting: Callable[..., Submitting], add: Add) -> None:
    service = make_submitting(cluster='stages = { merge = "local", "p*" = "wide" }\n[cluster.queues.wide]\npartition = "main"\ncpus = 2\n')
    add(service)
    service.start()
    (job,) = service.wait_ended()
    assert service.stop() == 0
    assert job["state"] == "succeeded", service.log()[-3000:]
    elsewhere = {path.parent.name.partition(".")[0] for path in (service.state / "jobs").glob("*/*/orders.json")}
    assert elsewhere == {*STAGES_OF_ONE} - {"merge"}
    service.sound()
