"""What is carried to which target, and the queue over a virtual time with far ends that come and go."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.delivering.orders import End, Receipt, Report
from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import Verdict
from daemon.delivering import rules
from daemon.delivering.attempts import Flight
from daemon.delivering.queue import Deliveries, Wanted
from daemon.delivering.rules import Ended, carried, is_given_up, pause_after
from daemon.journal.shipment_rows import NewShipment
from tests.deliver.queue.yard import Aim, Yard

PASSED, FAILED, UNVERIFIED = Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIED
GOOD = Ended("prod", 500, False, {"onnx": PASSED, "pytorch": PASSED}, frozenset(), False)
MIXED = Ended("prod", 500, False, {"onnx": UNVERIFIED, "pytorch": PASSED}, frozenset({"gguf"}), False)


@pytest.mark.parametrize(
    ("aim", "ended", "expected"),
    [
        (Aim(policy="passed"), GOOD, ("onnx", "pytorch")),
        (Aim(policy="passed"), MIXED, ("pytorch",)),
        (Aim(policy="all"), MIXED, ("onnx", "pytorch")),
        (Aim(policy="passed", variants=("pytorch",)), MIXED, ("pytorch",)),
        (Aim(policy="passed", variants=("pytorch", "onnx")), MIXED, None),
        (Aim(policy="passed", variants=("pytorch", "gguf")), MIXED, None),
        (Aim(policy="all", variants=("pytorch", "gguf")), MIXED, ("pytorch",)),
        (Aim(policy="all", variants=("gguf",)), MIXED, None),
        (Aim(policy="passed"), replace(GOOD, published={"onnx": FAILED}), None),
        (Aim(policy="best"), GOOD, None),
        (Aim(policy="best"), replace(GOOD, is_best=True), ("onnx", "pytorch")),
        (Aim(runs=("test",)), GOOD, None),
        (Aim(steps=250), GOOD, ("onnx", "pytorch")),
        (Aim(steps=300), GOOD, None),
        (Aim(steps=300), replace(GOOD, ending=True), ("onnx", "pytorch")),
        (Aim(fitting=("gguf*", "pytorch", "onnx")), GOOD, ("pytorch",)),
        (Aim(fitting=("gguf*",)), GOOD, None),
        (Aim(fitting=("pytorch", "onnx"), variants=("onnx",)), GOOD, ("onnx",)),
    ],
)
def test_what_a_target_gets_of_an_export(aim: Aim, ended: Ended, expected: tuple[str, ...] | None) -> None:
    assert carried(aim, ended) == expected


def test_pauses_double_up_to_an_hour_and_end_after_a_week() -> None:
    assert [pause_after(failures) for failures in (1, 2, 3, 8, 50)] == [30.0, 60.0, 120.0, 3600.0, 3600.0]
    assert not is_given_up(100, None, 1e9) and not is_given_up(100, 1e9, 1e9 + 86_400)
    assert is_given_up(100, 1e9, 1e9 + 8 * 86_400) and not is_given_up(3, 1e9, 1e9 + 8 * 86_400)


class World:
    """Far ends that are away now and then, and processes that take virtual time."""

    def __init__(self, seed: int) -> None:
        self.random, self.now = random.Random(seed), 1e9
        self.arrived: list[tuple[str, str]] = []
        self.running: dict[str, int] = {}
        self.away = {f"far-{number}": self.spell() for number in range(3)}

    def spell(self) -> tuple[float, float]:
        begin = self.now + self.random.uniform(0, 20_000)
        return begin, begin + self.random.uniform(0, 30_000)

    def begin(self, target: Aim, shipment: Any, attempt: int, move: str) -> Flight:
        self.running[target.name] = self.running.get(target.name, 0) + 1
        assert self.running[target.name] == 1, "two at a time"
        process = Imagined(self, target.name, shipment.job, self.now + self.random.uniform(1, 500))
        return Flight(shipment, attempt, process, Path("/none"), 0.0, Report(fraction=0.0, message=""))  # type: ignore[arg-type]

    def read(self, flight: Flight) -> None:
        process: Any = flight.process
        if flight.end is None and self.now >= process.ends:
            self.running[process.target] -= 1
            flight.end = process.outcome()


class Imagined:
    handles = ()

    def __init__(self, world: World, target: str, job: str, ends: float) -> None:
        self.world, self.target, self.job, self.ends = world, target, job, ends

    def outcome(self) -> End:
        begin, end = self.world.away[self.target]
        if begin <= self.world.now < end or self.world.random.random() < 0.1:
            fault = Fault(code="delivery-far-end", operation="o", cause="away", remedy="r")
            return End(fault=fault, retry_after=self.world.random.choice([None, 90.0]))
        self.world.arrived.append((self.target, self.job))
        return End(receipt=Receipt(version=self.job, place="p"))

    def stop(self) -> None:
        self.ends = self.world.now


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_away_and_whenever_the_daemon_dies_everything_arrives_and_never_two_at_a_time(yard: Yard, seed: int) -> None:
    world = World(seed)
    aims = tuple(Aim(name) for name in world.away)
    made: list[str] = []

    def fresh() -> Deliveries:
        world.running.clear()
        queue = Deliveries(Wanted(aims), yard.journal, yard.state / "deliveries", yard.output, lambda: world.now)
        queue._attempts.begin = world.begin  # type: ignore[method-assign,assignment]
        queue._attempts.read = world.read  # type: ignore[method-assign]
        return queue

    queue = fresh()
    for _ in range(4000):
        world.now += world.random.choice([5.0, 30.0, 200.0])
        if len(made) < 8 and world.random.random() < 0.2:
            made.append(yard.end(100 * (len(made) + 1), [aim.name for aim in aims]))
        if world.random.random() < 0.02:
            queue = fresh()  # the last one was killed
        queue.tick()
        if len(made) == 8 and not yard.journal.shipments.exports_in_use():
            break
    assert {(row.target, row.state) for job in made for row in yard.journal.shipments.of(job)} == {(aim.name, "delivered") for aim in aims}
    for aim in aims:
        first = list(dict.fromkeys(job for target, job in world.arrived if target == aim.name))
        assert sorted(first) == sorted(made)
    assert world.now < 1e9 + rules.PATIENCE_SECONDS


def test_entries_by_hand_and_anew_put_a_delivery_back(yard: Yard) -> None:
    job = yard.end(100)
    shipments = yard.journal.shipments
    row = shipments.due("far", 0.0)
    assert row is not None
    number = shipments.claim(row)
    assert number == 1 and shipments.claim(row) is None
    assert shipments.delivered(row.id, number, Receipt(version="v", place="p"))
    assert not shipments.interrupted(row.id, number), "it has ended"
    assert shipments.enter(job, [NewShipment("far", by_hand=True)]) and yard.row(job).state == "waiting"
    assert not shipments.enter("nobody", [NewShipment("far")])
