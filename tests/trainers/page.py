"""The tables of docs/trainers.md, from the results of a run: `python -m tests.trainers.page RESULTS.json` writes them there.

RESULTS.json is written by the slow tests beside this file where TRAINERS_TEST_RESULTS names it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.trainers.cases import CASES, FAILED, REFUSED, SAME, TAKEN, Case, Place

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->"
HEAD = ("trainer", "version", "it writes", "what ckptd does", "what you set", "loaded by", "difference")


def page(text: str, results: dict[str, Any]) -> str:
    """Return the page `text` with its tables made anew. `results`: a case's name → versions, outcomes and error."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + _tables(results) + END + rest.partition(END)[2]


def _tables(results: dict[str, Any]) -> str:
    rows = [HEAD, tuple("---" for _ in HEAD), *(_row(case, results[case.name]) for case in CASES)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    notes: dict[str, list[str]] = {}
    for case in CASES:
        if case.note:
            notes.setdefault(case.note, []).append(case.trainer)
    ran = [f"- {'; '.join(trainers)}: {note}." for note, trainers in notes.items()]
    return table + "\n\nThese trainers ran differently from a usual training:\n\n" + "\n".join(ran) + "\n"


def _row(case: Case, result: dict[str, Any]) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    outcomes = [
        f"{name}: " + ", ".join(_shown(case, place) for place in places)
        for name in (TAKEN, SAME, FAILED, REFUSED)
        if (places := [place for place in case.places if result["outcomes"][place.path] == name])
    ]
    error = result["error"]
    return (
        case.trainer, versions, case.writes, "; ".join(outcomes), case.setting, case.loader_named or "–",
        "–" if error is None else f"{error:.0e}" if error else "0",
    )  # fmt: skip


def _shown(case: Case, place: Place) -> str:
    """A directory of the trainer, with the folder of its export where that has another name; both below the run."""
    directory = "the run's own directory" if place.path == "." else f"`{place.path}`"
    folder = place.export.removeprefix(f"{case.name}/")
    return directory if folder in ("", place.path) else f"{directory} as `{folder}`"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8"), json.loads(Path(sys.argv[1]).read_text("utf-8"))), "utf-8")
