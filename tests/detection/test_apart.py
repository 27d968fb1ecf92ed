"""What takes long to read or to pin delays no other run's checkpoints, and a run's own come in their order."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.checkpoints.inspection import Inspection, inspect
from daemon.watching import resting
from daemon.watching.apart import THREADS, AtOnce, Hands, Pending
from daemon.watching.taking import intake
from tests.detection.conftest import Stations
from tests.detection.helpers import copy_of

WAIT = 60.0


def answer_of(hands: Hands, root: Path, path: Path, state: int, work: Any, ended: threading.Event) -> Any:
    """What the work gives, asked for until it is there."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        ended.clear()
        try:
            return hands.do(root, path, state, work)
        except Pending:
            ended.wait(1)
    raise TimeoutError


@pytest.mark.parametrize("slow", ["inspect", "identify"])
def test_checkpoints_that_take_for_ever_delay_no_other_run_however_many_they_are(
    slow: str, station: Stations, pico_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, held, go_on = THREADS + 2, list[Path](), threading.Event()
    module: Any = resting if slow == "inspect" else intake
    real = getattr(module, slow)

    def delayed(path: Path) -> Any:
        if len(held) < count:
            held.append(path)
            go_on.wait(WAIT)
        return real(path)

    monkeypatch.setattr(module, slow, delayed)
    here = station()
    for step in range(1, count + 1):
        copy_of(pico_checkpoint, here.root / f"slow-{step}" / f"checkpoint-{step}", step=step, weights=float(step))
    try:
        here.wait(lambda: len(held) == count, "the slow ones are worked on")
        for step in (20, 21):
            copy_of(pico_checkpoint, here.root / f"other-{step}" / f"checkpoint-{step}", step=step, weights=float(step))
        assert sorted(row.checkpoint.step for row in here.wait_for_jobs(2)) == [20, 21]
    finally:
        go_on.set()
    assert sorted(row.checkpoint.step for row in here.wait_for_jobs(count + 2)) == [*range(1, count + 1), 20, 21]


def test_of_what_is_known_to_be_large_one_is_worked_on_at_a_time() -> None:
    now, most, lock, ended = [0], [0], threading.Lock(), threading.Event()
    hands = Hands(lambda path: ended.set())

    def work(number: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1

    paths = [Path(f"/root/run-{number}/checkpoint-1") for number in range(5)]
    for path in paths:
        with pytest.raises(Pending):
            hands.do(Path("/root"), path, 0, work, large=True)
    for path in paths:
        deadline = time.monotonic() + WAIT
        while hands.is_busy(path):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert most[0] == 1 and hands.stop(WAIT)


def test_one_that_is_deleted_while_it_is_identified_is_taken_and_not_called_lost(
    station: Stations, pico_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on, real = threading.Event(), threading.Event(), intake.identify

    def delayed(pin: Path) -> str:
        held.set()
        go_on.wait(WAIT)
        return real(pin)

    monkeypatch.setattr(intake, "identify", delayed)
    here = station()
    checkpoint = copy_of(pico_checkpoint, here.root / "run" / "checkpoint-1", step=1, weights=1.0)
    try:
        here.wait(held.is_set, "it is pinned")
        shutil.rmtree(checkpoint)
        here.wait_for_scans(2)
    finally:
        go_on.set()
    (job,) = here.wait_for_jobs(1)
    here.wait_for_scans(2)
    assert job.checkpoint.step == 1 and here.journal.sightings.lost() == 0
    here.wait(lambda: not here.watcher._hands._latest, "the answer that nobody asks for any more is dropped")


RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=30)
"""Root, run and step of what is asked for, one after the other."""


@given(RUNS)
def test_each_piece_of_work_is_done_once_and_a_runs_own_in_order_one_at_a_time(asked: list[tuple[int, int, int]]) -> None:
    ended, done, now, most = threading.Event(), list[tuple[Path, int]](), dict[Path, int](), [0]
    lock = threading.Lock()
    hands = Hands(lambda path: ended.set(), threads=3)

    def work(path: Path, state: int) -> int:
        with lock:
            now[path.parent] = now.get(path.parent, 0) + 1
            most[0] = max(most[0], now[path.parent])
        time.sleep(0.0005)
        with lock:
            now[path.parent] -= 1
            done.append((path, state))
        return state

    pieces = [(Path(f"/{root}"), Path(f"/{root}/{run}/checkpoint-{step}"), at) for at, (root, run, step) in enumerate(asked)]
    latest = {path: (root, at) for root, path, at in pieces}
    for root, path, at in pieces:
        with pytest.raises(Pending):
            hands.do(root, path, at, lambda number, path=path, at=at: work(path, at))
    for path, (root, at) in latest.items():
        assert answer_of(hands, root, path, at, lambda number: pytest.fail("asked for twice"), ended) == at
    assert hands.stop(WAIT) and most[0] == 1 and len(done) == len(set(done))
    for run in {path.parent for path in latest}:
        states = [state for path, state in done if path.parent == run]
        assert states == sorted(states)


def test_roots_take_turns_whatever_is_asked_of_one() -> None:
    ended, begun, go_on = threading.Event(), list[Path](), threading.Event()
    hands = Hands(lambda path: ended.set(), threads=1)

    def work(path: Path) -> None:
        begun.append(path)
        go_on.wait(WAIT)

    first = [Path(f"/crowded/run-{number}/checkpoint-1") for number in range(50)]
    for path in first:
        with pytest.raises(Pending):
            hands.do(Path("/crowded"), path, 0, lambda number, path=path: work(path))
    quiet = Path("/quiet/run/checkpoint-1")
    with pytest.raises(Pending):
        hands.do(Path("/quiet"), quiet, 0, lambda number: work(quiet))
    go_on.set()
    answer_of(hands, Path("/quiet"), quiet, 0, None, ended)
    assert begun.index(quiet) <= 1
    hands.stop(WAIT)


def test_an_error_is_raised_where_the_answer_is_asked_for() -> None:
    ended = threading.Event()
    hands = Hands(lambda path: ended.set())

    def work(number: int) -> Inspection:
        return inspect(Path("/not/there"))

    with pytest.raises(FileNotFoundError):
        answer_of(hands, Path("/"), Path("/not/there"), 0, work, ended)
    with pytest.raises(FileNotFoundError):
        AtOnce().do(Path("/"), Path("/not/there"), 0, work)
    hands.stop(WAIT)
