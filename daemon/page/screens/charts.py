"""Geometry of the charts of a run: figures by step, with their intervals. Pure; drawn by charts.html.

Horizontal places are percentages of the width, so that text keeps its size on every screen. All charts of a run share one scale of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from daemon.contract import units
from daemon.contract.language.catalog import translated
from daemon.contract.language.lists import clauses
from daemon.contract.light import dataclass

MOST_LINES = 6
"""Lines that can be told apart."""
MOST_POINTS = 400
"""Of a line; more are not seen."""


@dataclass(frozen=True)
class Value:
    """A figure at a step."""

    step: float
    value: float
    low: float | None = None
    high: float | None = None
    """The interval; None where there is none."""
    sure: bool = True
    """False: it was not published, or is not compared."""


@dataclass(frozen=True)
class Dot:
    """A value's place in percent of the width and of the height."""

    x: float
    y: float
    top: float | None
    bottom: float | None
    sure: bool
    text: str


@dataclass(frozen=True)
class Line:
    """One line: `points` in an SVG of 100 × 100 with the origin at the top left."""

    label: str
    number: int
    """By which lines are told apart; the same in all charts of a run."""
    points: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Chart:
    """A figure by step."""

    id: str
    title: str
    about: str
    lines: tuple[Line, ...]
    low: str
    high: str
    first: str
    last: str
    text: str
    """What it shows, in words."""
    marks: tuple[float, ...] = ()
    """Where exports are, in percent."""


@dataclass(frozen=True)
class Steps:
    """The scale of steps."""

    first: float
    last: float

    def place(self, step: float) -> float:
        """Percent of the width."""
        return round(100 * (step - self.first) / ((self.last - self.first) or 1.0), 2)


def chart(
    id: str, title: str, about: str, lines: Iterable[tuple[str, Sequence[Value]]], steps: Steps,
    show: Callable[[float], str] = units.number, *, dots: bool = True, marks: Sequence[float] = (), logarithmic: bool = False,
) -> Chart | None:  # fmt: skip
    """A chart of these lines; None where there is nothing to show. `show`: a figure in words."""
    drawn = [(place, label, sorted(values, key=_step)) for place, (label, values) in enumerate(lines) if values and place < MOST_LINES]
    numbers = [end for *_, values in drawn for value in values for end in (value.value, value.low, value.high) if end is not None]
    numbers = [number for number in numbers if math.isfinite(number) and (number > 0 or not logarithmic)]
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    scale = (lambda value: math.log10(max(value, low))) if logarithmic else float
    bottom, span = scale(low), (scale(high) - scale(low)) or 1.0

    def height(value: float) -> float:
        return round(min(100.0, max(0.0, 100 - 100 * (scale(value) - bottom) / span)), 2)

    made = []
    for place, label, values in drawn:
        placed = [(steps.place(value.step), height(value.value), value) for value in values if math.isfinite(value.value)]
        shown = placed if len(placed) <= MOST_POINTS else placed[:: -(-len(placed) // MOST_POINTS)] + placed[-1:]
        marked = [
            Dot(
                x, y, None if value.high is None else height(value.high), None if value.low is None else height(value.low), value.sure,
                _said(label, value, show),
            )
            for x, y, value in shown
        ]  # fmt: skip
        made.append(Line(label, place, " ".join(f"{x},{y}" for x, y, _ in shown), tuple(marked) if dots else ()))
    said = translated("{title}, step {first} to {last}: {low} to {high}").format(
        title=title, first=f"{steps.first:,.0f}", last=f"{steps.last:,.0f}", low=show(low), high=show(high)
    )
    ends = (f"{steps.first:,.0f}", f"{steps.last:,.0f}")
    return Chart(id, title, about, tuple(made), show(low), show(high), *ends, said, tuple(map(steps.place, marks)))


def _step(value: Value) -> float:
    return value.step


def _said(label: str, value: Value, show: Callable[[float], str]) -> str:
    step = translated("step {step}").format(step=f"{value.step:,.0f}")
    parts = [label, step, show(value.value)]
    if value.low is not None and value.high is not None:
        parts.append(units.span((value.low, value.high), show))
    return clauses(parts)
