"""The stage `onnx-int8`: the fp32 graph with int8 weights.

Run by `handlers/__main__.py` on the output of the onnx stage. Whether the loss of accuracy is acceptable is the
validate stage's verdict; here the graph must be valid, load, and have shrunk. Free of torch, so the child is quick.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.graphs.graphset import Graph, GraphSet, read
from handlers.graphs.rewriting import Counts
from handlers.graphs.spool import spool_for
from handlers.onnx.quantize.cache import keep_in_int8
from handlers.onnx.quantize.derive import derive
from handlers.onnx.quantize.int8_rewriter import OPERATION, IntegerRewriter

SMALL_ENOUGH = 0.5
"""Share of the fp32 size from which on the result is worth a warning."""


def _figures(counts: Counts, made: GraphSet, size: int, source_bytes: int) -> dict[str, object]:
    return {
        **counts.figures,
        "size_ratio_to_onnx": round(size / source_bytes, 4),
        "graph_bytes": size,
        "external_data": any(graph.data for graph in made.graphs),
        "nodes": sum(graph.nodes for graph in made.graphs),
    }


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Quantize the graphs of the onnx stage into the staging folder and copy the files beside them."""
    folder, staging = Path(context.inputs["onnx"]), Path(context.staging)
    total, source = Counts(), read(folder)
    spool = spool_for(source.size(folder), Path(context.temporary))

    def quantize(_: Graph, model: ir.Model) -> ir.Model:
        total.add(IntegerRewriter(model, context.limits.threads, spool).rewrite())
        return model

    made = derive(context, reporter, quantize, dtype="int8", operation=OPERATION, doing="turning weights into int8")
    if not total.quantized:
        cause = "no matrix product with a constant weight was found"
        raise Permanent(FaultCode.NOTHING_TO_QUANTIZE, OPERATION, cause, "leave onnx-int8 out", path=folder)
    size, source_bytes = made.size(staging), source.size(folder)
    ratio = size / source_bytes
    warnings = (
        []
        if ratio < SMALL_ENOUGH
        else [f"the size of the int8 graph is {ratio:.0%} of the fp32 one: most of its weights are of a kind that stays in fp32"]
    )
    output = StageOutput(figures=_figures(total, made, size, source_bytes), warnings=warnings)
    keep_in_int8(context, reporter, source, made, output)
    return output
