"""Speeds are measured in turns, in rounds whose length fits the slower of both, and PyTorch's own comes from the same rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from handlers.validate.checks import turns
from handlers.validate.checks.reference import Reference
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Time, Timing


@dataclass
class Scripted:
    """A worker that needs so many seconds for a token; `fails_at`: the number of the request that it does not survive."""

    seconds: float
    fails_at: int = 10**9
    asked: list[int] = field(default_factory=list)
    passes: int = 0

    def ask(self, request: Time) -> Timing:
        self.asked.append(request.tokens)
        self.passes += not request.again
        if len(self.asked) == self.fails_at:
            raise WorkerFailed("it ended", "try again")
        return Timing(prefill_seconds=0.5, decode_seconds=request.tokens * self.seconds, tokens=request.tokens)


@dataclass
class Asked:
    """What of a reference the measurement reads."""

    speed_tokens: int = 64
    speed_prompt: tuple[int, ...] = (1, 2, 3)


def raced(mine: Scripted, theirs: Scripted | None, tokens: int = 64) -> turns.Raced:
    worker: Any = theirs
    return turns.race(cast(EngineWorker, mine), worker, cast(Reference, Asked(tokens)))


@pytest.mark.parametrize(
    ("mine", "theirs", "tokens", "rounds"),
    [(0.001, 0.005, 64, 4), (0.001, 0.04, 10, 4), (0.04, 0.001, 10, 4), (1.0, 2.0, 4, 3), (1e-5, 1e-5, 64, 9)],
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
    if tokens > turns.LEAST_TOKENS and rounds == turns.ROUNDS:
        assert tokens * max(mine, theirs) <= turns.ROUND_SECONDS


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
