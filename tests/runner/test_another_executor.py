"""An executor of another kind takes the runner's place: attempts run by a server that no daemon's death touches.

`tests.runner.queue_executor` is written against `daemon.running.attempts.executor` alone; nothing of it passes by memory or environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.operating.integrity.fsck import examine
from tests.runner.conftest import ALL, ROOT, STAGES_OF_ALL, STAGES_OF_ONE, Toy, artifacts, read_json
from tests.runner.queue_executor import QueueExecutor
from tests.service import making

Add = Callable[..., Path]


class Queued(Toy):
    """The real daemon, journal and child entry, with a queue between them. What a stage takes is the server's affair."""

    command = (sys.executable, "-m", "tests.runner.queue_daemon")

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.queue = folder / "queue"
        self.queue.mkdir()
        self.environment = {"PYTHONPATH": str(ROOT), "TOY_QUEUE": str(self.queue)}
        server = {**os.environ, "PYTHONPATH": str(ROOT), "TOY_LOG": str(self.log_of_attempts), "TOY_HOLD": str(self.held)}
        server.pop("CKPTD_FAULT", None)
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.runner.queue_server", str(self.queue)], env=server, cwd=ROOT, start_new_session=True
        )  # fmt: skip

    def close(self) -> None:
        """End the server, which must not have failed."""
        (self.queue / "close").touch()
        assert self.server.wait(20) == 0

    def entry_of(self, stage: str) -> Path:
        """The queue's entry of a stage's latest attempt, once the server has it."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = [path.parent for path in self.queue.glob("*/taken") if f"/{stage}." in path.with_name("job").read_text()]
            if found:
                return max(found, key=lambda path: int(path.name))
            time.sleep(0.02)
        raise AssertionError(f"{stage} was not handed in; {self.log()[-2000:]}")

    def sound(self) -> None:
        findings = examine(self.state, self.exports, quiescent=True, deep=True, executor=QueueExecutor(self.queue))
        assert findings.findings == (), findings


@pytest.fixture
def make_queued(tmp_path: Path) -> Iterator[Callable[..., Queued]]:
    """Makes daemons over a queue, each with a server of its own, and ends whatever is left of them."""
    made: list[Queued] = []
    below = tmp_path / "queued"
    below.mkdir()
    for make in making(Queued, below):

        def remembered(make: Callable[..., Queued] = make, **options: Any) -> Queued:
            made.append(make(**options))
            return made[-1]

        yield remembered
    for one in made:
        one.close()


Held = tuple[Queued, Path]


@pytest.fixture
def held(make_queued: Callable[..., Queued], add: Add) -> Held:
    """A daemon that has begun a merge, which is held, and the merge's entry in the queue."""
    queued = make_queued()
    queued.held.touch()
    add(queued)
    queued.start()
    return queued, queued.entry_of("merge")


def ended(entry: Path) -> None:
    end = time.monotonic() + 60
    while not (entry / "ended").exists():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_a_job_goes_the_whole_way_and_its_artifacts_are_those_of_this_box(
    make_queued: Callable[..., Queued], make_toy: Callable[..., Toy], add: Add
) -> None:
    queued, toy = make_queued(variants=ALL), make_toy(variants=ALL)
    targets = []
    for service in (queued, toy):
        add(service)
        service.start()
        (job,) = service.wait_ended()
        assert service.stop() == 0
        assert job["state"] == "succeeded", service.log()[-3000:]
        assert sorted(service.stages_begun()) == sorted(STAGES_OF_ALL)
        targets.append(artifacts(Path(job["target"])))
    assert targets[0] == targets[1]
    assert len(list(queued.queue.glob("*/ended"))) == len(STAGES_OF_ALL)
    queued.sound()


@pytest.mark.slow
def test_what_an_attempt_says_is_seen_while_it_runs(make_queued: Callable[..., Queued], add: Add) -> None:
    queued = make_queued()
    queued.held.touch()
    add(queued)
    queued.start()
    queued.wait_held()
    live = read_json(queued.state / "live.json")
    (attempt,) = [one for stages in live["progress"].values() for one in stages.values()]
    assert (attempt["id"], attempt["attempt"]) == ("queue:1", 1)
    assert attempt["message"] == "shard 1"
    queued.held.unlink()
    queued.wait_ended()
    assert queued.stop() == 0


