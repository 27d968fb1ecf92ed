"""The real daemon over a scheduler that forgets all with the daemon, in whose process it is: what runs there goes on, since the attempts'
folders say everything. So it does with any scheduler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.jobs.processes.elsewhere import END
from tests.cluster.bench import child_of, until
from tests.cluster.remote import Cluster, Remote
from tests.runner.conftest import ALL, STAGES_OF_ALL, STAGES_OF_ONE, Toy, artifacts, make_toy, read_json

__all__ = ["make_toy"]
pytestmark = pytest.mark.slow
Make = Callable[..., Remote]
Add = Callable[..., Path]
FORGETFUL = Cluster("", {"TOY_SCHEDULER": "fake"})


@pytest.fixture
def held(make_remote: Make, add: Add) -> Remote:
    """A daemon whose merge runs there, and stays at its second shard."""
    return make_remote(cluster=FORGETFUL).start_held(add)


def folder_of(service: Remote) -> Path:
    """The folder of the merge's first attempt."""
    (folder,) = (service.state / "jobs").glob("*/merge.1")
    return folder


def test_an_export_goes_the_whole_way_and_its_artifacts_are_those_of_this_box(
    make_remote: Make, make_toy: Callable[..., Toy], add: Add
) -> None:
    there = make_remote(cluster=FORGETFUL, variants=ALL)
    targets = []
    for service in (there, make_toy(variants=ALL)):
        add(service)
        service.start()
        (job,) = service.wait_ended()
        assert service.stop() == 0
        assert job["state"] == "succeeded", service.log()[-3000:]
        assert sorted(service.stages_begun()) == sorted(STAGES_OF_ALL)
        targets.append(artifacts(Path(job["target"])))
    assert targets[0] == targets[1]
    assert len(list((there.state / "jobs").glob(f"*/*/{END}"))) == len(STAGES_OF_ALL)
    there.sound()


@pytest.mark.parametrize("end", [Remote.kill, Remote.stop], ids=["killed", "stopped"])
def test_the_next_daemon_takes_over_what_runs(held: Remote, end: Callable[[Remote], object]) -> None:
    (live,) = [said for stages in read_json(held.state / "live.json")["progress"].values() for said in stages.values()]
    assert live["id"].startswith("fake:ckptd.") and live["message"].startswith("shard 1")
    end(held)
    assert not (folder_of(held) / END).exists()
    held.start_again()
    held.ends_well()
    assert [stage["attempts"] for job in held.status()["jobs"] for stage in job["stages"]] == [1] * len(STAGES_OF_ONE)


def test_what_ended_while_no_daemon_was_there_is_taken_as_it_is(held: Remote) -> None:
    held.kill()
    held.held.unlink()
    until((folder_of(held) / END).exists)
    held.start()
    held.ends_well()


def test_a_child_that_died_while_no_daemon_was_there_is_an_attempt_that_is_made_again(held: Remote) -> None:
    held.kill()
    child_of(folder_of(held)).kill()
    until((folder_of(held) / END).exists)
    held.held.unlink()
    held.start()
    (job,) = held.wait_ended()
    assert held.stop() == 0
    assert job["state"] == "succeeded"
    assert {stage["name"]: stage["attempts"] for stage in job["stages"]} == {**dict.fromkeys(STAGES_OF_ONE, 1), "merge": 2}


def test_a_job_that_was_cancelled_without_a_daemon_is_not_gone_on_with(held: Remote) -> None:
    held.kill()
    held.cancel()
    assert not (folder_of(held) / END).exists()
    held.start()
    until((folder_of(held) / END).exists)
    assert held.stop() == 0
    assert [job["state"] for job in held.status()["jobs"]] == ["cancelled"]
    held.sound()
