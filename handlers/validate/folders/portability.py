"""Checks of an artifact's graphs without running them: whether it gives the same outputs on other processors, by the bound of
`handlers.graphs.integer_products`, and whether rounded weights are those of the graph that they come from. In a separate process.

Called by the stages `check-VARIANT` once the artifact's worker has ended: reading graphs takes libraries that they do without.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract import cpu
from daemon.contract.jobs.figures import CheckFigures
from daemon.contract.values import Json
from handlers.validate.folders.programs import NoAnswer, asked

MODULE = "handlers.graphs.integer_products"
SECONDS = 900


@dataclass(frozen=True)
class Inspected:
    """What the graphs of a folder say."""

    figures: CheckFigures = field(default_factory=CheckFigures)
    """`needs`, which processors give these answers, and `integer_products` where integers are multiplied; nothing without graphs."""
    fault: str | None = None
    """Why it may give other outputs on other processors."""
    weights: str | None = None
    """Why its weights are not those of the folder that it was made of."""


def check(folder: Path, arithmetic: str = "float", source: Path | None = None, *, nearest: bool = False) -> Inspected:
    """Inspect an artifact's graphs; nothing where it has none.

    `arithmetic`: what they multiply, as in StageSpec. `source`: the folder that it was made of, with its weights rounded to the `nearest`
    step or otherwise; None where it is no form of another variant.
    """
    if not any(folder.glob("*.onnx")):
        return Inspected()
    compared = ["--source", str(source), *(["--nearest"] if nearest else [])] if source else []
    try:
        return asked(MODULE, [str(folder), "--json", *compared], SECONDS, lambda text: _inspected(json.loads(text), arithmetic))
    except NoAnswer as why:
        return Inspected(fault=f"it is not known whether its integer products overflow on other processors: {why}")


def _inspected(report: Json, arithmetic: str) -> Inspected:
    doubt = cpu.doubt(arithmetic, cpu.here())
    figures, products = CheckFigures(needs=report["needs"] + (f"; {doubt}" if doubt else "")), report["integer_products"]
    return Inspected(figures if products is None else figures.plus(integer_products=products), report["fault"], report["weights"])
