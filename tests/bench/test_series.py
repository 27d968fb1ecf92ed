"""Series of timings: in turns, by pairs, within a limit of time. The models are made of made-up times."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.contract.faults.fault_codes import FaultCode
from handlers.validate.speeds.series import Lost, Point, Series, spread
from handlers.validate.workers.client import WorkerFailed
from handlers.validate.workers.protocol import Time, Timing


class World:
    """A clock that models move, and what they were asked, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[str, int, int]] = []
        self.begun: list[float] = []


class Model:
    """A model whose work takes `seconds` a token; `fails` gives the failure of its nth request."""

    def __init__(self, world: World, name: str, seconds: float, fails: dict[int, WorkerFailed] | None = None) -> None:
        self._world, self._name, self.seconds, self._fails, self._count = world, name, seconds, fails or {}, 0

    def ask(self, request: Time) -> Timing:
        self._count += 1
        self._world.asked.append((self._name, len(request.rows[0]), request.tokens))
        self._world.begun.append(self._world.now)
        rows, length = len(request.rows), len(request.rows[0])
        timing = Timing(
            prefill_seconds=self.seconds * rows * length, decode_seconds=self.seconds * rows * request.tokens, tokens=rows * request.tokens
        )
        self._world.now += timing.prefill_seconds + timing.decode_seconds
        if failure := self._fails.get(self._count):
            raise failure
        return timing


def point(length: int, tokens: int = 10, rows: int = 1) -> Point:
    return Point([[7] * length] * rows, tokens)


def series(world: World, points: list[Point], rounds: int = 4, deadline: float = 1e9) -> Series:
    return Series(points, rounds, deadline, lambda share, what: None, clock=lambda: world.now)


LOST = WorkerFailed("its process was killed by SIGKILL", "free memory")
REFUSED = WorkerFailed("RuntimeError: no", "leave it out", code=FaultCode.ENGINE)


def test_pairs_stand_side_by_side_and_the_order_alternates() -> None:
    world, points = World(), [point(4)]
    series(world, points).run(Model(world, "a", 0.01), Model(world, "p", 0.03))
    assert [name for name, _, tokens in world.asked if tokens == 10] == ["a", "p", "p", "a", "a", "p", "p", "a"]
    assert [tokens for _, _, tokens in world.asked[:2]] == [2, 2]  # both are warmed up
    found = points[0].summary(3)
    assert found.speed_over_pytorch is not None and found.speed_over_pytorch.median == pytest.approx(3)
    assert found.prefill_over_pytorch is not None and found.prefill_over_pytorch.median == pytest.approx(3)
    assert found.tokens_per_second is not None and found.tokens_per_second.median == pytest.approx(100) and found.threads == 3


def test_every_round_goes_over_all_points_the_cheapest_first() -> None:
    world, points = World(), [point(64), point(4), point(4, rows=8)]
    series(world, points, rounds=2).run(Model(world, "a", 0.01), None)
    assert [length for _, length, tokens in world.asked if tokens == 10] == [4, 64, 4, 4, 64, 4]
    assert [len(one.mine) for one in points] == [2, 2, 2]


def test_what_a_model_refuses_costs_one_point_and_what_kills_it_the_rest() -> None:
    world, points = World(), [point(4), point(8)]
    series(world, points).run(Model(world, "a", 0.01, {1: REFUSED}), None)
    assert points[0].summary(1).problem == "RuntimeError: no." and points[0].mine == [] and len(points[1].mine) == 4
    world, points = World(), [point(4), point(8)]
    with pytest.raises(Lost):
        series(world, points).run(Model(world, "a", 0.01, {7: LOST}), None)
    assert len(points[0].mine) == 2 and len(points[1].mine) == 2


@given(st.integers(1, 12))
def test_without_the_other_model_the_series_goes_on(number: int) -> None:
    world, points = World(), [point(4), point(8)]
    one = series(world, points)
    one.run(Model(world, "a", 0.01), Model(world, "p", 0.03, {number: LOST}))
    assert [len(each.mine) for each in points] == [4, 4] and [len(each.theirs) for each in points] == [4, 4]
    assert (one.other_failure is LOST) == (number <= 10)
    assert all(each.summary(1).tokens_per_second is not None for each in points)


PLACES = st.lists(st.integers(1, 50), min_size=1, max_size=5)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(lengths=PLACES, rounds=st.integers(1, 9), deadline=st.floats(0, 60), seed=st.integers(0, 99))
def test_nothing_is_begun_that_would_go_far_over_the_limit(lengths: list[int], rounds: int, deadline: float, seed: int) -> None:
    world, points, draw = World(), [point(length) for length in lengths], random.Random(seed)
    one = series(world, points, rounds, deadline)
    one.run(Model(world, "a", draw.uniform(0.001, 0.1)), Model(world, "p", draw.uniform(0.001, 0.1)))
    made = [len(each.mine) for each in points]
    assert points[lengths.index(min(lengths))].mine  # the cheapest point is measured whatever the limit
    if max(made) > 1:  # later rounds take as long as the first without its warm-up
        assert world.now <= deadline + 1e-6 or made == [rounds] * len(made)
    assert (one.left_out is None) == (made == [rounds] * len(made))
    assert len({count for count in made if count}) == 1
    begun = [at for at, (name, _, tokens) in zip(world.begun, world.asked, strict=True) if (name, tokens) == ("a", 2)]
    assert all(at <= deadline for at in begun[1:]) and len(begun) == len([each for each in points if each.mine])
    for each in points:
        assert (each.problem is not None) == (not each.mine)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
def test_a_spread_holds_half_of_the_values(values: list[float]) -> None:
    found = spread(values)
    assert found is not None and found.low <= found.median <= found.high and found.rounds == len(values)
    assert sum(found.low <= value <= found.high for value in values) * 2 >= len(values) - 2
    assert min(values) <= found.low and found.high <= max(values)
