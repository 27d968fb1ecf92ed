"""The table of docs/operating.md's metrics, made of `daemon.operating.monitoring.metrics`: `python -m tests.monitoring.page` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from daemon.operating.monitoring.metrics import table

PAGE = Path(__file__).parents[2] / "docs/operating.md"
_TABLE = re.compile(r"\| name \| kind \| labels \| what it says \|\n(?:\|.*\n)+")

if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(lambda _: table(), PAGE.read_text("utf-8")), "utf-8")
