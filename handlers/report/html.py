"""`report.html`: one self-contained page for the person on call. Called by `handlers.report.stage`.

The page loads nothing and runs nothing; its templates are report.html, charts.html, details.html and report.css. All
that comes from outside is escaped by the engine, and a content security policy forbids the rest.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from daemon.contract.values import Json
from handlers.report import charts, units
from handlers.report.model import Report


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
    made.filters.update(
        bytes=units.size, duration=units.duration, number=units.number, percent=units.percent, times=units.times, moment=units.moment,
        shown=shown, flat=_flat,
    )  # fmt: skip
    made.globals.update(count=units.count, divided=_divided)
    return made


def render(report: Report) -> str:
    """The page of a report. Raises nothing for missing figures: they are shown as "–" or left out."""
    return environment().get_template("report.html").render(
        report=report,
        sizes=charts.size_bars(report),
        speeds=charts.speed_bars(report),
        distances=charts.limit_rows(report),
        limit_at=charts.limit_position(1.0),
        timeline=charts.timeline(report),
        loss=charts.loss_curve(report),
    )  # fmt: skip


def shown(value: Any) -> str:
    """Any JSON value as one short text."""
    if value is None:
        return units.NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if units.is_number(value):
        return units.number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flat(value: Json, prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested mappings as (dotted name, value)."""
    rows: list[tuple[str, Any]] = []
    for name, item in value.items():
        dotted = f"{prefix}{name}"
        rows += _flat(item, f"{dotted}.") if isinstance(item, dict) and item else [(dotted, item)]
    return rows


def _divided(reference: str, text: str) -> tuple[str, str, str]:
    """(what both texts begin with, the rest of `text`, the rest of `reference`)."""
    common = 0
    for one, other in zip(reference, text, strict=False):
        if one != other:
            break
        common += 1
    return text[:common], text[common:], reference[common:]
