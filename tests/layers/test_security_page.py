"""The page of threats names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([a-z_/]+\.py)::(test_[a-z0-9_]+)`")


def test_every_threat_names_a_test_that_is_there() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| can", "| ---"))]
    assert len(rows) > 25
    assert [row for row in rows if not NAMED.search(row)] == []
    named = NAMED.findall(text)
    absent = [f"{file}::{test}" for file, test in named if f"def {test}(" not in _text(ROOT / "tests" / file)]
    assert absent == []


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
