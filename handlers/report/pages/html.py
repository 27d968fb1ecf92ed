"""`report.html`: one self-contained page for the person on call. Called by `handlers.report.stage`.

The page loads nothing and runs nothing; its templates are report.html, charts.html, details.html and report.css. All
that comes from outside is escaped by the engine, and a content security policy forbids the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from daemon.contract.values import Json
from handlers.report import comparison, lengths, samples, units
from handlers.report.advice import headline
from handlers.report.advice.targets import rows as target_rows
from handlers.report.model import Failure, Report
from handlers.report.pages import charts
from handlers.report.usage import word


@cache
def environment() -> Environment:
    """The template engine with the report's filters; texts of .html templates are escaped."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(enabled_extensions=("html",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(units.FILTERS, flat=_flat, word=word)
    made.globals.update(count=units.count, cells=samples.cells, prompt_shown=samples.prompt_shown)
    return made


def render(report: Report) -> str:
    """The page of a report. Raises nothing for missing figures: they are shown as "–" or left out."""
    return environment().get_template("report.html").render(
        report=report,
        title=headline.title_line(report),
        places=target_rows(report),
        failures=roots(report),
        gaps=gaps(report),
        sizes=charts.size_bars(report),
        speeds=charts.speed_bars(report),
        distances=charts.limit_rows(report),
        limit_at=charts.limit_position(1.0),
        timeline=charts.timeline(report),
        loss=charts.loss_curve(report),
        run_lines=charts.run_lines(report),
        speed_note=speed_note(report),
        lengths=lengths.sentences(report),
        compared=comparison.table(report.comparison),
        partings=comparison.partings(report),
        scores=comparison.scores(report),
    )  # fmt: skip


def speed_note(report: Report) -> str:
    """Why an artifact with more tokens a second than another has the lower factor over PyTorch; "" where none has."""
    known = [
        (artifact.variant, speed, factor)
        for artifact in report.artifacts
        if (speed := artifact.measured.tokens_per_second) is not None and (factor := artifact.measured.speed_over_pytorch) is not None
    ]
    for name, speed, factor in known:
        for other, lower, higher in known:
            if speed > lower and units.times(factor) != units.times(higher) and factor < higher:
                return (
                    f"{name} has more tokens/s than {other} but a lower factor: each artifact was measured beside PyTorch in its own"
                    f" turns, and PyTorch was faster in the turns of {name}. Compare artifacts by the factor."
                )
    return ""


@dataclass(frozen=True)
class Root:
    """One cause, with everything that failed for it."""

    names: tuple[str, ...]
    """The stages, or the artifacts that were found wrong."""
    first: Failure
    also: tuple[str, ...]
    """The other failures' sentences, without the cause."""


def roots(report: Report) -> tuple[Root, ...]:
    """The failures by their root: same code, same cause, same remedy."""
    grouped: dict[tuple[str, str, str], list[Failure]] = {}
    for failure in report.failures:
        grouped.setdefault((failure.code, failure.cause or failure.sentence, failure.remedy), []).append(failure)
    return tuple(
        Root(
            names=tuple(dict.fromkeys(failure.variant or failure.source for failure in failures)),
            first=failures[0],
            also=tuple(dict.fromkeys(_without_cause(failure) for failure in failures[1:] if failure.sentence != failures[0].sentence)),
        )
        for failures in grouped.values()
    )


def _without_cause(failure: Failure) -> str:
    return f"{failure.sentence.removesuffix('.').removesuffix(failure.cause.removesuffix('.')).rstrip().rstrip(':')}."


def gaps(report: Report) -> dict[str, list[str]]:
    """What was not verified, by the reason; a failure that has an entry of its own is only named."""
    said = {"; ".join(artifact.reasons): artifact.failed_stage for artifact in report.artifacts if artifact.failed_stage}
    by_reason: dict[str, list[str]] = {}
    for gap in report.not_verified:
        why = f"{said[gap.why]} failed, see above" if gap.why in said else gap.why
        by_reason.setdefault(why, []).append(gap.what)
    return by_reason


def _flat(value: Json, prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested mappings as (dotted name, value)."""
    rows: list[tuple[str, Any]] = []
    for name, item in value.items():
        dotted = f"{prefix}{name}"
        rows += _flat(item, f"{dotted}.") if isinstance(item, dict) and item else [(dotted, item)]
    return rows
