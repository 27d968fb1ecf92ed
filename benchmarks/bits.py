"""What choosing the bits of each layer costs: the search of onnx-mixed beside a grid over all choices of 4 and 8 bits.

    python benchmarks/bits.py [--json FILE] [--seconds 60] [--steps 60]

The demo's model is trained and exported to ONNX; the limit is a third of the divergence with 4 bits everywhere. The search runs as the
stage does. The grid writes each of the 2^groups graphs, loads it and compares it with fp32 on the same texts, and takes the smallest within
the limit: what a person's script over onnxruntime's quantizer would do. `search_cpu_s`, `grid_cpu_s`: CPU seconds; `search_exports`,
`grid_exports`: graphs that were written; `search_trials`: runs of the texts that wrote nothing; `size_over_grid`: bytes of the search's
graph over those of the grid's best.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _stages
from daemon.contract.jobs.messages import ChildLimits, StageContext
from daemon.contract.jobs.options import Target


def context_of(folder: Path, export: Path, kl: float) -> StageContext:
    """The job file's content of the stage onnx-mixed with a budget."""
    inputs = {"onnx": export / "onnx", "merge": export / "pytorch"}
    path = _stages.job_file(folder, "onnx-mixed", inputs, export / "pytorch", limits=ChildLimits(threads=2, nice=0, idle=False))
    context = StageContext.model_validate_json(path.read_bytes())
    work = context.work.model_copy(update={"export": context.work.export.model_copy(update={"target": Target(kl=kl)})})
    return context.model_copy(update={"work": work})


def timed(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the work gives, with its CPU seconds."""
    began = time.process_time()
    return {**work(), "cpu_s": time.process_time() - began}


def search(export: Path, kl: float) -> dict[str, Any]:
    """The stage, in this process."""
    import io

    from handlers.child.progress import Reporter
    from handlers.onnx.mixed import stage

    with tempfile.TemporaryDirectory() as name:
        output = stage.run(context_of(Path(name), export, kl), Reporter(io.StringIO()))
    return {**output.figures, "exports": 1}


def grid(export: Path, kl: float) -> dict[str, Any]:
    """Every choice of 4 and 8 bits, each written, loaded and compared."""
    import io

    from handlers.child.progress import Reporter
    from handlers.folder.playback import Player
    from handlers.graphs import graphset
    from handlers.onnx.mixed import stage
    from handlers.onnx.mixed.trial import Trial
    from handlers.onnx.mixed.weights import find, grouped
    from handlers.validate.arithmetic.comparison import Comparison

    source = graphset.read(export / "onnx")
    with tempfile.TemporaryDirectory() as name:
        first = context_of(Path(name, "first"), export, kl)
        weights = find(export / "onnx", source, export / "pytorch")
        rows, groups = stage.tokens_of(first, export / "onnx").rows, grouped(weights)
        trial = Trial(export / "onnx", source, weights, rows, stage.schemes_of(first), 2)
        wanted = [[call.outputs["logits"][0] for call in Player(export / "onnx", source, 2).play(row)] for row in rows]
        found = []
        for number, bits in enumerate(itertools.product((4, 8), repeat=len(groups))):
            context = context_of(Path(name, str(number)), export, kl)
            by_key = {key: width for group, width in zip(groups, bits, strict=True) for key in group.keys}
            made, _ = stage.written(context, Reporter(io.StringIO()), trial, weights, by_key)
            folder, comparison = Path(context.staging), Comparison()
            for row, logits in zip(rows, wanted, strict=True):
                for mine, call in zip(logits, Player(folder, made, 2).play(row), strict=True):
                    comparison.add(mine, call.outputs["logits"][0])
            found.append((made.size(folder), comparison.figures(1.0).kl or 0.0))
    return {"graph_bytes": min(size for size, divergence in found if divergence <= kl), "exports": len(found), "groups": len(groups)}


def main() -> None:
    """Train, export, search and look at all, print the table, write the JSON file."""
    from benchmarks import artifacts

    parser = _common.parser("What choosing the bits of each layer costs.")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of the base")
    parser.add_argument("--steps", type=int, default=60, help="training steps of the adapter")
    options = parser.parse_args()
    with _common.scratch("bits") as folder:
        checkpoint = artifacts.train(folder, options.seconds, options.steps)
        artifacts.export(folder, checkpoint, ["pytorch", "onnx"])
        export = next((folder / "export").rglob("MANIFEST.json")).parent
        lowest = search(export, 1e9)["kl_with_4_bits_everywhere"]  # also loads the libraries for both
        searched, gridded = timed(lambda: search(export, lowest / 3)), timed(lambda: grid(export, lowest / 3))
    figures = {
        "groups": gridded["groups"], "limit_kl": lowest / 3, "search_kl": searched["kl_on_calibration"],
        "search_cpu_s": searched["cpu_s"], "grid_cpu_s": gridded["cpu_s"], "cpu_over_grid": searched["cpu_s"] / gridded["cpu_s"],
        "search_exports": searched["exports"], "grid_exports": gridded["exports"], "search_trials": searched["trials"],
        "size_over_grid": searched["graph_bytes"] / gridded["graph_bytes"],
    }  # fmt: skip
    _common.write("bits", figures, options.json, libraries=("onnxruntime", "onnx-ir"))
    print(json.dumps(searched["bits"]))


if __name__ == "__main__":
    main()
