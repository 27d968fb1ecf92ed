"""Another scheduler, or none, while attempts are open: they stay with the one that has them, and nothing is lost or done twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.jobs.processes.elsewhere import ORDERS
from tests.cluster.bench import until
from tests.cluster.ray_site import RaySite
from tests.cluster.remote import Cluster, Remote, of_ray, of_slurm
from tests.cluster.slurm_site import SlurmSite

Make = Callable[..., Remote]
Add = Callable[..., Path]
HERE = Cluster('[cluster]\nexecutor = "local"\nlate_seconds = 3\n', {})


def waits(service: Remote, site: SlurmSite) -> str:
    """Slurm's id of the merge, which waits in the queue, as the daemon that runs sees it too."""
    service.wait_for(
        lambda v: (
            v["daemon"]["pid"] == service.process.pid  # type: ignore[union-attr]
            and any("it is held by its user" in (s["place"] or {}).get("reason", "") for job in v["jobs"] for s in job["stages"])
        )
    )
    (id,) = site.run("squeue", "--me", "--noheader", "--states=PD", "--format=%i").split()
    return id


@pytest.mark.slow
def test_a_merge_that_slurm_runs_is_continued_by_a_daemon_that_hands_the_rest_to_ray(
    make_remote: Make, add: Add, site: SlurmSite, ray_site: RaySite
) -> None:
    service = make_remote(cluster=of_slurm(site)).start_held(add)
    service.move(of_ray(ray_site))
    assert service.run_verb("reload") == 2 and "cluster can't be changed while the daemon runs; restart it" in service.said
    assert service.stop() == 0
    service.start_again()
    service.ends_well()
    assert (service.scheduler_of("merge"), service.scheduler_of("report")) == ("slurm", "ray")
    assert site.run("squeue", "--me", "--noheader", "--states=R,PD") == ""


@pytest.mark.slow
@pytest.mark.parametrize("to", ["ray", "local"])
def test_a_job_that_waits_in_slurm_is_waited_for_there_and_the_rest_goes_elsewhere(
    make_remote: Make, add: Add, site: SlurmSite, request: pytest.FixtureRequest, to: str
) -> None:
    service = make_remote(cluster=of_slurm(site, '[cluster.slurm]\noptions = ["--hold"]\n'))
    add(service)
    service.start()
    id = waits(service, site)
    service.kill()
    service.move(of_ray(request.getfixturevalue("ray_site")) if to == "ray" else HERE)
    service.start()
    assert waits(service, site) == id
    assert service.begun() == []
    site.run("scontrol", "release", id)
    service.ends_well()
    assert (service.scheduler_of("merge"), service.scheduler_of("report")) == ("slurm", {"ray": "ray", "local": ""}[to])


@pytest.mark.slow
def test_an_actor_that_waits_in_ray_is_taken_back_by_a_daemon_of_this_box_alone(make_remote: Make, add: Add, ray_site: RaySite) -> None:
    ray = of_ray(ray_site, "cpus = 100\n")
    service = make_remote(cluster=ray)
    add(service)
    service.start()
    service.wait_for(lambda v: any("no machine" in (s["place"] or {}).get("reason", "") for job in v["jobs"] for s in job["stages"]), 60)
    service.kill()
    service.move(Cluster(ray.text.replace('"ray"', '"local"'), ray.variables))
    service.start()
    service.cancel()
    until(lambda: ray_site.ask("ray.util.list_named_actors()") == [])
    assert service.run_verb("queue", "retry", service.job_id()) == 0, service.said
    service.ends_well()


@pytest.mark.slow
def test_what_no_scheduler_could_be_asked_for_is_made_where_the_next_configuration_says(make_remote: Make, add: Add) -> None:
    service = make_remote(cluster=Cluster(HERE.text.replace("local", "slurm"), {"PATH": "/usr/bin:/bin"}))
    add(service)
    service.start()
    service.wait_for(lambda v: "sbatch can't be run" in service.log())
    service.kill()
    (orders,) = (service.state / "jobs").glob(f"*/merge.1/{ORDERS}")
    assert json.loads(orders.read_bytes())["submission"] == "none"
    service.move(HERE)
    service.start()
    service.ends_well()
    assert service.scheduler_of("report") == ""
