"""The table of the metrics in docs/operating.md, made of `daemon.operating.monitoring.metrics.table`: `python -m tests.monitoring.page`."""

from __future__ import annotations

import re
from pathlib import Path

from daemon.operating.monitoring.metrics.table import table

PAGE = Path(__file__).parents[2] / "docs/operating.md"
_TABLE = re.compile(r"\| name \| kind \| labels \| what it says \|\n(?:\|.*\n)+")

if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(lambda _: table(), PAGE.read_text("utf-8")), "utf-8")
