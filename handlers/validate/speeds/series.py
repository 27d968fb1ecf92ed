"""Repeated timings of one model, in turns with another, within a limit of time: what each round asks, and what the rounds come to.

Called by the stage `bench`. The machine is shared, so only neighbouring runs can be compared: a pair of runs stands one right after the
other, the order alternates from round to round, and ratios are of pairs. Every round goes over all points, so that a burst of other work
spoils one round of each and not one point.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.processes.benchmark import BenchPoint, Spread
from handlers.validate.workers.client import WorkerFailed
from handlers.validate.workers.protocol import Time, Timing

WARM_UP_TOKENS = 2
"""Decoded at each point before it is timed: a runtime lays out its memory at the first pass of a size."""


class Timed(Protocol):
    """A loaded model that takes `Time`, as `client.EngineWorker` does."""

    def ask(self, request: Time) -> Timing:
        """Give the answer. Raises WorkerFailed."""


@dataclass
class Point:
    """One batch and length, and its timings so far. `rows` are the token ids (B, S)."""

    rows: list[list[int]]
    tokens: int
    """Decoded for each row."""
    mine: list[Timing] = field(default_factory=list)
    theirs: list[Timing | None] = field(default_factory=list)
    """Of the other model, right beside each of `mine`."""
    problem: str | None = None
    """Why it is not measured any more, as a clause."""

    @property
    def cost(self) -> int:
        """Tokens that a run takes."""
        return len(self.rows) * (len(self.rows[0]) + self.tokens)

    def summary(self, threads: int) -> BenchPoint:
        """Give what the rounds come to."""
        pairs = [(mine, other) for mine, other in zip(self.mine, self.theirs, strict=True) if other is not None]
        return BenchPoint(
            threads=threads, batch=len(self.rows), length=len(self.rows[0]),
            prefill_seconds=spread([timing.prefill_seconds for timing in self.mine]),
            tokens_per_second=spread([timing.tokens / timing.decode_seconds for timing in self.mine]),
            pytorch_prefill_seconds=spread([other.prefill_seconds for _, other in pairs]),
            pytorch_tokens_per_second=spread([other.tokens / other.decode_seconds for _, other in pairs]),
            prefill_over_pytorch=spread([theirs.prefill_seconds / mine.prefill_seconds for mine, theirs in pairs]),
            speed_over_pytorch=spread([theirs.decode_seconds / mine.decode_seconds for mine, theirs in pairs]),
            problem=None if self.problem is None else f"{self.problem[:1].upper()}{self.problem[1:]}.",
        )  # fmt: skip


def spread(values: Sequence[float]) -> Spread | None:
    """Give median and quartiles, each between neighbouring values where it falls between them; None where there is no value."""
    if not values:
        return None
    low, median, high = (values[0],) * 3 if len(values) == 1 else statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=median, low=low, high=high, rounds=len(values))


class Lost(Exception):
    """The process of the model that is measured has ended; the failure says why."""

    def __init__(self, failure: WorkerFailed) -> None:
        super().__init__(failure.cause)
        self.failure = failure


@dataclass
class Series:
    """All points of one model. After `run` `other_failure` says why the other one was lost, and `left_out` what there was no time for."""

    points: list[Point]
    rounds: int
    deadline: float
    """By `clock`; what was begun then is ended."""
    said: Callable[[float, str], None]
    """Takes the share that is done and what is done, and may raise."""
    clock: Callable[[], float] = time.monotonic
    other_failure: WorkerFailed | None = None
    left_out: str | None = None
    _began: float = 0.0

    def run(self, mine: Timed, other: Timed | None) -> None:
        """Measure. Raises Lost where the process of `mine` has ended; what was timed until then stays in the points."""
        number, longest, self._began = 0, 0.0, self.clock()
        for number in range(self.rounds):
            began = self.clock()
            if number and began + longest > self.deadline:
                break
            self._round(number, mine, None if self.other_failure else other)
            longest = self.clock() - began
        else:
            number = self.rounds
        missing = [point for point in self.points if not point.mine and point.problem is None]
        for point in missing:
            point.problem = "the limit of time was reached"
        parts = [f"{len(missing)} of {len(self.points)} points were not measured"] if missing else []
        parts += [f"the others had {number} of {self.rounds} rounds" if missing else f"{number} of {self.rounds} rounds were made"] * (
            number < self.rounds
        )
        self.left_out = ", ".join(parts) or None

    def _round(self, number: int, mine: Timed, other: Timed | None) -> None:
        points = sorted((point for point in self.points if point.problem is None), key=lambda point: point.cost)
        for place, point in enumerate(points):
            if number and not point.mine:
                continue
            gone = (self.clock() - self._began) / max(1e-9, self.deadline - self._began)
            share = max((number + place / len(points)) / self.rounds, min(1.0, gone))
            self.said(share, f"round {number + 1} of {self.rounds}")
            if not number:
                if place and self.clock() > self.deadline:
                    return
                if not self._mine(point, mine, warm_up=True):
                    continue
                self._other(point, other, warm_up=True)
            self._pair(number, point, mine, None if self.other_failure else other)

    def _pair(self, number: int, point: Point, mine: Timed, other: Timed | None) -> None:
        timing = self._other(point, other) if number % 2 else None
        if not self._mine(point, mine):
            return
        point.theirs.append(timing if number % 2 else self._other(point, other))

    def _mine(self, point: Point, mine: Timed, *, warm_up: bool = False) -> bool:
        """Tell whether it could be timed; what the model itself refuses concerns this point alone."""
        try:
            timing = mine.ask(_request(point, warm_up))
        except WorkerFailed as error:
            point.problem = error.cause
            if error.code == FaultCode.WORKER_LOST:
                raise Lost(error) from error
            return False
        if not warm_up:
            point.mine.append(timing)
        return True

    def _other(self, point: Point, other: Timed | None, *, warm_up: bool = False) -> Timing | None:
        if other is None or self.other_failure is not None:
            return None
        try:
            return other.ask(_request(point, warm_up))
        except WorkerFailed as error:
            self.other_failure = error
            return None


def _request(point: Point, warm_up: bool) -> Time:
    return Time(rows=point.rows, tokens=min(point.tokens, WARM_UP_TOKENS) if warm_up else point.tokens)
