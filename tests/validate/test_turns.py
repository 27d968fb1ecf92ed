"""Speeds are measured in turns, in rounds whose length fits the slower of both, and PyTorch's own comes from the same rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.validate.checks.live.reference import Reference
from handlers.validate.speeds import turns
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Time, Timing


@dataclass
class Scripted:
    """A worker that needs so many seconds for a token; `fails_at`: the number of the request that it does not survive."""

    seconds: float
    fails_at: int = 10**9
    disturbed: dict[int, float] = field(default_factory=dict)
    """Number of a request → how many times as long it takes."""
    asked: list[int] = field(default_factory=list)
    passes: int = 0

    def ask(self, request: Time) -> Timing:
        self.asked.append(request.tokens)
        self.passes += not request.again
        if len(self.asked) == self.fails_at:
            raise WorkerFailed("it ended", "try again")
        seconds = request.tokens * self.seconds * self.disturbed.get(len(self.asked) - 1, 1.0)
        return Timing(prefill_seconds=0.5, decode_seconds=seconds, tokens=request.tokens)


@dataclass
class Asked:
    """What of a reference the measurement reads."""

    speed_tokens: int = 64
    speed_prompt: tuple[int, ...] = (1, 2, 3)


def raced(mine: Scripted, theirs: Scripted | None, tokens: int = 64) -> turns.Raced:
    peer = None if theirs is None else turns.Peer(cast(EngineWorker, theirs))
    return turns.race(cast(EngineWorker, mine), peer, cast(Reference, Asked(tokens)))


@pytest.mark.parametrize(
    ("mine", "theirs", "tokens", "rounds"),
    [(0.001, 0.005, 50, 2), (0.001, 0.002, 64, 3), (0.001, 0.05, 5, 2), (0.05, 0.001, 5, 2), (1.0, 2.0, 4, 2), (1e-5, 1e-5, 64, 9)],
)
def test_a_round_is_as_long_as_the_slower_one_needs_and_there_are_enough_of_them(
    mine: float, theirs: float, tokens: int, rounds: int
) -> None:
    first, second = Scripted(mine), Scripted(theirs)
    found = raced(first, second)
    assert first.asked == second.asked == [turns._WARM_UP_TOKENS, *[tokens] * rounds]
    assert found.speed.speed_over_pytorch == pytest.approx(second.seconds / first.seconds) and found.failed is None
    assert found.speed.tokens_per_second == pytest.approx(1 / first.seconds)
    assert turns.summary(found.peer).tokens_per_second == pytest.approx(1 / second.seconds)
    assert first.passes == len(first.asked) and second.passes == 2, "of the peer the prompt's pass is warmed up and timed once"
    if tokens > turns.LEAST_TOKENS:
        assert tokens * max(mine, theirs) <= turns.ROUND_SECONDS


@pytest.mark.parametrize(("slowed", "rounds"), [(1.02, 2), (1.3, 3), (1.6, 4)])
def test_rounds_that_contradict_each_other_are_followed_by_more(slowed: float, rounds: int) -> None:
    """`slowed`: how much longer the peer takes in the second round, because of something else on the box."""
    first, second = Scripted(0.001), Scripted(0.005, disturbed={2: slowed})
    found = raced(first, second)
    assert len(found.peer) == rounds
    low, high = found.speed.speed_over_pytorch_range or (0, 0)
    assert (low, high) == pytest.approx((5, 5 * slowed))
    assert found.speed.speed_over_pytorch == pytest.approx(5)


@given(st.lists(st.floats(0.2, 5.0), min_size=27, max_size=27), st.lists(st.floats(0.2, 5.0), min_size=27, max_size=27))
def test_both_speeds_and_their_ratio_fit_each_other_on_a_busy_machine(mine: list[float], theirs: list[float]) -> None:
    """People divide the columns of a table: all three figures are of one turn."""
    first, second = (Scripted(0.002, disturbed=dict(enumerate(slowed, 1))) for slowed in (mine, theirs))
    speed = raced(first, second).speed
    assert speed.tokens_per_second and speed.pytorch_tokens_per_second and speed.speed_over_pytorch and speed.speed_over_pytorch_range
    assert speed.tokens_per_second / speed.pytorch_tokens_per_second == pytest.approx(speed.speed_over_pytorch)
    low, high = speed.speed_over_pytorch_range
    assert low <= speed.speed_over_pytorch <= high


def test_a_peer_is_warmed_up_once_for_all_artifacts() -> None:
    second = Scripted(0.005)
    peer = turns.Peer(cast(EngineWorker, second))
    for first in (Scripted(0.001), Scripted(0.002)):
        found = turns.race(cast(EngineWorker, first), peer, cast(Reference, Asked()))
        assert found.speed.speed_over_pytorch == pytest.approx(0.005 / first.seconds)
        assert turns.summary(found.peer).prefill_seconds == 0.5
    assert second.asked == [turns._WARM_UP_TOKENS, 50, 50, 50, 50]
    assert second.passes == 3, "the prompt's pass is warmed up once, and timed beside each artifact"
    slow = Scripted(0.002, fails_at=2)
    with pytest.raises(WorkerFailed):
        turns.race(cast(EngineWorker, slow), peer, cast(Reference, Asked()))
    assert turns.race(cast(EngineWorker, Scripted(0.001)), peer, cast(Reference, Asked())).failed is None and second.passes == 4


def test_never_more_tokens_than_the_configuration_says() -> None:
    first, second = Scripted(1e-6), Scripted(1e-6)
    raced(first, second, tokens=5)
    assert set(first.asked) == {turns._WARM_UP_TOKENS, 5}
    nothing = raced(Scripted(1.0), Scripted(1.0), tokens=0).speed
    assert nothing.tokens_per_second is None and nothing.speed_over_pytorch is None


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_peer_that_fails_leaves_the_artifacts_own_speed(at: int) -> None:
    found = raced(Scripted(0.01), Scripted(0.01, fails_at=at))
    assert found.failed is not None and found.peer == []
    assert found.speed.tokens_per_second == pytest.approx(100) and found.speed.speed_over_pytorch is None


def test_an_artifact_that_fails_is_no_fault_of_its_peer() -> None:
    with pytest.raises(WorkerFailed):
        raced(Scripted(0.01, fails_at=3), Scripted(0.01))
