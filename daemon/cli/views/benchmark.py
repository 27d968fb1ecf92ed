"""What `ckptd bench` prints: the progress while it measures, then a table of processes and one of speeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text

from daemon.cli.views.layout import Cell, Column, fits, hanging, table
from daemon.cli.views.live_bar import LiveBar
from daemon.cli.views.markup import terminal
from daemon.contract import units
from daemon.contract.jobs.processes.benchmark import Bench, BenchedVariant, BenchPoint, Spread
from daemon.contract.language.catalog import to_translate, translated, translated_plural, translated_text
from daemon.contract.language.lists import after_each_other, bracketed, clauses, percent, sentences
from daemon.operating.log.wrapping import width_of

NOTHING = "–"
_FIRST = {"causal": to_translate("first token"), "seq2seq": "first token", "encoder": to_translate("one pass")}
"""What the first pass of a kind of model gives."""


class BenchView(LiveBar):
    """The progress of one measurement on stderr: a bar on a terminal, a line for each variant elsewhere."""

    def _line(self, message: str) -> str | None:
        """`message`: "VARIANT: what is done"."""
        variant, colon, _ = message.partition(": ")
        return translated("measuring {variant}").format(variant=variant) if colon else None


def print_bench(value: Bench, page: Path | None) -> None:
    """`ckptd bench`. `page`: the page that was written too."""
    console = terminal(soft_wrap=True)
    width = width_of(console)
    for line in bench_lines(value, width) + ([] if page is None else hanging("page", str(page), width, style="bold")):
        console.print(line)


def bench_lines(value: Bench, width: int | None) -> list[Text]:
    """The lines, none wider than `width`, where words allow it."""
    machine = value.machine
    step = "" if value.step is None else " " + translated("step {step}").format(step=value.step)
    about = f"{value.run or '?'}{step}:"
    lines = hanging(about, value.folder, width, style="bold")
    hardware = translated("{cpu}, {cores} cores, {memory}, load {load:g}").format(
        cpu=machine.cpu or machine.architecture, cores=machine.usable_cores, memory=units.size(machine.memory_bytes), load=machine.load
    )
    lines += hanging("machine", hardware, width, style="bold")
    if any(variant.starts for variant in value.variants):
        lines += [Text(), *_starts(value, width)]
    if any(variant.measured for variant in value.variants):
        speeds = _points(value, width)
        lines += [Text(), *speeds, Text(), *_explained(value, width, quartiles=any("±" in line.plain for line in speeds))]
    for variant in value.variants:
        if variant.fault:
            lines += hanging(f"{variant.variant}:", translated_text(variant.fault), width, style="red")
        for said, places in _problems(variant).items():
            lines += hanging(
                f"{variant.variant}:",
                translated("{sentence}.").format(sentence=bracketed(translated_text(said.removesuffix(".")), places)),
                width,
                style="yellow",
            )
    if value.no_pytorch:
        lines += hanging("", translated_text(value.no_pytorch), width)
    for note in value.notes:
        lines += hanging("note", translated_text(note), width, style="yellow")
    for cut in value.cut:
        lines += hanging(
            translated("limit of {time}:").format(time=units.duration(value.limit_seconds)), translated_text(cut), width, style="yellow"
        )
    return lines


def _starts(value: Bench, width: int | None) -> list[Text]:
    """The table of processes; on a narrow terminal without the time of loading."""
    several = len(value.threads) > 1
    for loading in (True, False):
        columns = [Column("variant", least=10), *([Column("threads", right=True)] if several else []), Column("files", right=True)]
        columns += [
            Column("start", right=True),
            *([Column("of it loading", right=True)] if loading else []),
            Column("peak memory", right=True),
        ]
        rows = [
            [
                Cell(variant.variant, "bold"), *([Cell(str(start.threads))] if several else []), Cell(units.size(variant.size_bytes)),
                Cell(units.duration(start.start_seconds)), *([Cell(units.duration(start.load_seconds))] if loading else []),
                Cell(units.size(start.peak_rss_bytes)),
            ]
            for variant in value.variants for start in variant.starts
        ]  # fmt: skip
        if width is None or fits(columns, rows, width):
            break
    return [line for row in table(columns, rows, width) for line in row]


def _points(value: Bench, width: int | None) -> list[Text]:
    """The table of speeds; on a narrow terminal medians alone, and then a table for each number of threads and rows."""
    everything = [(variant.variant, point) for variant in value.variants for point in variant.points if point.prefill_seconds is not None]
    for quartiles in (True, False):
        columns, rows = _table(value, everything, quartiles=quartiles, apart=False)
        if width is None or fits(columns, rows, width):
            return [line for row in table(columns, rows, width) for line in row]
    lines = []
    for threads in value.threads:
        for batch in value.batches:
            some = [(name, point) for name, point in everything if (point.threads, point.batch) == (threads, batch)]
            if some:
                lines.append(Text(clauses([_threads(threads), _rows(batch)])))
                lines += [line for row in table(*_table(value, some, quartiles=False, apart=True), width) for line in row]
    return lines


def _table(
    value: Bench, points: Sequence[tuple[str, BenchPoint]], *, quartiles: bool, apart: bool
) -> tuple[list[Column], list[list[Cell]]]:
    """Columns and rows of points. `apart`: without the threads and rows that they have in common."""
    shown: list[tuple[str, Callable[[BenchPoint], str]]] = []
    if len(value.threads) > 1 and not apart:
        shown.append((to_translate("thr"), lambda point: str(point.threads)))
    if len(value.batches) > 1 and not apart:
        shown.append((to_translate("batch"), lambda point: str(point.batch)))
    shown += [
        (to_translate("length"), lambda point: str(point.length)),
        (_FIRST.get(value.kind or "", "first"), lambda point: spread(point.prefill_seconds, units.duration, quartiles)),
        (to_translate("tokens/s"), lambda point: spread(point.tokens_per_second, units.number, quartiles)),
    ]
    if any(point.speed_over_pytorch for variant in value.variants for point in variant.points):
        shown.append(("× PyTorch", lambda point: spread(point.speed_over_pytorch, units.times, quartiles)))
    columns = [Column("variant", least=10), *(Column(title, least=len(title), right=True) for title, _ in shown)]
    return columns, [[Cell(name, "bold"), *(Cell(say(point)) for _, say in shown)] for name, point in points]


def _explained(value: Bench, width: int | None, *, quartiles: bool) -> list[Text]:
    what = {
        "causal": translated("first token: the pass over the prompt. tokens/s: {tokens} tokens decoded after it.").format(
            tokens=value.tokens
        ),
        "seq2seq": translated("first token: encoding and the first token. tokens/s: {tokens} tokens decoded after it.").format(
            tokens=value.tokens
        ),
        "encoder": translated("one pass: over all rows. tokens/s: tokens read."),
    }.get(value.kind or "", "")
    threads = "" if len(value.threads) > 1 else clauses(["", _threads(value.threads[0])])
    batch = "" if len(value.batches) > 1 else clauses(["", _together(value.batches[0])])
    about = translated("; ±: half the range between the quartiles") if quartiles else ""
    end = translated("Medians of {rounds} rounds{conditions}. {time} in all.").format(
        rounds=value.rounds, conditions=f"{threads}{batch}{about}", time=units.duration(value.seconds)
    )
    return hanging("", after_each_other(filter(None, [what, end])), width)


def _threads(count: int) -> str:
    return translated_plural("{count} thread", "{count} threads", count).format(count=count)


def _rows(count: int) -> str:
    return translated_plural("{count} row", "{count} rows", count).format(count=count)


def _together(count: int) -> str:
    return translated_plural("{count} row together", "{count} rows together", count).format(count=count)


def _problems(variant: BenchedVariant) -> dict[str, str]:
    """Sentence → the points that it is about."""
    by_problem: dict[str, list[str]] = {}
    for point in variant.points:
        if point.problem is not None:
            place = translated("{threads}, {batch} × {length} tokens").format(
                threads=_threads(point.threads), batch=point.batch, length=point.length
            )
            by_problem.setdefault(point.problem, []).append(place)
    return {said: sentences(places) for said, places in by_problem.items()}


def spread(value: Spread | None, say: Callable[[float], str], quartiles: bool = True) -> str:
    """A median, with half the range between the quartiles, in percent of it, where `quartiles`."""
    if value is None:
        return NOTHING
    if not quartiles or value.rounds < 2 or not value.median:
        return say(value.median)
    return f"{say(value.median)} ±{percent(_percent(value))}"


def _percent(value: Spread) -> str:
    share = 50 * (value.high - value.low) / value.median
    return f"{share:.0f}" if share >= 1 else "<1"
