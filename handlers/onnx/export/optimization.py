"""The onnx stage's last step on a finished folder: its graphs are optimized as `[onnx] optimize` says, and each step is verified.

Called when the configuration and the tokenizer are beside the graphs, so that the comparison can use real texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from daemon.contract.faults.errors import CkptdError
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter
from handlers.folder.playback import tokenize
from handlers.graphs.attention import marks
from handlers.graphs.attention.fusing import can_fuse, sharing
from handlers.graphs.graphset import GraphSet
from handlers.models.files import read_json
from handlers.onnx.optimize.run import Optimized, OptimizeOptions, optimize
from handlers.onnx.optimize.step import RANK
from handlers.onnx.optimize.steps import CACHED_ATTENTION, KEEPING_ATTENTION, STANDARD_ATTENTION, STEPS
from handlers.onnx.options import OnnxOptions
from handlers.texts.built_in import FURTHER

TEXTS = 4
"""Built-in texts that are compared: each takes a prefill and a step of every graph for every change."""


def optimize_export(
    context: StageContext, graphs: GraphSet, verify: Callable[[Path], float], reporter: Reporter, *, template: bool = False,
    without: Collection[str] = (),
) -> Optimized:  # fmt: skip
    """Optimize the staging folder's graphs in place; `verify` compares a folder with the model and raises when they differ.

    With `template`, attention is put into one operator on trial only: the layers of the graph are still to be repeated. `without`: roles of
    graphs that stay as they are.
    """
    staging, options = Path(context.staging), context.work.options(OnnxOptions)
    level, united = options.optimize, options.attention == "operator"
    steps = tuple(step for step in STEPS if united or step is not STANDARD_ATTENTION)
    trials = (CACHED_ATTENTION,) if level == "auto" else ()
    if template and RANK.get(level, 0) >= RANK[CACHED_ATTENTION.level]:
        steps, trials = tuple(step for step in steps if step is not CACHED_ATTENTION), (CACHED_ATTENTION,)
        cached = [graph for graph in graphs.graphs if any(port.name.startswith("past_key_values.") for port in graph.inputs)]
        if cached and all(can_fuse(ir.load(staging / graph.file)) for graph in cached):
            steps = tuple(other for step in steps if (other := KEEPING_ATTENTION.get(step.name, step)) is not None)
    optimized = optimize(
        staging, graphs, "basic" if level == "auto" else level, verify,
        read_json(staging / "config.json", "read the model's configuration"),
        OptimizeOptions(threads=context.limits.threads, texts=_texts(staging), steps=steps, trials=trials, without=without),
        lambda share, what: reporter.progress(0.87 + 0.1 * share, what),
    )  # fmt: skip
    proved = [report.graph for report in optimized.reports if report.good and report.name == CACHED_ATTENTION.name and not report.kept]
    kept = sharing({graph.role: ir.load(staging / graph.file) for graph in optimized.graphs.graphs})
    marked = optimized.graphs.model_copy(update={"extra": marks.marked(optimized.graphs.extra, proved=proved, shared=kept)})
    marked.write(staging)
    return replace(optimized, graphs=marked, warnings=(*optimized.warnings, *(_not_united(optimized) if united else ())))


def _not_united(optimized: Optimized) -> list[str]:
    """A warning where no graph has the operator that was asked for."""
    tried = [report for report in optimized.reports if report.name == STANDARD_ATTENTION.name]
    if any(report.kept for report in tried):
        return []
    reasons = "; ".join(f"{report.graph}: {report.reason}" for report in tried) or "onnx.optimize leaves graphs as they are"
    return [f'onnx.attention = "operator" changed nothing ({reasons})']


def _texts(staging: Path) -> tuple[tuple[int, ...], ...]:
    """Token ids of a few texts; none where the folder's tokenizer can't give them."""
    try:
        return tuple(tuple(row) for row in tokenize(staging, FURTHER[:TEXTS]).rows)
    except CkptdError:
        return ()
