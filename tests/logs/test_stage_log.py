"""`ckptd logs --stage` shows what a stage prints: its end, what comes after, of each attempt in turn, until the stage has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.contract.disk.attempt_log import AttemptLog
from daemon.operating.log.stage_log import Attempted, follow_stage
from tests.runner.conftest import Toy, add, make_toy

__all__ = ["add", "make_toy"]


class Stage:
    """A stage whose attempts happen at the pauses of its reader, one step after the other."""

    def __init__(self, folder: Path, *steps: str) -> None:
        self.folder, self.steps = folder, iter(steps)
        self.number, self.over, self.scheduler = 0, False, ""
        self.pause(0)

    @property
    def log(self) -> Path:
        return self.folder / f"log.{self.number}"

    def look(self) -> Attempted:
        return Attempted(self.number, self.log, self.over)

    def pause(self, seconds: float) -> None:
        """`attempt`, `end`, `cut`, `slurm: words` or, with anything else, what is printed."""
        step = next(self.steps)
        if step == "attempt":
            self.number += 1
        elif step == "end":
            self.over = True
        elif step == "cut":
            AttemptLog(self.log, 4000).finish()
        elif step.startswith("slurm: "):
            self.scheduler += step.removeprefix("slurm: ")
        else:
            with open(self.log, "ab") as stream:
                stream.write(step.encode())

    def lines(self, tail: int = 10, *, forever: bool = True) -> Iterator[tuple[int, str]]:
        for line in follow_stage(self.look, lambda log: self.scheduler, tail=tail, forever=forever, pause=self.pause):
            yield line.attempt, line.text


def test_the_last_lines_are_shown_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "attempt", "a\nb\nc\nhalf")
    stage.pause(0)
    assert list(stage.lines(2, forever=False)) == [(1, "c"), (1, "half")]
    assert list(stage.lines(0, forever=False)) == []


def test_each_new_line_is_shown_once_it_is_whole_until_the_stage_has_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "attempt", "a\nb\n", "c", "d\n", "", "e", "end")
    assert list(stage.lines()) == [(1, "a"), (1, "b"), (1, "cd"), (1, "e")]


def test_a_further_attempt_follows_the_end_of_the_one_before(tmp_path: Path) -> None:
    first = tmp_path / "log.1"
    stage = Stage(tmp_path, "attempt", "a\nlast words", "attempt", "b\n", "end")
    stage.pause(0)
    lines = stage.lines()
    assert next(lines) == (1, "a")
    assert list(lines) == [(1, "last words"), (2, "b")] and first.exists()


def test_a_log_whose_middle_was_cut_out_goes_on_with_its_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "attempt", "".join(f"line {number}\n" for number in range(1000)), "cut", "after\n", "end")
    shown = [text for _, text in stage.lines(1)]
    assert shown == ["line 999", "line 999", "after"]


@pytest.mark.parametrize("hidden", [True, False], ids=["is-not-seen", "is-empty"])
def test_what_a_scheduler_says_stands_in_for_a_log_that_is_not_seen(tmp_path: Path, hidden: bool) -> None:
    steps = ("slurm: begun\n", "slurm: no such interpreter\n", "the log\n", "slurm: later\n", "end")
    stage = Stage(tmp_path, "attempt", *steps)
    if not hidden:
        stage.log.touch()
    assert list(stage.lines()) == [(1, "begun"), (1, "no such interpreter"), (1, "the log")]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_plain_file_is_not_read_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    stage = Stage(tmp_path, "attempt")
    (tmp_path / "other").write_text("of another file\n")
    if kind == "link":
        stage.log.symlink_to(tmp_path / "other")
    else:
        os.mkfifo(stage.log)
    assert list(stage.lines(forever=False)) == []


def test_a_stage_that_has_not_begun_is_waited_for(make_toy: Callable[..., Toy], add: Callable[..., Path]) -> None:
    toy = make_toy().start_held(add)
    id = toy.status()["jobs"][0]["id"]
    words = ("logs", "--follow", "--job", id, "--stage", "pytorch", "--config", str(toy.config))
    environment = {**os.environ, **toy.environment}
    with subprocess.Popen([sys.executable, "-m", "daemon", *words], stderr=subprocess.PIPE, text=True, env=environment) as reader:
        bound = threading.Timer(60, reader.kill)
        bound.start()
        assert reader.stderr is not None and "has not begun" in reader.stderr.readline()
        toy.held.unlink()
        assert reader.wait() == 0
        bound.cancel()
    stages = {stage["name"]: stage["state"] for job in toy.status()["jobs"] for stage in job["stages"]}
    assert stages["pytorch"] == "succeeded", "and not before that has ended"
    toy.wait_ended()
    toy.stop()
