"""Checkpoints that are complete at once: entered side by side, each exactly once wherever the daemon is killed, and one mount's without
another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.checkpoints.pinning.pins import identify
from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.watching.apart import MOST_THREADS
from daemon.watching.taking import intake
from daemon.watching.taking.intake import Intake
from daemon.watching.watcher import Watcher
from tests.detection.conftest import Station
from tests.detection.helpers import copy_of
from tests.sampling import some

RUNS = ("Same", "run-0", "run-1", "run-2", "run-3", "same")
"""The first and the last are one to some file systems."""
COUNT = len(RUNS)
PROGRAM = """
import os, signal, sys, threading
from pathlib import Path
from daemon.contract.disk import failpoints
from tests.detection.conftest import Station

lock, passed, at = threading.Lock(), [], int(sys.argv[2])

def point(name):
    with lock:
        passed.append(name)
        if len(passed) == at:
            os.kill(os.getpid(), signal.SIGKILL)

failpoints.point = point
station = Station(Path(sys.argv[1]), {})
station.start()
station.wait_for_jobs(int(sys.argv[3]))
station.stop()
print(len(passed))
"""


def burst(home: Path, checkpoint: Path) -> None:
    """Runs with one checkpoint each; of the second and the third it is the same."""
    for number, name in enumerate(RUNS):
        copy_of(checkpoint, home / "runs" / name / "checkpoint-4", weights=float(1 if number == 2 else number))


def run(home: Path, at: int) -> subprocess.CompletedProcess[str]:
    """Watch in a process of its own, which is killed at the point of this number."""
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home), str(at), str(COUNT)],
        capture_output=True, text=True, check=False, cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip


def check(home: Path, *, ended: bool) -> None:
    """What the journal has is whole; in the end it has each run once."""
    journal = Journal(home / "state" / "journal.sqlite3")
    jobs = [job for name in journal.jobs.open_ids() if (job := journal.jobs.get(name)) is not None]
    for job in jobs:
        assert identify(job.pin) == job.checkpoint.digest
        assert (home / "state" / "jobs" / job.id / "entry.json").exists()
    assert len({str(job.target).casefold() for job in jobs}) == len(jobs)
    runs = sorted(job.checkpoint.run for job in jobs)
    assert runs == sorted(RUNS) if ended else len(set(runs)) == len(runs)
    journal.close()


def killed_at(number: int, home: Path, checkpoint: Path) -> None:
    home.mkdir()
    burst(home, checkpoint)
    assert run(home, number).returncode == -signal.SIGKILL
    check(home, ended=False)
    done = run(home, 0)
    assert done.returncode == 0, done.stderr
    check(home, ended=True)


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory, pico_checkpoint: Path) -> int:
    """The number of points that an undisturbed burst passes, at least."""
    home = tmp_path_factory.mktemp("undisturbed")
    burst(home, pico_checkpoint)
    done = run(home, 0)
    assert done.returncode == 0, done.stderr
    check(home, ended=True)
    return int(done.stdout.split()[-1]) - COUNT  # in another order as many commits may be one


@pytest.mark.parametrize("share", some([0.5, 0.1, 0.9], of=3))
def test_a_burst_that_is_cut_off_comes_in_exactly_once(share: float, points: int, tmp_path: Path, pico_checkpoint: Path) -> None:  # R6.5
    killed_at(max(1, round(share * points)), tmp_path / "home", pico_checkpoint)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_burst_that_is_cut_off_at_any_point_comes_in_exactly_once(points: int, tmp_path: Path, pico_checkpoint: Path) -> None:  # R6.5
    for number in range(1, points + 1):
        killed_at(number, tmp_path / str(number), pico_checkpoint)


def test_a_mount_on_which_every_pin_hangs_holds_up_no_other_mounts(
    tmp_path: Path, pico_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R6.2
    hanging, answering, held, go_on = tmp_path / "hanging", tmp_path / "answering", list[Path](), threading.Event()
    real: Any = intake.make_pin

    def make_pin(checkpoint: Path, *rest: Any, **options: Any) -> None:
        if checkpoint.is_relative_to(hanging):
            held.append(checkpoint)
            assert go_on.wait(60)
        real(checkpoint, *rest, **options)

    monkeypatch.setattr(intake, "make_pin", make_pin)
    for number in range(MOST_THREADS + 4):
        copy_of(pico_checkpoint, hanging / f"run-{number}" / "checkpoint-4", weights=float(number))
    for number in range(3):
        copy_of(pico_checkpoint, answering / f"run-{number}" / "checkpoint-4", weights=100.0 + number)
    settings = Settings(
        watch={"roots": (hanging, answering), "settle_seconds": 0.2, "rescan_seconds": 0.5},
        output={"directory": tmp_path / "exports"}, state={"directory": tmp_path / "state"},
    )  # fmt: skip
    paths = prepare(settings.state_directory, settings.output.directory)
    journal = Journal(paths.journal)
    shared = Intake(settings, journal, paths)
    watchers = []
    for number, root in enumerate((hanging, answering)):
        own = settings.model_copy(update={"watch": settings.watch.model_copy(update={"roots": (root,)})})
        watchers.append(Watcher(own, replace(shared, incoming=f".incoming-{number}"), taken=lambda: None))
    station = Station(tmp_path, {}, _open=(watchers[1], journal))
    try:
        watchers[0].start()
        station.wait(lambda: held, "a pin hangs")
        watchers[1].start()
        assert {Path(job.checkpoint.root) for job in station.wait_for_jobs(3)} == {answering}
        go_on.set()
        station.wait_for_jobs(MOST_THREADS + 7)
    finally:
        go_on.set()
        for watcher in watchers:
            watcher.stop()
        journal.close()
