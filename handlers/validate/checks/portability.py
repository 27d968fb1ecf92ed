"""Checks whether an artifact gives the same outputs on other processors: the bound of `handlers.onnx.graphs.integer_products`, computed in
a separate process.

Called by the validate stage once the artifact's worker has ended: reading graphs takes libraries that the stage itself does without.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from daemon.contract import cpu
from daemon.contract.jobs.figures import CheckFigures
from handlers.toolchains import use

MODULE = "handlers.onnx.graphs.integer_products"
SECONDS = 900


def check(folder: Path, arithmetic: str = "float") -> tuple[CheckFigures, str | None]:
    """(figures, fault) of an artifact's graphs; nothing where it has none. `arithmetic`: what they multiply, as in StageSpec.

    The figures are `needs`, which processors give these answers, and `integer_products` where integers are multiplied.
    """
    if not any(folder.glob("*.onnx")):
        return CheckFigures(), None
    toolchain = use.own()
    command = use.command(toolchain, MODULE, str(folder), "--json")
    try:
        done = subprocess.run(
            command, env=use.environment(toolchain), capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False
        )
        told = json.loads(done.stdout)
        products = told["integer_products"]
        doubt = cpu.doubt(arithmetic, cpu.here())
        needs = told["needs"] + (f"; {doubt}" if doubt else "")
        figures = CheckFigures(needs=needs)
        return figures if products is None else figures.plus(integer_products=products), told["fault"]
    except subprocess.TimeoutExpired:
        why = f"it took longer than {SECONDS} seconds"
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines()
        why = lines[-1][:300] if lines else f"exit code {done.returncode}"
    return CheckFigures(), f"it is not known whether its integer products overflow on other processors: {why}"
