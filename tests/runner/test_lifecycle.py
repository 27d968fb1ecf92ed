"""Signals and verbs while the daemon runs: stop, hurry, reload, pause, cancel; each seen from outside."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runner.conftest import Toy, artifacts
from tests.runner.test_resuming import sound
from tests.service import stray_handlers

Add = Callable[..., Path]


def running(toy: Toy, stage: str) -> None:
    toy.wait_for(lambda v: any(s["name"] == stage and s["state"] == "running" for job in v["jobs"] for s in job["stages"]))


def test_on_sigterm_a_resumable_stage_stops_at_a_safe_point_and_goes_on_there(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.5
    toy = make_toy()
    toy.held.touch()
    add(toy)
    toy.start()
    toy.wait_held()
    began = time.monotonic()
    assert toy.stop() == 0
    assert time.monotonic() - began < 15, "well before limits.stop_seconds"
    (job,) = toy.status()["jobs"]
    assert next(s for s in job["stages"] if s["name"] == "merge")["state"] == "waiting"
    assert stray_handlers(toy.folder) == []
    toy.held.unlink()
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded"
    second = next((toy.state / "jobs" / job["id"]).glob("merge.2/result.json")).read_text()
    assert '"resumed_files": 0' not in second, "the finished shards were kept"
    sound(toy)


def catches_sigterm(pid: int) -> bool:
    """Whether a process has got so far that it answers the signal; before that it is ended by it, as it should be."""
    with contextlib.suppress(OSError):
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return bool(int(fields["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def test_a_second_signal_does_not_wait_for_a_safe_point(make_toy: Callable[..., Toy], add: Add) -> None:
    toy = make_toy(extra="[limits]\nstop_seconds = 100\n")
    toy.environment |= {"TOY_SECONDS": "60"}
    add(toy)
    toy.start()
    running(toy, "merge")
    toy.wait_for(lambda _: any(catches_sigterm(child.pid) for child in toy.children()), 30)
    process = toy.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    assert process.poll() is None, "it waits for the merge's next safe point"
    assert toy.run_verb("status") == 0
    assert "stopping" in toy.said and "healthy" not in toy.said
    assert toy.status()["daemon"]["stopping"]
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert time.monotonic() - began < 15
    assert stray_handlers(toy.folder) == []
    assert not toy.status()["daemon"]["stopping"]


@pytest.mark.slow
def test_a_reload_takes_over_a_valid_configuration_as_a_whole(make_toy: Callable[..., Toy], add: Add) -> None:  # R5.6
    toy = make_toy()
    add(toy, "one", 1)
    toy.start()
    toy.wait_ended()
    toy.reconfigure('["pytorch"]', '["pytorch", "onnx"]')
    assert toy.run_verb("reload") == 0, toy.said
    assert "new configuration" in toy.said
    add(toy, "two", 2)
    jobs = toy.wait_ended(2)
    toy.stop()
    assert [list(job["artifacts"]) for job in jobs] == [["pytorch"], ["pytorch", "onnx"]]
    sound(toy)


@pytest.mark.slow
def test_a_reload_of_a_wrong_configuration_changes_nothing(make_toy: Callable[..., Toy], add: Add) -> None:  # R5.6
    toy = make_toy()
    toy.start()
    toy.wait_for(lambda v: v["daemon"]["running"] and v["roots"] != [])
    toy.reconfigure('["pytorch"]', '["pytorch", "hologram"]')
    assert toy.run_verb("reload") == 2
    assert "hologram" in toy.said and "Traceback" not in toy.said
    process = toy.process
    assert process is not None
    process.send_signal(signal.SIGHUP)
    problem = toy.wait_for(lambda v: bool(v["daemon"]["configuration"]["problem"]), 20)["daemon"]["configuration"]["problem"]
    assert "hologram" in problem
    toy.reconfigure('["pytorch", "hologram"]', '["pytorch"]')
    add(toy)
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    assert list(job["artifacts"]) == ["pytorch"]


@pytest.mark.slow
def test_a_reload_that_only_a_restart_could_bring_is_refused_and_says_so(make_toy: Callable[..., Toy]) -> None:
    toy = make_toy()
    toy.start()
    toy.wait_for(lambda v: v["daemon"]["running"] and v["roots"] != [])
    toy.reconfigure(str(toy.exports), str(toy.folder / "elsewhere"))
    assert toy.run_verb("reload") == 2
    assert "output.directory can't be changed while the daemon runs; restart it" in toy.said
    assert toy.stop() == 0


@pytest.mark.slow
def test_people_can_pause_cancel_and_take_up_again_while_it_runs(make_toy: Callable[..., Toy], add: Add) -> None:
    toy = make_toy()
    toy.held.touch()
    toy.start()
    toy.wait_for(lambda v: v["daemon"]["running"])
    assert toy.run_verb("queue", "pause") == 0 and "paused now" in toy.said
    add(toy, "run", 1)
    add(toy, "run", 2)
    toy.wait_for(lambda v: len(v["jobs"]) == 2)
    assert toy.run_verb("status") == 0 and "paused since" in toy.said
    first, second = (job["id"] for job in toy.status()["jobs"])
    assert toy.run_verb("queue", "first", second) == 0
    assert toy.run_verb("queue", "resume") == 0
    toy.wait_held()
    assert [job["state"] for job in toy.status()["jobs"]] == ["pending", "running"]
    assert toy.run_verb("queue", "cancel", second) == 0
    assert toy.run_verb("queue", "cancel", second) == 2 and "it was cancelled" in toy.said
    toy.held.unlink()
    toy.wait_ended(2)
    states = {job["id"]: job["state"] for job in toy.status()["jobs"]}
    assert states == {first: "succeeded", second: "cancelled"}
    assert toy.run_verb("queue", "retry", second) == 0, toy.said
    toy.wait_for(lambda v: all(job["state"] == "succeeded" for job in v["jobs"]))
    assert toy.stop() == 0
    sound(toy)


@pytest.mark.slow
def test_outside_its_windows_no_heavy_stage_starts_but_checkpoints_are_pinned(make_toy: Callable[..., Toy], add: Add) -> None:
    toy = make_toy(extra='[schedule]\nheavy = ["0 0 30 2 *"]\n')  # 30 February
    taken = add(toy)
    toy.start()
    told = "schedule.heavy allows it in its windows alone"  # a job that was just taken waits for its turn first
    job = toy.wait_for(lambda v: any(told in (job["waiting_for"] or "") for job in v["jobs"]))["jobs"][0]
    assert any((toy.state / "pins" / job["id"]).iterdir()) and taken.is_dir()
    assert toy.stages_begun() == []
    toy.reconfigure('["0 0 30 2 *"]', '["* * * * *"]')
    assert toy.run_verb("reload") == 0, toy.said
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded" and artifacts(Path(job["target"]))


@pytest.mark.slow
def test_a_journal_that_is_damaged_while_it_is_used_ends_the_daemon_and_the_next_start_heals_it(
    make_toy: Callable[..., Toy], add: Add
) -> None:  # R6.1
    toy = make_toy()
    add(toy, "one", 1)
    toy.start()
    toy.wait_ended()
    time.sleep(0.5)
    journal = toy.state / "journal.sqlite3"
    size = journal.stat().st_size
    with journal.open("r+b") as stream:
        stream.write(b"\xff" * size)
    add(toy, "two", 2)
    assert toy.wait_dead() == 1, "so that the service manager starts it again"
    assert toy.run_verb("status") == 1 and "start ckptd again" in toy.said and "Traceback" not in toy.said
    toy.start()
    end = time.monotonic() + 60
    while "journal-rebuilt" not in toy.log() and time.monotonic() < end:
        time.sleep(0.1)
    jobs = toy.wait_ended(2)
    assert toy.stop() == 0
    assert sorted(job["state"] for job in jobs) == ["succeeded", "succeeded"]
    assert toy.stages_begun().count("merge") == 2, "what was published is not exported again"
    assert list(toy.state.glob("journal.damaged-*")), "the damaged one is kept"
    assert toy.run_verb("status") == 0 and "damaged and rebuilt" in toy.said
    sound(toy)
