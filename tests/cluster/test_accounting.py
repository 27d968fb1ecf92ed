"""Why Slurm ended a job that squeue has forgotten, its accounting says, where a site has it; nothing needs it.

sacct stands here as a program that prints what its manual documents for --parsable2; a real one says that it has no accounting.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from daemon.running.cluster.port import ABSENT, Ending, State
from daemon.running.cluster.slurm import scheduler
from daemon.running.cluster.slurm.scheduler import Slurm
from tests.cluster.slurm_site import SlurmSite

ENDED = {
    "TIMEOUT": Ending.TIME_LIMIT, "OUT_OF_MEMORY": Ending.OUT_OF_MEMORY, "PREEMPTED": Ending.PREEMPTED, "NODE_FAIL": Ending.NODE_LOST,
    "CANCELLED by 1000": Ending.CANCELLED, "FAILED": Ending.ENDED,
}  # fmt: skip


def program(folder: Path, name: str, *lines: str) -> None:
    """A command of Slurm's that notes how it was called."""
    path = folder / name
    path.write_text("\n".join(("#!/bin/sh", f'echo "$@" >> {folder}/{name}.calls', *lines)) + "\n", encoding="utf-8")
    path.chmod(0o755)


def calls(folder: Path, name: str) -> list[str]:
    """How it was called."""
    path = folder / f"{name}.calls"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.mark.parametrize(("word", "ending"), ENDED.items())
def test_the_accounting_says_how_a_forgotten_job_ended(tmp_path: Path, word: str, ending: Ending) -> None:
    program(tmp_path, "squeue", "echo '6|ckptd.b|RUNNING|None|n2'")
    program(tmp_path, "sacct", f"echo '5|{word}|n1|ckptd.a'")
    seen = Slurm(directory=str(tmp_path)).look(["ckptd.a", "ckptd.b"])
    assert (seen["ckptd.a"].state, seen["ckptd.a"].ending, seen["ckptd.a"].host) == (State.GONE, ending, "n1")
    assert seen["ckptd.b"].state is State.RUNNING
    (call,) = calls(tmp_path, "sacct")
    assert "--name=ckptd.a " in call, "of those alone that squeue does not know"


def test_one_that_the_accounting_has_as_running_is_absent_all_the_same(tmp_path: Path) -> None:
    program(tmp_path, "squeue")
    program(tmp_path, "sacct", "echo '5|RUNNING|n1|ckptd.a'")
    assert Slurm(directory=str(tmp_path)).look(["ckptd.a"]) == {"ckptd.a": ABSENT}


def test_an_accounting_that_says_nothing_is_asked_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "squeue")
    program(tmp_path, "sacct", "exit 1")
    slurm = Slurm(directory=str(tmp_path))
    assert slurm.look(["ckptd.a"]) == slurm.look(["ckptd.a"]) == {"ckptd.a": ABSENT}
    assert len(calls(tmp_path, "sacct")) == 1
    program(tmp_path, "sacct", "echo '5|TIMEOUT|n1|ckptd.a'")
    now = time.monotonic() + scheduler.SILENT_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert slurm.look(["ckptd.a"])["ckptd.a"].ending is Ending.TIME_LIMIT


def test_many_are_asked_about_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "NAMES", 2)
    program(tmp_path, "squeue")
    program(tmp_path, "sacct")
    Slurm(directory=str(tmp_path)).look(["ckptd.a", "ckptd.b", "ckptd.c"])
    assert [call.count("ckptd.") for call in calls(tmp_path, "sacct")] == [2, 1]


@pytest.mark.slow
def test_a_real_sacct_without_accounting_changes_nothing(site: SlurmSite) -> None:
    slurm = Slurm(directory=str(site.commands))
    assert slurm.look(["ckptd.never"]) == {"ckptd.never": ABSENT}
    assert slurm._silent_until > time.monotonic()
