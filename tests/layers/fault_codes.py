"""docs/fault-codes.md, made of `daemon/contract/fault_codes.py`: `python -m tests.layers.fault_codes` writes it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "daemon/contract/fault_codes.py"
PAGE = ROOT / "docs/fault-codes.md"
_HEAD = """# Fault codes

Every fault has a code beside its sentence: in the log (`code`), in the journal, in `result.json` and in `report.json`. Search and alert on
the code; sentences may become better words. A code keeps its spelling and its meaning once it is released.

Three kinds of codes are not in these tables: `exit-N` is a child that ended by itself with exit code N above 128; a format from another
package has codes of its own, each with the package's name and a dot before it (`vendor.what-failed`,
[how](writing-a-format.md)); and an old journal or report may hold codes that a later version no longer gives.

Made of `daemon/contract/fault_codes.py` by `python -m tests.layers.fault_codes`; change it there.
"""
_PART = re.compile(r'^    # (?P<group>.+)$|^    (?P<name>[A-Z0-9_]+) = "(?P<code>[a-z0-9-]+)"\n    """(?P<meaning>.+)"""$', re.MULTILINE)


def meanings() -> dict[str, dict[str, str]]:
    """Group → code → what it means, as the source has them."""
    found: dict[str, dict[str, str]] = {}
    for part in _PART.finditer(SOURCE.read_text("utf-8")):
        if part["group"]:
            found[part["group"]] = {}
        else:
            found[list(found)[-1]][part["code"]] = part["meaning"]
    return found


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for group, codes in meanings().items():
        lines += [f"## {group}", "", "| code | what it means |", "| --- | --- |"]
        lines += [f"| `{code}` | {meaning} |" for code, meaning in codes.items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
