"""What took longer than its limit of time says so, and what was ended at the limit counts as far as it came."""

from __future__ import annotations

from daemon.contract.jobs.processes.benchmark import BenchPoint, Measured, Spread, Unit
from daemon.operating.measuring.measure import _Work, over


def test_only_what_took_longer_than_it_was_to_says_so() -> None:
    assert over(60.9, 60.0) == [] == over(5.0, 60.0)
    (sentence,) = over(78.4, 60.0)
    assert sentence.startswith("It took 78 s instead of 60 s: ")


def point(length: int, rounds: int) -> BenchPoint:
    speed = Spread(median=1.0, low=1.0, high=1.0, rounds=rounds) if rounds else None
    return BenchPoint(threads=1, batch=1, length=length, tokens_per_second=speed)


def test_what_was_ended_at_the_limit_counts_as_far_as_it_was_measured() -> None:
    units = [Unit(variant=name, folder=name, threads=1) for name in ("onnx", "pytorch")]
    work = _Work(list(units), None)
    work.end(None, 5)
    work.end(Measured(variant="onnx", threads=1, points=(point(8, 0),)), 5)
    assert work.units == units and not work.done and not work.cut, "nothing was measured of it"
    work.end(Measured(variant="onnx", threads=1, points=(point(8, 3), point(16, 0))), 5)
    assert work.units == units[1:]
    assert work.cut == ["onnx with 1 thread: 3 of 5 rounds were made, 1 of 2 points were not measured."]
    assert [bool(point.problem) for point in work.done[0].points] == [False, True]
