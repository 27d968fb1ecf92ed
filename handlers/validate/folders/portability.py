"""Checks of an artifact's graphs without running them: whether it gives the same outputs on other processors, by the bound of
`handlers.graphs.integer_products`, and whether rounded weights are those of the graph that they come from. In a separate process.

Called by the stages `check-VARIANT` once the artifact's worker has ended: reading graphs takes libraries that they do without.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract import cpu
from daemon.contract.jobs.figures import CheckFigures
from handlers.child import warm
from handlers.toolchains import use

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
        done = asked(MODULE, [str(folder), "--json", *compared], SECONDS)
        report = json.loads(done.stdout)
        products = report["integer_products"]
        doubt = cpu.doubt(arithmetic, cpu.here())
        needs = report["needs"] + (f"; {doubt}" if doubt else "")
        figures = CheckFigures(needs=needs)
        return Inspected(figures if products is None else figures.plus(integer_products=products), report["fault"], report["weights"])
    except subprocess.TimeoutExpired:
        why = f"it took longer than {SECONDS} seconds"
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines()
        why = lines[-1][:300] if lines else f"exit code {done.returncode}"
    return Inspected(fault=f"it is not known whether its integer products overflow on other processors: {why}")


def asked(module: str, words: list[str], seconds: float, *, python: str = "") -> subprocess.CompletedProcess[str]:
    """Give what one of our modules says, in a process of its own; raises subprocess.TimeoutExpired.

    `python`: of the environment that ckptd is installed in, if it is to run there even where this stage runs in a toolchain.
    """
    toolchain = use.own()
    if toolchain is None and warm.is_forked():  # which has its libraries
        return warm.called(lambda: int(pkgutil.resolve_name(f"{module}:main")(words)), seconds)
    toolchain = None if python else toolchain
    return subprocess.run(
        use.command(toolchain, module, *words, python=python), env=use.environment(toolchain), capture_output=True, text=True,
        encoding="utf-8", errors="replace", timeout=seconds, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
