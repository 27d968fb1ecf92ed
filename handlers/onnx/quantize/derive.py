"""Another form of an exported ONNX folder: the same graphs with other weights, beside the same files.

Called by the stages that quantize or convert what the onnx stage made; the model is never exported twice. Free of torch, so
such a child is quick.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.graphs import graph_file
from handlers.graphs.attention import marks
from handlers.graphs.attention.fusing import fuse, sharing
from handlers.graphs.attention.reading import OtherFormError
from handlers.graphs.graphset import Graph, GraphSet, copy_beside, read
from handlers.graphs.rewriting import Counts
from handlers.graphs.sessions import check_form, described
from handlers.graphs.weights.spool import Spool, spool_for
from handlers.onnx.options import OnnxOptions

Transform = Callable[[Graph, ir.Model], ir.Model]
"""Changes a loaded graph in place, or returns another graph instead."""
Turn = Callable[[Graph, ir.Model, Spool | None], Counts]
"""Turns the weights of a loaded graph, which may wait in a spool, in place."""


def derive(
    context: StageContext, reporter: Reporter, transform: Transform, *, dtype: str, operation: str, doing: str, quantized: bool = True
) -> GraphSet:  # fmt: skip
    """Transform every graph of the onnx stage into the staging folder, check them, and copy the files beside them.

    Graphs with quantized weights, which few other runtimes take anyway, get their attention in one operator of onnxruntime's where that
    was shown to be equal, unless `[onnx] optimize` forbids it. `doing` is what the progress says. Permanent `invalid-graph` when
    onnxruntime does not take a result, or when its inputs or outputs have other names than before.
    """
    folder, staging = Path(context.inputs["onnx"]), Path(context.staging)
    source = read(folder)
    models: dict[str, ir.Model] = {}
    for number, graph in enumerate(source.graphs):
        reporter.progress(0.05 + 0.65 * number / len(source.graphs), f"{doing}: {graph.role}")
        models[graph.file] = transform(graph, ir.load(folder / graph.file))
        if quantized and _wants_operator(context) and graph.role in marks.roles(source.extra, marks.PROVED):
            with contextlib.suppress(OtherFormError):
                models[graph.file] = fuse(models[graph.file])
        graph_file.describe(models[graph.file], {"ckptd.dtype": dtype})
    reporter.progress(0.7, "saving the graphs")
    extra = marks.marked(source.extra, shared=sharing({graph.role: models[graph.file] for graph in source.graphs}))
    written = graph_file.write(models, staging, graph_file.fresh_folder(Path(context.temporary) / "derived"))
    models.clear()
    gc.collect()  # graphs are cycles of references, and hold their weights
    for path in written.values():
        check_form(path)
    files = {name: graph_file.place(path, staging) for name, path in written.items()}
    reporter.progress(0.85, "checking the graphs")
    graphs = tuple(_checked(graph, files[graph.file], context.limits.threads, operation) for graph in source.graphs)
    made = source.model_copy(update={"graphs": graphs, "dtype": dtype, "extra": extra})
    copy_beside(folder, staging, source)
    made.write(staging)
    return made


def quantize(
    context: StageContext, reporter: Reporter, turn: Turn, *, dtype: str, operation: str, doing: str, small_enough: float
) -> tuple[GraphSet, StageOutput]:  # fmt: skip
    """Turn the weights of every graph of the onnx stage, see `derive`; a result above `small_enough` of the fp32 size is warned of.

    Permanent `nothing-to-quantize` where no graph has a weight to turn.
    """
    folder, counts = Path(context.inputs["onnx"]), Counts()
    spool = spool_for(read(folder).size(folder), Path(context.temporary))

    def transform(graph: Graph, model: ir.Model) -> ir.Model:
        counts.add(turn(graph, model, spool))
        return model

    made = derive(context, reporter, transform, dtype=dtype, operation=operation, doing=doing)
    if not counts.quantized:
        raise unturned(context, operation)
    return made, StageOutput(figures={**counts.figures, **sizes(context, made)}, warnings=too_large(context, made, small_enough))


def unturned(context: StageContext, operation: str) -> Permanent:
    """The error where no graph has a weight to turn."""
    cause = "no matrix product with a constant weight was found"
    return Permanent(FaultCode.NOTHING_TO_QUANTIZE, operation, cause, f"leave {context.stage} out", path=Path(context.inputs["onnx"]))


def sizes(context: StageContext, made: GraphSet) -> dict[str, object]:
    """How large the graphs in the staging folder are, for the stage's result."""
    return {
        "size_ratio_to_onnx": round(_ratio(context, made), 4),
        "graph_bytes": made.size(Path(context.staging)),
        "external_data": any(graph.data for graph in made.graphs),
        "nodes": sum(graph.nodes for graph in made.graphs),
    }


def too_large(context: StageContext, made: GraphSet, small_enough: float) -> list[str]:
    """A warning where the result is above that share of the fp32 graphs."""
    ratio = _ratio(context, made)
    words = f"the size of {context.stage} is {ratio:.0%} of the fp32 graph: most of its weights are of a kind that stays in fp32"
    return [words] if ratio >= small_enough else []


def _ratio(context: StageContext, made: GraphSet) -> float:
    folder = Path(context.inputs["onnx"])
    return made.size(Path(context.staging)) / read(folder).size(folder)


def _wants_operator(context: StageContext) -> bool:
    return context.work.options(OnnxOptions).optimize in ("auto", "extended", "all")


def _checked(before: Graph, file: graph_file.GraphFile, threads: int, operation: str) -> Graph:
    remedy = "leave the variant out, and read the attempt's log"
    try:
        after = described(before.role, file, threads)
    except RuntimeError as error:
        cause = f"onnxruntime does not take the graph: {str(error).strip().splitlines()[0]}"
        raise Permanent(FaultCode.INVALID_GRAPH, operation, cause, remedy, path=file.path) from error
    names = [[port.name for port in ports] for ports in (before.inputs, before.outputs)]
    if [[port.name for port in ports] for ports in (after.inputs, after.outputs)] != names:
        raise Permanent(FaultCode.INVALID_GRAPH, operation, "inputs or outputs changed their names", remedy, path=file.path)
    return after
