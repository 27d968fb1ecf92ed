"""The real daemon with a real Slurm: whole exports, and what happens to daemon, controller and machine meanwhile."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.bench import until
from tests.cluster.remote import Remote, of_slurm
from tests.cluster.slurm_site import SlurmSite
from tests.runner.conftest import STAGES_OF_ONE

Make = Callable[..., Remote]
Add = Callable[..., Path]


@pytest.fixture
def make_submitting(make_remote: Make, site: SlurmSite) -> Make:
    """Makes daemons over the real Slurm; `more`: of `[cluster]`."""
    return lambda more="", **options: make_remote(cluster=of_slurm(site, more), **options)


@pytest.fixture
def held(make_submitting: Make, add: Add) -> Remote:
    """A daemon whose merge runs by Slurm, and stays at its second shard."""
    return make_submitting().start_held(add)


@pytest.mark.slow
def test_an_export_runs_by_slurm_and_is_seen_where_it_runs(held: Remote, site: SlurmSite) -> None:
    (stage,) = [stage for job in held.status()["jobs"] for stage in job["stages"] if stage["state"] == "running"]
    assert stage["place"]["scheduler"] == "slurm" and stage["place"]["state"] == "running" and stage["place"]["host"], stage
    assert "ckptd." in site.run("squeue", "--me", "--noheader", "--format=%j")
    held.names(stage["place"])
    held.held.unlink()
    held.ends_well()


@pytest.mark.slow
def test_what_a_stage_prints_elsewhere_is_followed_until_it_has_ended(held: Remote) -> None:
    with held.follows("merge") as reader:
        assert [reader.readline(), reader.readline()] == ["printed with shard 0\n", "printed with shard 1\n"]
        held.held.unlink()
        assert "printed with shard 2\n" in reader.readlines(), "and the command ends with the stage"
    held.ends_well()


@pytest.mark.slow
def test_what_slurm_says_is_shown_of_a_stage_whose_log_can_not_be_seen(make_submitting: Make, add: Add) -> None:
    service = make_submitting('prefix = ["/nowhere/loader"]\n')
    add(service)
    service.start()
    with service.follows("merge") as reader:
        assert "/nowhere/loader: not found" in reader.readline()
    assert service.run_verb("queue", "cancel", service.job_id()) == 0, service.said
    assert service.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", [Remote.kill, Remote.stop], ids=["killed", "stopped"])
def test_a_daemon_that_ends_and_starts_again_goes_on_with_what_runs(held: Remote, end: Callable[[Remote], object]) -> None:
    end(held)
    time.sleep(2)
    held.start_again()
    held.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["before.spawned", "runner.spawned"])
def test_a_daemon_that_dies_around_the_handing_in_hands_nothing_in_twice(make_submitting: Make, add: Add, fault: str) -> None:
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
def test_a_controller_that_is_away_ends_nothing(held: Remote, site: SlurmSite) -> None:
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
def test_a_cancelled_export_is_cancelled_there(held: Remote, site: SlurmSite) -> None:
    held.cancel()
    assert held.stop() == 0
    assert site.run("squeue", "--me", "--noheader", "--states=R,PD") == ""
    held.sound()


@pytest.mark.slow
def test_an_export_is_cancelled_while_its_job_is_pending(make_submitting: Make, add: Add, site: SlurmSite) -> None:
    service = make_submitting('[cluster.slurm]\noptions = ["--hold"]\n')
    add(service)
    service.start()
    service.wait_for(
        lambda v: any("it is held by its user" in (s["place"] or {}).get("reason", "") for j in v["jobs"] for s in j["stages"])
    )
    assert site.run("squeue", "--me", "--noheader", "--format=%T").split() == ["PENDING"]
    service.cancel()
    until(lambda: site.run("squeue", "--me", "--noheader", "--states=R,PD") == "")
    assert service.begun() == []
    assert service.stop() == 0
    service.sound()


@pytest.mark.slow
def test_stages_run_where_the_configuration_says(make_submitting: Make, add: Add) -> None:
    service = make_submitting('stages = { merge = "local", "p*" = "wide" }\n[cluster.queues.wide]\npartition = "main"\ncpus = 2\n')
    add(service)
    service.start()
    (job,) = service.wait_ended()
    assert service.stop() == 0
    assert job["state"] == "succeeded", service.log()[-3000:]
    elsewhere = {path.parent.name.partition(".")[0] for path in (service.state / "jobs").glob("*/*/orders.json")}
    assert elsewhere == {*STAGES_OF_ONE} - {"merge"}
    service.sound()


@pytest.mark.slow
def test_a_base_that_slurms_machine_does_not_see_is_said_with_the_machine(
    make_submitting: Make, add: Add, pico_base: Path, tmp_path: Path
) -> None:
    here, seen = tmp_path / "here", tmp_path / "base"
    shutil.copytree(pico_base, here / "base")
    seen.symlink_to("/proc/self/cwd/base")  # there for what runs in that folder, as the daemon does
    service = make_submitting(f"[base.map]\n{json.dumps(str(pico_base))} = {json.dumps(str(seen))}\n")
    service.command = ("sh", "-c", f'cd {shlex.quote(str(here))} && exec "$@"', "sh", *service.command)
    add(service)
    service.start()
    value = service.wait_for(lambda v: any("a machine of slurm" in (job["waiting_for"] or "") for job in v["jobs"]), 60)
    (job,) = value["jobs"]
    assert str(seen) in job["waiting_for"] and 'stages = { merge = "local" }' in job["waiting_for"]
    time.sleep(10)  # many looks of the daemon, which sees it
    (job,) = service.status()["jobs"]
    (merge,) = [stage for stage in job["stages"] if stage["name"] == "merge"]
    assert merge["retry_at"] is not None and merge["attempts"] == 1
    assert "source.back" not in service.log()
    service.cancel()
    assert service.stop() == 0
    service.sound()
