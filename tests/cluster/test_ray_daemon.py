"""The real daemon with a real Ray: whole exports, what is said where Ray is missing, and a daemon that ends meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.config.cluster import ClusterSettings
from daemon.config.settings import Settings
from daemon.operating.diagnosis.cluster import examine_cluster
from tests.cluster.bench import until
from tests.cluster.ray_site import RaySite
from tests.cluster.remote import Remote, of_ray
from tests.runner.conftest import Toy

Make = Callable[..., Remote]
Add = Callable[..., Path]


@pytest.fixture
def make_by_ray(make_remote: Make, ray_site: RaySite) -> Make:
    """Makes daemons over the real Ray; `more`: of `[cluster.ray]`."""
    return lambda more="", **options: make_remote(cluster=of_ray(ray_site, more), **options)


@pytest.fixture
def held(make_by_ray: Make, add: Add) -> Remote:
    """A daemon whose merge runs by Ray, and stays at its second shard."""
    return make_by_ray().start_held(add)


@pytest.mark.slow
def test_an_export_runs_by_ray_and_is_seen_where_it_runs(held: Remote, ray_site: RaySite) -> None:
    (stage,) = [stage for job in held.status()["jobs"] for stage in job["stages"] if stage["state"] == "running"]
    assert stage["place"]["scheduler"] == "ray" and stage["place"]["state"] == "running" and stage["place"]["host"], stage
    held.names(stage["place"])
    names = ray_site.ask("ray.util.list_named_actors()")
    assert isinstance(names, list) and names[0].startswith("ckptd.")
    held.held.unlink()
    held.ends_well()
    until(lambda: not ray_site.processes("ray::Attempt"))


@pytest.mark.slow
def test_what_a_stage_prints_by_ray_is_followed_until_it_has_ended(held: Remote) -> None:
    with held.follows("merge") as reader:
        assert [reader.readline(), reader.readline()] == ["printed with shard 0\n", "printed with shard 1\n"]
        held.held.unlink()
        assert "printed with shard 2\n" in reader.readlines(), "and the command ends with the stage"
    held.ends_well()


@pytest.mark.slow
def test_what_its_script_says_is_shown_of_a_stage_by_ray_whose_log_can_not_be_seen(make_by_ray: Make, add: Add) -> None:
    service = make_by_ray('prefix = ["/nowhere/loader"]\n')
    add(service)
    service.start()
    with service.follows("merge") as reader:
        assert "/nowhere/loader: not found" in reader.readline()
    service.cancel()


@pytest.mark.slow
def test_ray_may_be_installed_in_the_daemons_own_environment(
    make_remote: Make, add: Add, ray_site: RaySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "own")
    (packages,) = (tmp_path / "own").glob("lib/*/site-packages")
    asked = [str(ray_site.python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    of_ray_alone = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    (packages / "both.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{of_ray_alone}\n")
    own = str(tmp_path / "own" / "bin" / "python")
    monkeypatch.setattr(Remote, "command", (own, *Remote.command[1:]))
    service = make_remote(cluster=of_ray(ray_site, python=""))
    add(service)
    service.start()
    (job,) = service.wait_ended()
    clients = [process.exe() for process in service.children() if "driver.py" in " ".join(process.cmdline())]
    assert service.stop() == 0
    assert job["state"] == "succeeded" and service.scheduler_of("merge") == "ray", service.log()[-3000:]
    assert clients == [os.path.realpath(own)]


@pytest.mark.slow
@pytest.mark.parametrize("end", [Remote.kill, Remote.stop], ids=["killed", "stopped"])
def test_a_daemon_that_ends_and_starts_again_goes_on_with_what_ray_runs(held: Remote, end: Callable[[Remote], object]) -> None:
    before = held.children()
    end(held)
    until(lambda: not any(process.is_running() and process.status() != "zombie" for process in before))
    held.start_again()
    held.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["before.spawned", "runner.spawned"])
def test_a_daemon_that_dies_around_the_handing_in_makes_no_second_actor(make_by_ray: Make, add: Add, fault: str) -> None:
    service = make_by_ray()
    add(service)
    service.start(fault=fault)
    assert service.wait_dead() == -signal.SIGKILL
    service.start()
    service.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("end", [Remote.kill, Remote.stop], ids=["killed", "stopped"])
def test_a_daemon_ends_while_its_client_hangs_and_the_next_goes_on(held: Remote, end: Callable[[Remote], object]) -> None:
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
def test_another_executor_is_for_the_next_start_and_what_runs_goes_on_where_it_is(held: Remote) -> None:
    held.reconfigure('executor = "ray"', 'executor = "local"')
    assert held.run_verb("reload") == 2 and "cluster can't be changed while the daemon runs; restart it" in held.said
    held.kill()
    held.start_again()
    held.ends_well()


@pytest.mark.slow
def test_an_export_is_cancelled_while_its_actor_waits(make_by_ray: Make, add: Add, ray_site: RaySite) -> None:
    service = make_by_ray("cpus = 100\n")
    add(service)
    service.start()
    service.wait_for(lambda v: any("no machine" in (s["place"] or {}).get("reason", "") for job in v["jobs"] for s in job["stages"]), 60)
    service.cancel()
    until(lambda: ray_site.ask("ray.util.list_named_actors()") == [])
    assert service.begun() == []


@pytest.mark.slow
def test_a_cancelled_export_leaves_no_actor(held: Remote, ray_site: RaySite) -> None:
    held.cancel()
    assert held.stop() == 0
    until(lambda: ray_site.ask("ray.util.list_named_actors()") == [])


@pytest.mark.slow
def test_check_names_the_machine_that_answered(tmp_path: Path, ray_site: RaySite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ray_site.variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings.model_validate({
        "state": {"directory": tmp_path / "state"}, "output": {"directory": tmp_path / "out"},
        "cluster": {"executor": "ray", "ray": {"address": ray_site.address, "python": ray_site.python}},
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


@pytest.mark.parametrize("variable", [False, True], ids=["configured", "of-the-environment"])
def test_an_address_of_a_client_server_is_refused(variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001" if variable else "")
    ray = {} if variable else {"address": "ray://head:10001"}
    (problem,) = examine_cluster(Settings.model_validate({"cluster": {"executor": "ray", "ray": ray}})).problems
    assert "address of a client server, through which calls may hang: ray://head:10001" in problem and "ray start --address=" in problem


@pytest.mark.parametrize(
    ("queue", "executor", "what"),
    [({"partition": "gpu"}, "ray", "partition says nothing"), ({"resources": {"a100": 1}}, "slurm", "resources says nothing")],
)
def test_keys_that_the_scheduler_does_not_know_are_refused(queue: dict[str, Any], executor: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ClusterSettings.model_validate({"executor": executor, "queues": {"wide": queue}})
