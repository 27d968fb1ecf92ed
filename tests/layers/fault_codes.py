"""docs/fault-codes.md, made of `daemon/contract/faults/fault_codes.py`: `python -m tests.layers.fault_codes` writes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "daemon/contract/faults/fault_codes.py"
PAGE = ROOT / "docs/fault-codes.md"
_HEAD = """# Fault codes

Every fault has a code beside its sentence: in the log (`code`), in the journal, in `result.json` and in `report.json`. Search and alert on
the code; sentences may become better words. A code keeps its spelling and its meaning once it is released. "The message" below is the
sentence that comes with the code: it names the file, the figures and often the command. JOB stands for an export's id in `ckptd list`.

Three kinds of codes are not in these tables: `exit-N` is a child that ended by itself with exit code N above 128; a format from another
package has codes of its own, each with the package's name and a dot before it (`vendor.what-failed`,
[how](writing-a-format.md)); and an old journal or report may hold codes that a later version no longer gives.

Made of `daemon/contract/faults/fault_codes.py` by `python -m tests.layers.fault_codes`; change it there.
"""
_PART = re.compile(
    r'^    # (?P<group>.+)$|^    (?P<name>[A-Z0-9_]+) = "(?P<code>[a-z0-9-]+)"'
    r'\n    """(?P<meaning>.+?)(?:\n\n    To do: (?P<advice>(?:(?!""")[\s\S])+?))?\n? *"""$',
    re.MULTILINE,
)


class Explained(NamedTuple):
    """What the source says of a code."""

    meaning: str
    advice: str
    """What to do about it; "" where the source does not say."""


def explanations() -> dict[str, dict[str, Explained]]:
    """Group → code → what it means and what to do, as the source has them."""
    found: dict[str, dict[str, Explained]] = {}
    for part in _PART.finditer(SOURCE.read_text("utf-8")):
        if part["group"]:
            found[part["group"]] = {}
        else:
            found[list(found)[-1]][part["code"]] = Explained(part["meaning"], " ".join((part["advice"] or "").split()))
    return found


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for group, codes in explanations().items():
        lines += [f"## {group}", "", "| code | what it means | what to do |", "| --- | --- | --- |"]
        lines += [f"| `{code}` | {said.meaning} | {said.advice} |" for code, said in codes.items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
