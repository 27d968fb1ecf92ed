"""`ckptd export` of a checkpoint that the daemon exports just now: it follows that job, and makes it only where it is asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.runner.conftest import Toy, copied


@dataclass
class Held:
    """A job that a daemon holds in its merge, and the commands that were typed for its checkpoint."""

    toy: Toy
    checkpoint: Path
    job: str
    typed: list[subprocess.Popen[str]] = field(default_factory=list)

    def export(self, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "daemon", "export", str(self.checkpoint), "--config", str(self.toy.config), *more]
        environment = {**os.environ, "NO_COLOR": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.typed.append(subprocess.Popen(command, text=True, env=environment, **pipes))  # type: ignore[call-overload]
        return self.typed[-1]

    def release(self) -> None:
        self.toy.held.unlink()


def until(command: subprocess.Popen[str], text: str) -> str:
    """What a command says up to a text, without its line breaks; fails where it ends before."""
    assert command.stderr is not None
    said = ""
    while text not in said:
        line = command.stderr.readline()
        assert line, f"it has ended: {said}"
        said += " ".join(line.split()) + " "
    return said


@pytest.fixture
def held(make_toy: Callable[..., Toy], pico_checkpoint: Path) -> Callable[[], Held]:
    """Makes a daemon that works on a job until it is released."""

    def make() -> Held:
        toy = make_toy()
        toy.held.touch()
        toy.start()
        checkpoint = copied(pico_checkpoint, toy)
        toy.wait_held()
        made.append(Held(toy, checkpoint, toy.status()["jobs"][0]["id"]))
        return made[-1]

    made: list[Held] = []
    yield make
    for command in (command for each in made for command in each.typed):
        command.kill()
        command.communicate()


def test_what_the_daemon_makes_is_said_and_followed_to_its_end(held: Callable[[], Held]) -> None:
    now = held()
    first, second = now.export(), now.export("--json")
    said = until(first, "as well")
    assert f"the daemon makes it now as job {now.job}, at the stage merge" in said and f"`ckptd logs --follow --job {now.job}`" in said
    assert first.poll() is None and second.poll() is None, "they wait for the daemon"
    now.release()
    shown, rest = first.communicate(timeout=120)
    assert first.returncode == 0 and "merge: succeeded" in rest and "report: succeeded" in rest
    (job,) = now.toy.wait_ended()
    assert job["target"] in shown and f'"{now.job}"' in second.communicate(timeout=120)[0] and second.returncode == 0
    assert now.toy.stages_begun().count("merge") == 1, "nothing was made twice"
    assert not list((now.toy.state / "foreground").glob("*/pins/*")), "nothing stays pinned"


def test_ctrl_c_leaves_the_job_to_the_daemon(held: Callable[[], Held]) -> None:
    now = held()
    command = now.export()
    until(command, "as well")
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=60)
    assert command.returncode == 130 and f"interrupted; the daemon goes on with its job {now.job}" in " ".join(said.split())
    now.release()
    assert [job["state"] for job in now.toy.wait_ended()] == ["succeeded"]


def test_the_command_ends_as_the_job_that_it_follows(held: Callable[[], Held]) -> None:
    now = held()
    command = now.export()
    until(command, "as well")
    assert now.toy.run_verb("queue", "cancel", now.job) == 0, now.toy.said
    shown, _ = command.communicate(timeout=60)
    assert command.returncode == 1 and "cancelled" in shown


@pytest.mark.slow
def test_a_daemon_that_has_ended_ends_the_command_with_what_to_do(held: Callable[[], Held]) -> None:
    now = held()
    command = now.export()
    until(command, "as well")
    now.toy.kill()
    _, said = command.communicate(timeout=120)
    said = " ".join(said.split())
    assert command.returncode == 75 and f"made it as job {now.job}, has ended" in said and "start the daemon" in said


@pytest.mark.slow
def test_it_is_made_here_where_that_is_asked_for_or_the_job_is_for_another_output(held: Callable[[], Held], tmp_path: Path) -> None:
    now = held()
    for more in (("--force",), ("--output", str(tmp_path / "elsewhere"))):
        command = now.export(*more)
        assert "the daemon" not in until(command, "merge: running"), "it works itself"
        command.kill()
