"""The page of `ckptd bench --html`: one self-contained file with tables and charts, in the style of `report.html`.

Run by `python -m handlers` in a child of the verb: the engine of the templates is no library of the daemon. It reads the measurement from
its input and writes one file.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

from daemon.contract import units
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.processes.benchmark import PAGE, PAGE_INPUT, STAGE, Bench, Spread
from daemon.contract.language.catalog import to_translate, translated, translated_plural, use_language
from daemon.contract.language.lists import clauses
from handlers.child.progress import Reporter, StageOutput
from handlers.report.pages import charts
from handlers.report.pages.html import environment

Place = tuple[int, int, int]
"""Threads, rows and tokens of a row."""
_FIRST = {"causal": to_translate("Time to the first token"), "seq2seq": to_translate("Time to the first token")}
_PASS, _DECODED = to_translate("Time of one pass"), to_translate("Tokens decoded per second")
_RATE = {"encoder": to_translate("Tokens read per second")}


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Write the page into the staging folder. Raises ValidationError where the input is no measurement, OSError."""
    value = Bench.model_validate_json(Path(context.inputs[STAGE], PAGE_INPUT).read_bytes())
    reporter.progress(0.5, "drawing the page")
    with use_language(context.language):
        page = render(value)
    Path(context.staging, PAGE).write_text(page, encoding="utf-8")
    return StageOutput(reusable=False)


def render(value: Bench) -> str:
    """The page."""
    places = shown_places(value)
    return (
        environment()
        .get_template("bench.html")
        .render(
            bench=value,
            first=translated(_FIRST.get(value.kind or "", _PASS)),
            short=translated("One pass") if value.kind == "encoder" else translated("First token"),
            rate=translated(_RATE.get(value.kind or "", _DECODED)),
            many=len(value.threads) > 1,
            spread=spread,
            ratio=ratio,
            problems=[(entry.variant, point) for entry in value.variants for point in entry.points if point.problem],
            speeds=[(said(value, place), rows) for place in places if (rows := _bars(value, place, "tokens_per_second", units.number))],
            firsts=[(said(value, place), rows) for place in places if (rows := _bars(value, place, "prefill_seconds", units.duration))],
            starts=_start_bars(value, lambda start: start.start_seconds, units.duration),
            memory=_start_bars(value, lambda start: start.peak_rss_bytes, units.size),
        )
    )


def shown_places(value: Bench) -> list[Place]:
    """The places that have charts, of those that were measured: the shortest and the longest rows, and the longest with most rows and with
    most threads."""
    there = {
        (point.threads, point.batch, point.length)
        for entry in value.variants
        for point in entry.points
        if point.prefill_seconds is not None
    }
    if not there:
        return []
    threads, batches, lengths = (sorted({place[number] for place in there}) for number in range(3))
    places = [
        (threads[0], batches[0], lengths[0]), (threads[0], batches[0], lengths[-1]), (threads[0], batches[-1], lengths[-1]),
        (threads[-1], batches[0], lengths[-1]),
    ]  # fmt: skip
    return list(dict.fromkeys(places))


def said(value: Bench, place: Place) -> str:
    """A place in words."""
    threads, batch, length = place
    tokens = translated_plural("{count} token", "{count} tokens", length).format(count=length)
    if batch > 1:
        tokens = translated("{count} rows of {tokens}").format(count=batch, tokens=tokens)
    return clauses([tokens, translated_plural("{count} thread", "{count} threads", threads).format(count=threads)])


def _bars(value: Bench, place: Place, figure: str, say: Callable[[float], str]) -> tuple[charts.Bar, ...]:
    """A bar of a figure of `BenchPoint` for each variant, those with PyTorch beside them first."""
    own, peer = attrgetter(figure), attrgetter(f"pytorch_{figure}")
    rows = []
    for entry in value.variants:
        point = next((point for point in entry.points if (point.threads, point.batch, point.length) == place), None)
        if point is not None and (mine := own(point)) is not None:
            other = peer(point)
            rows.append((entry.variant, mine.median, None if other is None else other.median))
    rows.sort(key=lambda row: row[2] is None)
    largest = max((figure for _, mine, other in rows for figure in (mine, other or 0)), default=0)
    return tuple(
        charts.Bar(
            label=name, text=say(mine), width=charts.share(mine, largest), kind="measured",
            beside=None if other is None else charts.share(other, largest),
            beside_text="" if other is None else translated("PyTorch {value}").format(value=say(other)),
        )
        for name, mine, other in rows
    )  # fmt: skip


def _start_bars(value: Bench, figure: Callable[..., float], say: Callable[[float], str]) -> tuple[charts.Bar, ...]:
    """A bar for each variant's process with the first number of threads."""
    rows = [(entry.variant, figure(start)) for entry in value.variants for start in entry.starts if start.threads == value.threads[0]]
    largest = max((number for _, number in rows), default=0)
    return tuple(charts.Bar(name, say(number), charts.share(number, largest), "measured") for name, number in rows)


def spread(value: Spread | None, say: Callable[[float], str] = units.duration) -> str:
    """The quartiles of a time, or of what else `say` writes, in words; "" where there are none."""
    return "" if value is None or value.rounds < 2 else units.span((value.low, value.high), say)


def ratio(value: Spread | None) -> str:
    """The quartiles of a number in words; "" where there are none."""
    return spread(value, units.number)
