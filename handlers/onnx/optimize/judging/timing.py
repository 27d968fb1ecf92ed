"""Compares the speed of two graphs. Both run in turns, so that a busy machine slows both equally, and pairs of runs are compared.

Called by `acceptance`. A difference counts only when it is larger than the noise of its own measurement.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

MARGIN = 0.03
"""A graph this much slower still counts as equally fast."""
LEAST, ENOUGH = 9, 15
"""Rounds; how many there are, the time decides, and whether fewer have shown already what is asked."""
QUICKEST, SECONDS = 0.06, 1.0
"""A pair is measured for so long at least, since a busy moment must not decide, and no longer than that unless LEAST rounds take longer."""
FEW, LONG = 5, 0.5
"""So few rounds are enough for a pair that takes so many seconds: what disturbs a short run is little beside a long one."""
WARMING, SLOW = 2, 0.05
"""Runs of each that are not counted, since the first ones allocate; one alone where both together take so many seconds."""

Verdict = Literal["faster", "equal", "slower"]


@dataclass(frozen=True)
class Race:
    """Medians in seconds, and what they come to."""

    before: float
    after: float
    verdict: Verdict


def judge(before: Sequence[float], after: Sequence[float]) -> Verdict:
    """What paired durations say: the median of their ratios against its noise, and the best of each beside each other.

    The best must say the same, since what else a machine does only ever adds to a duration.
    """
    least, most = _ratio(before, after)
    best = min(after) / min(before)
    if min(least, best) > 1 + MARGIN:
        return "slower"
    return "faster" if max(most, best) < 1 - MARGIN else "equal"


def _ratio(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Between what the ratio of paired durations lies: their median, less and more its noise.

    The noise is twice the standard error of a median, 1.2533 · σ / √n with σ = 1.4826 · MAD, as for a normal distribution.
    """
    ratios = [later / earlier for earlier, later in zip(before, after, strict=True)]
    middle = statistics.median(ratios)
    spread = statistics.median(abs(ratio - middle) for ratio in ratios)
    noise = 2 * 1.2533 * 1.4826 * spread / len(ratios) ** 0.5
    return middle - noise, middle + noise


def _enough(before: Sequence[float], after: Sequence[float], seconds: float, gain: bool) -> bool:
    rounds = len(before)
    if rounds < LEAST or seconds < QUICKEST:
        return rounds >= FEW and seconds >= LONG
    if rounds >= ENOUGH or seconds >= SECONDS:
        return True
    least, most = _ratio(before, after)
    return most < 1 + MARGIN and (least > 1 - MARGIN or not gain)


def race(
    before: Callable[[], object], after: Callable[[], object], *, gain: bool = True, clock: Callable[[], float] = time.perf_counter
) -> Race:  # fmt: skip
    """Run both in turns, each first in every other round. `gain`: it matters whether the second is faster, and not only whether slower."""
    began = clock()
    for number in range(WARMING):
        if number == 0 or clock() - began < SLOW:
            before()
            after()
    durations: tuple[list[float], list[float]] = ([], [])
    began = clock()
    while not _enough(*durations, clock() - began, gain):
        turns = (0, 1) if len(durations[0]) % 2 == 0 else (1, 0)
        for which in turns:
            started = clock()
            (before, after)[which]()
            durations[which].append(max(clock() - started, 1e-9))
    return Race(statistics.median(durations[0]), statistics.median(durations[1]), judge(*durations))
