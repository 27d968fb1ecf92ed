"""docs/museum.md, from the exhibits and `results.json`: `python -m tests.museum.page` writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.museum.checks import checks
from tests.museum.exhibit import Exhibit, collected
from tests.museum.measuring import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "museum.md"
ROOMS = {
    "merge": "Merges", "adapters": "Adapters", "tokens": "Tokens and templates", "files": "Other files", "quantization": "Quantization",
    "graphs": "Graphs", "length": "Length", "heads": "Heads, encoders, translators", "gguf": "GGUF",
}  # fmt: skip
HEAD = """# The museum: published bugs, rebuilt

Bugs of programs that merge, quantize and convert models, as their issues and pull requests tell them. Each is rebuilt on a small real
artifact: a *mutant* is a copy of it with that bug. The *gate*, which is all checks before a publication, must reject the mutant with the
reason that fits, and must pass the artifact that it was made of. Both together are an *exhibit*. The bugs
are those programs', and most of them are mended; what stands here is what such a bug would do to an artifact, and what
[validation](validation.md) says of it. `tests/museum/rooms` has them; `python -m tests.museum.measuring FOLDER` runs them all.

Four were not caught when they were first rebuilt, and the checks that catch them are there since: the quantizations that are skipped,
the untied weights that are said to be tied, and the end token of config.json. What is
[not seen](validation.md#what-it-catches-and-what-it-does-not) still stands on that page.
"""
NEEDED = """## What each check is needed for

The checks are listed from the gate's code: kinds of findings, thresholds, limits, and the rest of the verdict. A check is needed for an
exhibit if the mutant passes without it. Each check is needed for at least one, but for that of processors of pictures and sound, of which
no published bug is rebuilt.

| check | exhibits that pass without it |
| --- | --- |
"""


def page(exhibits: Mapping[str, Exhibit], results: Mapping[str, Any]) -> str:
    """Return the page. `results`: a place → what `measuring` recorded of it."""
    parts = [HEAD]
    for room, title in ROOMS.items():
        rows = [_row(exhibit, results[place]) for place, exhibit in exhibits.items() if place.startswith(f"{room}/")]
        parts.append(f"## {title}\n\n| published bug | the mutant | the gate's reason |\n| --- | --- | --- |\n" + "".join(rows))
    needed = {name: [exhibits[place].name for place in exhibits if name in results[place]["slips"]] for name in checks()}
    parts.append(NEEDED + "".join(f"| {name} | {'; '.join(places) or '–'} |\n" for name, places in needed.items()))
    return "\n".join(parts)


def _row(exhibit: Exhibit, result: Mapping[str, Any]) -> str:
    repository, _, number = exhibit.bug.partition("#")
    bug = f"**{exhibit.name}** ([{exhibit.bug}](https://github.com/{repository}/issues/{number})). {exhibit.happened}"
    return f"| {bug} | `{exhibit.variant}`: {exhibit.mutant} | {_plain(_reason(exhibit, result))} |\n"


def _reason(exhibit: Exhibit, result: Mapping[str, Any]) -> str:
    """Return the reason that the exhibit's words are in."""
    return next(reason for reason in result["reasons"] if re.search(exhibit.words, reason))


def _plain(text: str) -> str:
    """Return a reason as a cell: its first clauses, without marks of Markdown."""
    text = " ".join(text.split())
    short = text if len(text) <= 260 else text[:260].rsplit(" ", 1)[0] + " …"
    return f"“{short}”".replace("|", "\\|").replace("<", "‹").replace(">", "›").replace("_", "\\_").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(page(collected(), json.loads(RESULTS.read_text("utf-8"))), "utf-8")
