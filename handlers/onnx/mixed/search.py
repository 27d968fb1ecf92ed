"""The smallest choice of bits within a limit of divergence, or the best within a limit of size. Pure; `measure` runs the model.

Called by the stage `onnx-mixed`. Each layer is tried alone in the fewest bits; what that costs, over the bytes that more bits would
take, is its place in a queue. From all layers in the fewest bits, layers are raised in the order of that queue, first all to 8 bits, then
all to 32: the place at which the measured divergence falls below the limit is found by halving. So a model of L layers takes
L + 2 + log2(2 L) runs of some texts and one export, where a grid over the layers has 3^L choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LEVELS = (4, 8, 32)
"""Bits, the fewest first."""
Bits = dict[str, int]
"""Group → bits."""


@dataclass(frozen=True)
class Cost:
    """What a group takes."""

    name: str
    bytes: Mapping[int, int]
    """Bits → bytes in the file."""


@dataclass(frozen=True)
class Choice:
    """What was found."""

    bits: Bits
    divergence: float
    """Measured with exactly these bits."""
    lowest: float
    """Measured with all groups in the fewest bits."""
    size: int
    """Bytes of all groups."""
    sensitivity: Mapping[str, float]
    """Group → divergence with it alone in the fewest bits."""
    trials: int
    """How often the model ran."""

    @property
    def raised(self) -> dict[int, list[str]]:
        """Bits → groups that have more than the fewest, the most sensitive first."""
        ordered = sorted(self.bits, key=lambda name: -self.sensitivity.get(name, math.inf))
        return {bits: [name for name in ordered if self.bits[name] == bits] for bits in LEVELS[1:]}


class BudgetMissed(Exception):
    """No choice keeps to both limits; `best` is the most exact one of those that are small enough, None where none is."""

    def __init__(self, needed: int, best: Choice | None) -> None:
        super().__init__("no choice of bits keeps to both limits")
        self.needed, self.best = needed, best


def search(
    costs: Sequence[Cost], measure: Callable[[Bits], float], *, divergence: float | None, size: int | None,
    known: Mapping[str, float] | None = None, look: Callable[[float], None] = lambda _: None,
) -> Choice:  # fmt: skip
    """The smallest choice whose divergence is at most `divergence`; without that limit the most exact one of at most `size` bytes.

    `known`: the sensitivities of an earlier checkpoint, which are taken instead of new ones. `look` is told the share that is done. Raises
    BudgetMissed.
    """
    seen: dict[tuple[int, ...], float] = {}

    def ask(bits: Bits) -> float:
        key = tuple(bits[cost.name] for cost in costs)
        if key not in seen:
            seen[key] = measure(bits)
            look(min(0.95, len(seen) / (len(costs) + 2 + math.log2(2 * len(costs) + 1))))
        return seen[key]

    least, full = ({cost.name: bits for cost in costs} for bits in (LEVELS[0], LEVELS[-1]))
    lowest = ask(least)
    enough = divergence is not None and lowest <= divergence
    alone = known if known is not None and known.keys() >= full.keys() else None
    if not enough and alone is None:
        alone = {cost.name: ask({**full, cost.name: LEVELS[0]}) for cost in costs}
    queue = _queue(costs, alone or {})

    def at(place: int) -> Bits:
        return _raised(queue, place)

    def made(place: int) -> Choice:
        bits = at(place)
        total = sum(cost.bytes[bits[cost.name]] for cost in costs)
        return Choice(bits, ask(bits), lowest, total, alone or {}, len(seen))

    def bytes_at(place: int) -> int:
        bits = at(place)
        return sum(cost.bytes[bits[cost.name]] for cost in costs)

    last = 2 * len(costs)
    fits = last if size is None else max((place for place in range(last + 1) if bytes_at(place) <= size), default=-1)
    place = fits if divergence is None else _first(last, len(costs), lambda place: ask(at(place)) <= divergence)
    if fits < 0 or place > fits:
        raise BudgetMissed(bytes_at(max(place, 0)), made(fits) if fits >= 0 else None)
    return made(place)


def _queue(costs: Sequence[Cost], alone: Mapping[str, float]) -> list[Cost]:
    """Groups in the order in which they are raised: what a byte more gains first."""

    def gain(cost: Cost) -> float:
        return alone.get(cost.name, 0.0) / max(1, cost.bytes[LEVELS[1]] - cost.bytes[LEVELS[0]])

    return sorted(costs, key=gain, reverse=True)


def _raised(queue: Sequence[Cost], place: int) -> Bits:
    """The bits after so many raises: each group first to the second level, in order, then each to the third."""
    whole, rest = divmod(place, len(queue))
    return {cost.name: LEVELS[min(len(LEVELS) - 1, whole + (number < rest))] for number, cost in enumerate(queue)}


def _first(last: int, middle: int, good: Callable[[int], bool]) -> int:
    """The first place that is good, if places are good from one on; 0, `middle` and then halves are tried. The last one always is."""
    low, high = -1, last
    for probe in (0, middle):
        if low < probe < high:
            low, high = (low, probe) if good(probe) else (probe, high)
    while high - low > 1:
        probe = (low + high) // 2
        low, high = (low, probe) if good(probe) else (probe, high)
    return high
