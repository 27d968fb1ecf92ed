"""How often the gate was wrong where it was tried: what `benchmarks/gate.py --publish` measured, for the reports of this release."""

from __future__ import annotations

from pathlib import Path

from handlers.report.model import GateErrors

FILE = Path(__file__).with_suffix(".json")


def measured() -> GateErrors:
    """Give the error rates that this release was measured with."""
    return GateErrors.model_validate_json(FILE.read_bytes())
