"""The page "Does it work with my trainer?", from what a run told: `python -m tests.trainers.page RESULTS.json > docs/trainers.md`.

RESULTS.json is written by the slow tests beside this file where TRAINERS_TEST_RESULTS names it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.trainers.cases import CASES, FAILED, REFUSED, SAME, TAKEN, Case

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
INTRODUCTION = """\
# Does it work with my trainer?

A test writes this table. Each trainer ran a few steps on a small model and on a CPU, while one `ckptd run` was running. Every
directory that a trainer saved was exported exactly once, or `ckptd status` lists it with the reason why not. Each export was loaded by the
loader named here, in the trainer's own environment, and compared with the outputs of the live model at that step. The difference is the
largest one, divided by the root mean square of these outputs.

"""
NOTES = """

**exported**: merged, checked, published as `{run}/step-N`, or as `{run}/final` if the name has no number. **known already**: the trainer
saved the same files there that it had already saved in a checkpoint; they are exported once. **failed, with the reason**: the export
failed, nothing was published, and `ckptd status` and the report say why and what to do. **refused**: `ckptd status` lists the directory
under "seen, not watched", with the command that converts it into a form that can be exported.

ckptd also finds checkpoints of trainers that are not in this table, by their content: [what is taken for a checkpoint](checkpoints.md). To
check one of your directories, run `ckptd explain DIRECTORY`. To make the table yourself, run
`TRAINERS_TEST_RESULTS=FILE pytest tests/trainers -m slow`, which installs the libraries into separate environments, and then
`python -m tests.trainers.page FILE > docs/trainers.md`.
"""
HEAD = ("trainer", "version", "it writes", "what ckptd does", "what you set", "loaded by", "difference")


def page(results: dict[str, Any]) -> str:
    """The page in Markdown. `results`: a case's name → versions, outcomes and error."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(_row(case, results[case.name]) for case in CASES)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    ran = [f"- {case.trainer}: {case.note}." for case in CASES if case.note]
    return INTRODUCTION + table + "\n\nThese trainers ran differently from a usual training:\n\n" + "\n".join(ran) + NOTES


def _row(case: Case, result: dict[str, Any]) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    outcomes = [
        f"{name}: " + ", ".join("the run's own directory" if path == "." else f"`{path}`" for path in paths)
        for name in (TAKEN, SAME, FAILED, REFUSED)
        if (paths := [path for path, outcome in result["outcomes"].items() if outcome == name])
    ]
    error = result["error"]
    return (
        case.trainer, versions, case.writes, "; ".join(outcomes), case.setting, case.loader_named or "–",
        "–" if error is None else f"{error:.0e}" if error else "0",
    )  # fmt: skip


def main() -> None:
    """Print the page of a file of results."""
    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
