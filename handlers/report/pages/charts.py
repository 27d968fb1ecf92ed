"""Geometry of the report's charts: where each mark stands, as shares of the width in percent.

Pure; called by `html` and `bench_page`, drawn by charts.html. Positions are percentages and text sizes are
pixels, so that a chart is as readable on a telephone as on a wide screen. A chart without figures is None or empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from daemon.contract import units
from daemon.contract.advice.which import METRIC_NAMES
from daemon.contract.jobs.points import ArtifactPoint
from daemon.contract.language.catalog import translated
from daemon.contract.language.lists import clauses, sentences
from handlers.report.model import Artifact, Attempt, Report, RunSoFar

ROOM = 96.0
"""Percent of the width that the largest value takes."""


@dataclass(frozen=True)
class Bar:
    """A labelled bar; `beside` is a second, thinner one to compare it with."""

    label: str
    text: str
    width: float
    kind: str
    beside: float | None = None
    beside_text: str = ""


@dataclass(frozen=True)
class Mark:
    """One measure of an artifact on the scale of distances from the limit."""

    measure: str
    shape: str
    text: str
    position: float
    over: bool


@dataclass(frozen=True)
class LimitRow:
    """One artifact on that scale."""

    label: str
    text: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Span:
    """One attempt in the timeline."""

    start: float
    width: float
    outcome: str
    text: str


@dataclass(frozen=True)
class TimelineRow:
    """One stage in the timeline."""

    label: str
    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Timeline:
    """All stages over the export's wall time; `ticks` are (percent, text)."""

    rows: tuple[TimelineRow, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Curve:
    """The training loss, `points` in an SVG of 100 × 100 with the origin at the top left."""

    points: str
    low: str
    high: str
    first: str
    last: str
    text: str


@dataclass(frozen=True)
class Series:
    """One variant's line: `points` in an SVG of 100 × 100, `dots` in percent with the text of each."""

    label: str
    points: str
    dots: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Lines:
    """A figure by step, one line for each variant."""

    title: str
    about: str
    series: tuple[Series, ...]
    low: str
    high: str
    first: str
    last: str
    text: str


MOST_LINES = 6
"""Variants that a chart of lines shows; more could not be told apart."""


def run_lines(report: Report) -> tuple[Lines, ...]:
    """The divergence and the quality of each variant over the run's exports; a chart needs a figure at two steps."""
    run = report.run_so_far
    if run is None:
        return ()
    charts = [
        _lines(
            run, translated("Divergence by step"), translated("KL divergence from the live model, nats per token"),
            lambda artifact: artifact.kl, logarithmic=True,
        )
    ]  # fmt: skip
    if metric := run.metric:
        name = translated(METRIC_NAMES.get(metric, metric))
        about = (
            translated("of the artifact itself, on the texts of the comparison") if metric == "perplexity"
            else translated("of the artifact itself, by the data's labels")
        )  # fmt: skip
        title = translated("{figure} by step").format(figure=f"{name[:1].upper()}{name[1:]}")
        charts.append(_lines(run, title, about, lambda artifact: artifact.quality.get(metric)))
    return tuple(chart for chart in charts if chart is not None)


def _lines(
    run: RunSoFar, title: str, about: str, read: Callable[[ArtifactPoint], float | None], *, logarithmic: bool = False
) -> Lines | None:
    rows: dict[str, list[tuple[int, float]]] = {}
    for point in run.points:
        for variant, artifact in point.artifacts.items():
            if (value := read(artifact)) is not None and artifact.published:
                rows.setdefault(variant, []).append((point.step, value))
    rows = dict([(variant, pairs) for variant, pairs in rows.items() if len(pairs) > 1][:MOST_LINES])
    values = [value for pairs in rows.values() for _, value in pairs]
    steps = sorted({step for pairs in rows.values() for step, _ in pairs})
    if len(steps) < 2:
        return None
    above = [value for value in values if value > 0]
    by_decade = logarithmic and bool(above) and max(above) > 30 * min(above)
    floor = min(above) if by_decade else 0.0  # exactly no divergence stands at the bottom

    def height(value: float) -> float:
        return math.log10(max(value, floor)) if by_decade else value

    low, high = min(map(height, values)), max(map(height, values))
    across, tall = steps[-1] - steps[0], (high - low) or 1.0
    series = []
    for variant, pairs in rows.items():
        dots = tuple(
            (round(100 * (step - steps[0]) / across, 2), round(100 * (high - height(value)) / tall, 2),
             translated("{variant}, step {step}: {value}").format(variant=variant, step=step, value=units.number(value)))
            for step, value in pairs
        )  # fmt: skip
        series.append(Series(variant, " ".join(f"{x},{y}" for x, y, _ in dots), dots))
    change = translated("{variant} from {first} to {last}")
    changes = sentences(
        change.format(
            variant=line.label, first=units.number(rows[line.label][0][1]), last=units.number(rows[line.label][-1][1])
        ) for line in series
    )  # fmt: skip
    return Lines(
        title=title, about=clauses([about, translated("logarithmic")] if by_decade else [about]), series=tuple(series),
        low=units.number(min(values)), high=units.number(max(values)), first=_step(steps[0]), last=_step(steps[-1]),
        text=translated("{title}: {what}").format(title=title, what=changes),
    )  # fmt: skip


def _step(step: int) -> str:
    return translated("step {step}").format(step=units.number(step))


def size_bars(report: Report) -> tuple[Bar, ...]:
    """Bytes of the base's stored weights and of each artifact's files."""
    rows: list[tuple[str, int, str, str]] = []
    if report.base.size_bytes:
        label = clauses(part for part in (translated("base weights"), report.base.dtype) if part)
        rows.append((label, report.base.size_bytes, "reference", ""))
    for artifact in report.artifacts:
        if artifact.size_bytes is not None:
            of_base = translated(" · {ratio} base")
            ratio = of_base.format(ratio=units.times(artifact.size_ratio)) if artifact.size_ratio is not None else ""
            rows.append((artifact.variant, artifact.size_bytes, artifact.verdict.value, ratio))
    largest = max((row[1] for row in rows), default=0)
    return tuple(Bar(label, units.size(value) + more, share(value, largest), kind) for label, value, kind, more in rows)


def speed_bars(report: Report) -> tuple[Bar, ...]:
    """Decoded tokens a second of each artifact, beside PyTorch's in the same turns."""
    rows: list[tuple[Artifact, float, float | None]] = []
    for artifact in report.artifacts:
        own, peer = artifact.measured.tokens_per_second, artifact.measured.pytorch_tokens_per_second
        if own is not None:
            rows.append((artifact, own, peer))
    largest = max((value for _, own, peer in rows for value in (own, peer or 0)), default=0)
    return tuple(
        Bar(
            label=artifact.variant,
            text=f"{units.number(own)}{_over(artifact, own, peer)}",
            width=share(own, largest),
            kind=artifact.verdict.value,
            beside=None if peer is None else share(peer, largest),
            beside_text="" if peer is None else translated("PyTorch {speed} tokens/s").format(speed=units.number(peer)),
        )
        for artifact, own, peer in rows
    )


DECADES = (-6, 2)
"""Powers of ten of measured / limit that the scale of distances spans; what lies beyond stands at its ends."""


def limit_rows(report: Report) -> tuple[LimitRow, ...]:
    """For each artifact, how far its divergence, error and disagreement are from their limits, logarithmically."""
    return tuple(row for artifact in report.artifacts if (row := _limit_row(artifact)).marks)


def limit_position(ratio: float) -> float:
    """Percent of the width at which measured / limit = `ratio` stands; zero stands at the left end."""
    low, high = DECADES
    decade = low if ratio <= 0 else min(max(math.log10(ratio), low), high)
    return round(100 * (decade - low) / (high - low), 2)


def timeline(report: Report) -> Timeline | None:
    """Stages and attempts from the first start to the report; None when no attempt has started."""
    end = units.seconds_of(report.finished)
    starts = [start for stage in report.stages for attempt in stage.attempts if (start := units.seconds_of(attempt.started)) is not None]
    if end is None or not starts:
        return None
    begin = min(starts)
    total = max(end - begin, 0.001)
    rows = []
    for stage in report.stages:
        spans = tuple(span for attempt in stage.attempts if (span := _span(attempt, begin, end, total)))
        if spans:
            spent = units.duration(sum(attempt.seconds or 0 for attempt in stage.attempts))
            in_attempts = translated("{time} in {count} attempts").format(time=spent, count=len(spans))
            rows.append(TimelineRow(stage.name, in_attempts if len(spans) > 1 else spent, spans))
    ticks = tuple((share * 100, units.duration(total * share) if share else "0") for share in (0.0, 0.25, 0.5, 0.75, 1.0))
    return Timeline(tuple(rows), ticks)


def loss_curve(report: Report) -> Curve | None:
    """The training loss by step; None with fewer than two points."""
    history = report.checkpoint.metadata.get("loss_history")
    points = sorted(_pairs(history if isinstance(history, list) else ()))
    if len(points) < 2:
        return None
    steps, losses = [step for step, _ in points], [loss for _, loss in points]
    low, high = min(losses), max(losses)
    width, height = (steps[-1] - steps[0]) or 1.0, (high - low) or 1.0
    placed = [(round(100 * (step - steps[0]) / width, 2), round(100 * (high - loss) / height, 2)) for step, loss in points]
    return Curve(
        points=" ".join(f"{x},{y}" for x, y in placed),
        low=units.number(low),
        high=units.number(high),
        first=_step(int(steps[0])),
        last=_step(int(steps[-1])),
        text=translated("Training loss from {first} to {last} over {count} logged points").format(
            first=units.number(losses[0]), last=units.number(losses[-1]), count=len(points)
        ),
    )


def share(value: float, largest: float) -> float:
    """Percent of the width that a bar takes."""
    return round(ROOM * value / largest, 2) if largest > 0 else 0.0


def _over(artifact: Artifact, own: float, peer: float | None) -> str:
    """Speed over PyTorch as validation gives it (the median over turns), so that the chart says what the table says."""
    ratio = artifact.measured.speed_over_pytorch
    if ratio is None:
        ratio = own / peer if peer else None
    return translated(" · {ratio} PyTorch").format(ratio=units.times(ratio)) if ratio is not None else ""


def _limit_row(artifact: Artifact) -> LimitRow:
    figures, limits = artifact.measured, artifact.limits
    agreement, least = figures.agreement, limits.get("agreement")
    pairs = [
        ("error", "circle", translated("largest error"), figures.error_max, limits.get("error")),
        ("kl", "square", translated("KL divergence"), figures.kl, limits.get("kl")),
        (
            "agreement", "diamond", translated("disagreement"),
            1 - agreement if agreement is not None else None, 1 - least if units.is_number(least) else None,
        ),
    ]  # fmt: skip
    marks = []
    for measure, shape, name, value, limit in pairs:
        if units.is_number(value) and units.is_number(limit):
            ratio = value / limit if limit else (math.inf if value else 0.0)
            words = translated("{variant}: {figure} {value}, limit {limit}")
            text = words.format(variant=artifact.variant, figure=name, value=units.number(value), limit=units.number(limit))
            marks.append(Mark(measure, shape, text, limit_position(ratio), ratio > 1))
    over = sum(mark.over for mark in marks)
    said = translated("{count} over the limit").format(count=over) if over else translated("within the limits")
    return LimitRow(artifact.variant, said, tuple(marks))


def _span(attempt: Attempt, begin: float, end: float, total: float) -> Span | None:
    start = units.seconds_of(attempt.started)
    if start is None:
        return None
    stop = units.seconds_of(attempt.ended)
    stop = end if stop is None else stop
    left = min(max(100 * (start - begin) / total, 0), 99.4)
    width = min(max(100 * (stop - start) / total, 0.6), 100 - left)
    outcome = attempt.outcome or "running"
    text = translated("attempt {number} ({strategy}): {outcome}, {time}").format(
        number=attempt.number, strategy=attempt.strategy, outcome=translated(outcome), time=units.duration(stop - start)
    )
    return Span(round(left, 2), round(width, 2), outcome, text)


def _pairs(history: Iterable[object]) -> Iterable[tuple[float, float]]:
    for item in history:
        if isinstance(item, list | tuple) and len(item) == 2 and all(units.is_number(part) for part in item):
            yield float(item[0]), float(item[1])
