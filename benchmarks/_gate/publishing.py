"""What readers see of the gate's error rates: the data file of the reports, a figure, and the tables of docs/figures.md.

`gate.py --publish` writes all three from one run, so that they can't contradict each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks import _common
from benchmarks._gate import curve, drawing
from handlers.report.content import gate

PAGE, FIGURE = _common.ROOT / "docs" / "figures.md", _common.ROOT / "docs" / "images" / "gate.svg"
BEGIN, END = "<!-- written by benchmarks/gate.py --publish -->", "<!-- end -->"


def publish(figures: dict[str, Any]) -> None:
    """Write them."""
    whole = figures["whole"]
    names = ("artifacts", *curve.RATES, "median_prompts")
    gate.FILE.write_text(json.dumps({name: whole[name] for name in names}, indent=1) + "\n")
    FIGURE.write_text(drawing.drawn(figures["operating_curve"]))
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n\n" + "\n".join(tables(figures)) + "\n\n" + END + rest.split(END, 1)[1])


def tables(figures: dict[str, Any]) -> Iterator[str]:
    """Give the lines between the marks of the page."""
    yield from _table("limits", {"all": figures["whole"], **{name: figures["by_limits"].get(name) for name in curve.CLASSES}})
    yield ""
    yield "![Share of mutants that pass, by the share of greedy choices that they change, for each class of limits](images/gate.svg)"
    yield ""
    yield "| limits | of the limit of `kl` | bad ones that pass | sound ones that fail |"
    yield "| --- | --- | --- | --- |"
    for name, rows in figures["tightened"].items():
        for row in rows:
            yield f"| {name} | × {row['part']:g} | {_cell(row['false_accept'])} | {_cell(row['false_reject'])} |"
    yield ""
    yield from _table("fault", figures["by_fault"])
    yield ""
    yield from _table("form", figures["by_form"])
    yield ""
    yield from _table("models", figures["by_family"])


def _table(first: str, rows: dict[str, Any]) -> Iterator[str]:
    yield f"| {first} | artifacts | bad ones that passed | sound ones that failed | undecided | beyond the limit of `kl`, passed |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, row in rows.items():
        if row is not None:
            yield f"| {name} | {row['artifacts']} | " + " | ".join(_cell(row[rate]) for rate in (*curve.RATES, "beyond_limit")) + " |"


def _cell(rate: dict[str, Any] | None) -> str:
    if rate is None:
        return ""
    low, high = (f"{100 * share:.1f}" for share in rate["interval"])
    return f"{rate['hits']} of {rate['of']} ({low} to {high} %)"
