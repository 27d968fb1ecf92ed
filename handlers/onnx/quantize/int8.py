"""The stage `onnx-int8`: the fp32 graph with int8 weights.

Run by `handlers/__main__.py` on the output of the onnx stage. Whether the loss of accuracy is acceptable is the
validate stage's verdict; here the graph must be valid, load, and have shrunk. Free of torch, so the child is quick.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.graphs.graphset import Graph, read
from handlers.graphs.rewriting import Counts
from handlers.graphs.weights.spool import Spool
from handlers.onnx.quantize.cache import keep_in_int8
from handlers.onnx.quantize.derive import quantize
from handlers.onnx.quantize.rewriters.int8_rewriter import OPERATION, IntegerRewriter

SMALL_ENOUGH = 0.5
"""Share of the fp32 size from which on the result is worth a warning."""


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Quantize the graphs of the onnx stage into the staging folder and copy the files beside them."""

    def turn(_: Graph, model: ir.Model, spool: Spool | None) -> Counts:
        return IntegerRewriter(model, context.limits.threads, spool).rewrite()

    made, output = quantize(
        context, reporter, turn, dtype="int8", operation=OPERATION, doing="turning weights into int8", small_enough=SMALL_ENOUGH
    )
    keep_in_int8(context, reporter, read(Path(context.inputs["onnx"])), made, output)
    return output
