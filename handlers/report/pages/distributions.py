"""How the differences of single positions are distributed, as tables for people. Pure. Called by `html`.

report.json has more of each: all percentiles of both divergences and of Δp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemon.contract import units
from daemon.contract.jobs.figures import Flips, Percentiles, Statistics
from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.language.lists import clauses, percent
from handlers.report.comparison import Cell
from handlers.report.model import Report

Show = Callable[[float | None], str]
Column = tuple[str, Callable[[Statistics], Cell | None]]


@dataclass(frozen=True)
class Group:
    """A table with a title; rows of cells, one for each column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def groups(report: Report) -> tuple[Group, ...]:
    """The tables that any artifact has figures for."""
    given = [(row.name, row.statistics) for row in report.comparison.rows if row.statistics is not None]
    tables = [_group(translated(title), columns, given) for title, columns in _GROUPS]
    tables.insert(3, _group(translated("Mean KLD, by the probability of the live model's choice"), _buckets(given), given))
    return tuple(table for table in tables if table.rows)


def _group(title: str, columns: Sequence[Column], given: Sequence[tuple[str, Statistics]]) -> Group:
    rows = [(name, [show(statistics) for _, show in columns]) for name, statistics in given]
    rows = [(name, cells) for name, cells in rows if any(cells)]
    kept = [number for number in range(len(columns)) if any(cells[number] for _, cells in rows)]
    return Group(
        title=title,
        columns=tuple(translated(columns[number][0]) for number in kept),
        rows=tuple((name, tuple(cells[number] or Cell(units.NOTHING) for number in kept)) for name, cells in rows),
    )


def _plus_minus(value: float | None, error: float | None, show: Show) -> Cell | None:
    return None if value is None else Cell(show(value), "" if error is None else f"± {show(error)}")


def _of(kind: str, key: str, show: Show = units.number) -> Callable[[Statistics], Cell | None]:
    """What shows an end or a percentile of one of the distributions."""

    def cell(statistics: Statistics) -> Cell | None:
        values: Percentiles | None = getattr(statistics, kind)
        if values is None:
            return None
        if key == "mean":
            return _plus_minus(values.mean, values.standard_error, show)
        return Cell(show(values.percentiles.get(key) if key[0].isdigit() else getattr(values, key)))

    return cell


def _alone(key: str, show: Show = units.number) -> Callable[[Statistics], Cell | None]:
    """What shows a figure with its standard error, where it has one."""
    return lambda statistics: _plus_minus(getattr(statistics, key), getattr(statistics, f"{key}_standard_error", None), show)


def _points(value: float | None) -> str:
    """A change of a probability, in percent, with llama.cpp's digits."""
    return units.NOTHING if value is None else percent(f"{100 * value:.3f}".replace("-0.000", "0.000"))


def _flips(key: str) -> Callable[[Statistics], Cell | None]:
    """What shows flips of so many positions, and who is right there."""

    def cell(statistics: Statistics) -> Cell | None:
        counts: Flips | None = getattr(statistics, key)
        if counts is None or not counts.positions:
            return None
        text = translated("{flips} of {positions}").format(flips=units.number(counts.flips), positions=units.number(counts.positions))
        if counts.mcnemar_p is None:
            return Cell(text)
        judged = translated("{lost} lost, {gained} gained").format(lost=counts.lost, gained=counts.gained)
        return Cell(text, clauses([judged, f"p = {units.number(counts.mcnemar_p)}"]))

    return cell


def _top_k(statistics: Statistics) -> Cell | None:
    return Cell(units.percent(statistics.top_k_agreement[-1])) if statistics.top_k_agreement else None


def _buckets(given: Sequence[tuple[str, Statistics]]) -> list[Column]:
    """A column for each range of the first artifact's; all have the same."""
    ranges = next((statistics.by_confidence for _, statistics in given if statistics.by_confidence), ())
    return [(f"{bucket.low:g}–{bucket.high:g}", _bucket(place)) for place, bucket in enumerate(ranges)]


def _bucket(place: int) -> Callable[[Statistics], Cell | None]:
    def cell(statistics: Statistics) -> Cell | None:
        if statistics.by_confidence is None or place >= len(statistics.by_confidence):
            return None
        bucket = statistics.by_confidence[place]
        said = translated("{flips} of {positions} flip")
        return Cell(units.number(bucket.kld_mean), said.format(flips=units.number(bucket.flips), positions=units.number(bucket.positions)))

    return cell


_MEAN, _MEDIAN, _LEAST, _MOST = to_translate("Mean"), to_translate("Median"), to_translate("Minimum"), to_translate("Maximum")
_GROUPS: tuple[tuple[str, tuple[Column, ...]], ...] = (
    (to_translate("KL divergence of a position (KLD), nats"), (
        (_MEAN, _of("kld", "mean")), (_MEDIAN, _of("kld", "50")), ("95 %", _of("kld", "95")), ("99 %", _of("kld", "99")),
        ("99.9 %", _of("kld", "99.9")), (_MOST, _of("kld", "maximum")), (to_translate("Worst 1 %"), _alone("kld_worst")),
        (to_translate("Reversed"), _of("kld_reversed", "mean")),
    )),
    (to_translate("Change of the next token's probability (Δp)"), (
        (_MEAN, _of("delta_p", "mean", _points)), ("RMS", _alone("delta_p_rms", _points)), (_LEAST, _of("delta_p", "minimum", _points)),
        ("1 %", _of("delta_p", "1", _points)), (_MEDIAN, _of("delta_p", "50", _points)), ("99 %", _of("delta_p", "99", _points)),
        (_MOST, _of("delta_p", "maximum", _points)),
    )),
    (to_translate("Choices and perplexity"), (
        (to_translate("Same top p"), _alone("same_top_p", units.percent)), (to_translate("Same first five"), _top_k),
        (to_translate("Flips"), _flips("flips")), (to_translate("Flips where sure"), _flips("confident_flips")),
        (to_translate("ln(PPL/PPL live)"), _alone("ln_ppl_ratio")),
        (to_translate("PPL correlation"), _alone("ppl_correlation", "{:.4f}".format)),
    )),
    (to_translate("Cosine of a vector with the live model's"), (
        (_MEAN, _of("cosine", "mean", "{:.4f}".format)), (_MEDIAN, _of("cosine", "50", "{:.4f}".format)),
        ("10 %", _of("cosine", "10")), ("5 %", _of("cosine", "5")), ("1 %", _of("cosine", "1")), (_LEAST, _of("cosine", "minimum")),
    )),
    (to_translate("Error of a text's number"), (
        (_MEAN, _of("error", "mean")), (_MEDIAN, _of("error", "50")), ("95 %", _of("error", "95")), ("99 %", _of("error", "99")),
        (_MOST, _of("error", "maximum")), (to_translate("Correlation"), _alone("correlation", "{:.4f}".format)),
        (to_translate("Rank correlation"), _alone("rank_correlation", "{:.4f}".format)),
    )),
)  # fmt: skip
