"""The real daemon with a real Ray: whole exports, what is said where Ray is missing, and a daemon that ends meanwhile."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.config.cluster import ClusterSettings
from daemon.config.settings import Settings
from daemon.operating.diagnosis.cluster import examine_cluster
from daemon.operating.integrity.fsck import examine
from daemon.running.cluster.by_stage import with_cluster
from daemon.running.workers.executor import LocalExecutor
from tests.cluster.bench import until
from tests.cluster.ray_site import RaySite
from tests.runner.conftest import STAGES_OF_ONE, Toy, add
from tests.service import making

__all__ = ["add"]
Add = Callable[..., Path]
CLUSTER = """
[cluster]
executor = "ray"
late_seconds = 3
[cluster.ray]
address = "{site.address}"
python = "{site.python}"
{more}"""
PASSED = ["PYTHONPATH", "TOY_LOG", "TOY_HOLD"]


def of(site: RaySite) -> ClusterSettings:
    """The settings of a cluster."""
    return ClusterSettings.model_validate({
        "executor": "ray", "late_seconds": 3, "ray": {"address": site.address, "python": site.python},
    })  # fmt: skip


class ByRay(Toy):
    """The toy daemon, whose stages run by a Ray."""

    command = (sys.executable, "-m", "tests.cluster.toy_daemon")
    site: RaySite

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **{"extra": CLUSTER.format(site=self.site, more=""), **options})
        self.environment |= {**self.site.variables, "CKPTD_LIMITS__PASS_ENVIRONMENT": json.dumps(PASSED)}

    def ends_well(self) -> None:
        """The export succeeds, each of its stages was begun once, and nothing is wrong afterwards."""
        (job,) = self.wait_ended()
        assert self.stop() == 0
        assert job["state"] == "succeeded", self.log()[-3000:]
        assert sorted(self.stages_begun()) == sorted(STAGES_OF_ONE), "each once"
        executor = with_cluster(of(self.site), LocalExecutor())
        findings = examine(self.state, self.exports, quiescent=True, deep=True, executor=executor)
        assert findings.findings == (), findings
        assert examine(self.state, self.exports, quiescent=True).findings == (), "also without the configuration"
        until(lambda: not self.site.processes("ray::Attempt"))


@pytest.fixture
def make_by_ray(tmp_path: Path, ray_site: RaySite) -> Iterator[Callable[..., ByRay]]:
    """Makes daemons over the real Ray."""

    class Here(ByRay):
        site = ray_site

    yield from making(Here, tmp_path)


@pytest.fixture
def held(make_by_ray: Callable[..., ByRay], add: Add) -> ByRay:
    """A daemon whose merge runs by Ray, and stays at its second shard."""
    return make_by_ray().start_held(add)


@pytest.mark.slow
def test_an_export_runs_by_ray_and_is_seen_where_it_runs(held: ByRay, ray_site: RaySite) -> None:
    (stage,) = [stage for job in held.status()["jobs"] for stage in job["stages"] if stage["state"] == "running"]
    assert stage["place"]["scheduler"] == "ray" and stage["place"]["state"] == "running" and stage["place"]["host"], stage
    names = ray_site.ask("ray.util.list_named_actors()")
    assert isinstance(names, list) and names[0].startswith("ckptd.")
    held.held.unlink()
    held.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("end", [ByRay.kill, ByRay.stop], ids=["killed", "stopped"])
def test_a_daemon_that_ends_and_starts_again_goes_on_with_what_ray_runs(held: ByRay, end: Callable[[ByRay], object]) -> None:
    before = held.children()
    end(held)
    until(lambda: not any(process.is_running() and process.status() != "zombie" for process in before))
    held.start_again()
    held.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["before.spawned", "runner.spawned"])
def test_a_daemon_that_dies_around_the_handing_in_makes_no_second_actor(make_by_ray: Callable[..., ByRay], add: Add, fault: str) -> None:
    service = make_by_ray()
    add(service)
    service.start(fault=fault)
    assert service.wait_dead() == -signal.SIGKILL
    service.start()
    service.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("end", [ByRay.kill, ByRay.stop], ids=["killed", "stopped"])
def test_a_daemon_ends_while_its_client_hangs_and_the_next_goes_on(held: ByRay, end: Callable[[ByRay], object]) -> None:
    (client,) = [process for process in held.children() if "driver.py" in " ".join(process.cmdline())]
    client.suspend()
    end(held)
    try:
        held.start_again()
        held.ends_well()
        until(lambda: not client.is_running() or client.status() == psutil.STATUS_ZOMBIE, 10)
    finally:
        with contextlib.suppress(psutil.Error):
            client.kill()


@pytest.mark.slow
def test_another_executor_is_for_the_next_start_and_what_runs_goes_on_where_it_is(held: ByRay) -> None:
    held.reconfigure('executor = "ray"', 'executor = "local"')
    assert held.run_verb("reload") == 2 and "cluster can't be changed while the daemon runs; restart it" in held.said
    held.kill()
    held.start_again()
    held.ends_well()


@pytest.mark.slow
def test_an_export_is_cancelled_while_its_actor_waits(make_by_ray: Callable[..., ByRay], add: Add, ray_site: RaySite) -> None:
    service = make_by_ray(extra=CLUSTER.format(site=ray_site, more="cpus = 100\n"))
    add(service)
    service.start()
    service.wait_for(lambda v: any("no machine" in (s["place"] or {}).get("reason", "") for job in v["jobs"] for s in job["stages"]), 60)
    (job,) = service.status()["jobs"]
    assert service.run_verb("queue", "cancel", job["id"]) == 0, service.said
    service.wait_for(lambda v: [job["state"] for job in v["jobs"]] == ["cancelled"], 60)
    until(lambda: ray_site.ask("ray.util.list_named_actors()") == [])
    assert service.begun() == []


@pytest.mark.slow
def test_a_cancelled_export_leaves_no_actor(held: ByRay, ray_site: RaySite) -> None:
    (job,) = held.status()["jobs"]
    assert held.run_verb("queue", "cancel", job["id"]) == 0, held.said
    held.wait_for(lambda v: [job["state"] for job in v["jobs"]] == ["cancelled"])
    assert held.stop() == 0
    until(lambda: ray_site.ask("ray.util.list_named_actors()") == [])


@pytest.mark.slow
def test_check_names_the_machine_that_answered(tmp_path: Path, ray_site: RaySite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ray_site.variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings.model_validate({
        "state": {"directory": tmp_path / "state"}, "output": {"directory": tmp_path / "out"}, "cluster": of(ray_site).model_dump(),
        "limits": {"pass_environment": ["PYTHONPATH"]},
    })  # fmt: skip
    here = examine_cluster(settings)
    assert (here.problems, here.warnings) == ((), ())
    assert here.facts["cluster"].startswith("ray: ") and "cores" in here.facts["cluster"]


def test_without_ray_start_and_check_say_what_to_do_in_a_sentence(tmp_path: Path) -> None:
    class Without(Toy):
        command = (sys.executable, "-m", "tests.cluster.toy_daemon")

    nowhere = tmp_path / "nowhere" / "python"
    service = Without(tmp_path, extra=f'[cluster]\nexecutor = "ray"\n[cluster.ray]\npython = "{nowhere}"\n')
    service.start()
    assert service.wait_dead() != 0
    assert f"cluster.ray.python, {nowhere}, can't be run" in service.log()
    settings = Settings.model_validate({"cluster": {"executor": "ray", "ray": {"python": nowhere}}})
    (problem,) = examine_cluster(settings).problems
    assert f"{nowhere}, can't be run" in problem and "pip install ckptd[ray]" in problem


@pytest.mark.parametrize(
    ("queue", "executor", "what"),
    [({"partition": "gpu"}, "ray", "partition says nothing"), ({"resources": {"a100": 1}}, "slurm", "resources says nothing")],
)
def test_keys_that_the_scheduler_does_not_know_are_refused(queue: dict[str, Any], executor: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ClusterSettings.model_validate({"executor": executor, "queues": {"wide": queue}})