@pytest.mark.slow
def test_a_killed_daemon_takes_over_what_still_runs_and_nothing_is_done_twice(held: Held) -> None:
    queued, entry = held
    queued.wait_held()
    queued.kill()
    assert not (entry / "ended").exists()
    queued.start()
    queued.wait_for(lambda v: v["daemon"]["running"] and v["daemon"]["pid"] == queued.process.pid, 60)
    queued.wait_held()
    assert not (entry / "ended").exists(), "it is seen running again, by the new daemon"
    assert Path((entry / "job").read_text()).with_name("tmp").is_dir(), "what it works with was left alone"
    queued.held.unlink()
    (job,) = queued.wait_ended()
    assert queued.stop() == 0
    assert job["state"] == "succeeded"
    assert sorted(queued.stages_begun()) == sorted(STAGES_OF_ONE), "each once"
    assert [stage["attempts"] for stage in job["stages"]] == [1] * len(STAGES_OF_ONE)
    queued.sound()


@pytest.mark.slow
def test_what_ended_while_no_daemon_was_there_is_taken_as_it_is(held: Held) -> None:
    queued, entry = held
    queued.kill()
    queued.held.unlink()
    ended(entry)
    queued.start()
    (job,) = queued.wait_ended()
    assert queued.stop() == 0
    assert job["state"] == "succeeded"
    assert queued.stages_begun().count("merge") == 1


@pytest.mark.slow
def test_a_child_that_died_while_no_daemon_was_there_is_an_attempt_that_is_made_again(held: Held) -> None:
    queued, entry = held
    queued.kill()
    (entry / "kill").touch()
    ended(entry)
    queued.held.unlink()
    queued.start()
    (job,) = queued.wait_ended()
    assert queued.stop() == 0
    assert job["state"] == "succeeded"
    assert {stage["name"]: stage["attempts"] for stage in job["stages"]} == {**dict.fromkeys(STAGES_OF_ONE, 1), "merge": 2}
    assert queued.entry_of("merge") != entry


@pytest.mark.slow
def test_an_attempt_whose_id_was_not_recorded_is_found_by_its_folder(make_queued: Callable[..., Queued], add: Add) -> None:
    queued = make_queued()
    add(queued)
    queued.start(fault="before.spawned")
    assert queued.wait_dead() == -signal.SIGKILL
    queued.start()
    (job,) = queued.wait_ended()
    assert queued.stop() == 0
    assert job["state"] == "succeeded"
    assert sorted(queued.stages_begun()) == sorted(STAGES_OF_ONE)


def test_a_cancelled_job_ends_what_runs_elsewhere(held: Held) -> None:
    queued, entry = held
    (job,) = queued.status()["jobs"]
    assert queued.run_verb("queue", "cancel", job["id"]) == 0, queued.said
    ended(entry)
    queued.wait_for(lambda v: [one["state"] for one in v["jobs"]] == ["cancelled"])
    assert queued.stop() == 0
    queued.sound()


@pytest.mark.slow
def test_a_job_that_was_cancelled_without_a_daemon_is_not_gone_on_with(held: Held) -> None:
    queued, entry = held
    (job,) = queued.status()["jobs"]
    queued.kill()
    assert queued.run_verb("queue", "cancel", job["id"]) == 0, queued.said
    assert not (entry / "ended").exists()
    queued.start()
    ended(entry)
    assert queued.stop() == 0
    assert [one["state"] for one in queued.status()["jobs"]] == ["cancelled"]
    queued.sound()


@pytest.mark.slow
def test_an_orderly_stop_lets_what_runs_elsewhere_go_on_and_the_next_start_takes_it_over(held: Held) -> None:
    queued, entry = held
    queued.wait_held()
    assert queued.stop() == 0
    assert not (entry / "ended").exists() and not (entry / "stop").exists()
    queued.start()
    queued.wait_held()
    queued.held.unlink()
    (job,) = queued.wait_ended()
    assert queued.stop() == 0
    assert job["state"] == "succeeded"
    assert queued.stages_begun().count("merge") == 1
    queued.sound()
