"""Random trainers against the detection as it is, on a virtual clock: nothing missed, nothing early, nothing twice.

`CKPTD_SIMULATION_SEED=N` plays that world alone, as `python -m tests.simulation --seed N --trace` does with all that happened.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemon.watching.tracker import Tracker
from daemon.watching.undecided import Settler, Undecided
from tests.simulation.disk import Version
from tests.simulation.oracle import check, longest_life, must_be_taken
from tests.simulation.play import play, play_one
from tests.simulation.world import World

SEED = os.environ.get("CKPTD_SIMULATION_SEED")


def seeds(first: int, worlds: int) -> range:
    """The seeds to play: those, or the one that the environment names."""
    return range(int(SEED), int(SEED) + 1) if SEED else range(first, first + worlds)


def test_whatever_stands_longer_than_the_bound_is_taken_once_and_nothing_else_is() -> None:  # R1.1, R1.5
    outcome = play(seeds(0, 12))
    assert not outcome.failed, outcome.report()
    assert SEED or outcome.counts["due"] >= outcome.counts["runs"], "the worlds hold too little to be a test"


@pytest.mark.slow
def test_thousands_of_runs_break_no_invariant() -> None:  # R1.1, R1.5
    outcome = play(seeds(100_000, 600))
    assert not outcome.failed, outcome.report()


def test_the_same_seed_plays_the_same_world() -> None:
    first, second = play_one(7, 3), play_one(7, 3)
    assert len(first[2]) > 50
    assert first == second


def found(words: str) -> bool:
    """Whether one of a few worlds finds it."""
    return any(words in line for seed in range(10) for said in play([seed]).failed.values() for line in said)


def test_a_detection_that_never_scans_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tracker, "scan", lambda *_: None)
    assert found("was missed")


def test_a_detection_that_takes_a_renaming_for_a_loss_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Undecided, "_renamed", lambda *_: None)
    assert found("was called lost")


@pytest.mark.slow
def test_a_detection_that_believes_the_first_look_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = Settler.__init__
    monkeypatch.setattr(Settler, "__init__", lambda self, *_: settled(self, 0.0))
    assert found("never was meant to be")


def test_the_oracle_counts_only_the_time_during_which_a_daemon_ran(tmp_path: Path) -> None:
    world = World(0, tmp_path, runs=0)
    world.uptimes = [[0.0, 10.0], [15.0, 100.0]]
    version = Version({}, since=8.0, until=15.0 + world.chances.heard - 0.01)
    assert longest_life(world, version) == pytest.approx(world.chances.heard - 0.01)
    assert not must_be_taken(world, version)
    version.until += 0.02
    assert must_be_taken(world, version)
    version.unheard = True
    assert not must_be_taken(world, version)
    assert check(world) == ([], {"versions": 0, "due": 0, "jobs": 0, "damaged": 0})
    world.close()
