"""The stage `onnx-int8`: the fp32 graph with int8 weights.

Run by `handlers/__main__.py` on the output of the onnx stage. Whether the loss of accuracy is acceptable is the
validate stage's verdict; here the graph must be valid, load, and have shrunk. Free of torch, so the child is quick.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx_ir as ir

from daemon.contract import StageContext
from daemon.errors import Permanent
from handlers.onnx import graph
from handlers.onnx.integer import Counts, IntegerRewriter
from handlers.onnx.session import check_form, open_session
from handlers.progress import Reporter, StageOutput

OPERATION = "quantize the ONNX graph to int8"
SMALL_ENOUGH = 0.5
"""Share of the fp32 size from which on the result is worth a warning."""


def _names(graph: ir.Graph) -> tuple[list[str | None], list[str | None]]:
    return [value.name for value in graph.inputs], [value.name for value in graph.outputs]


def _check(path: Path, wanted: tuple[list[str | None], list[str | None]], threads: int) -> None:
    """Permanent when the graph does not load or its inputs and outputs are not those of the fp32 graph."""
    remedy = "leave onnx-int8 out, and read the attempt's log"
    try:
        session = open_session(path, threads)
    except RuntimeError as error:
        cause = f"onnxruntime does not take the graph: {str(error).strip().splitlines()[0]}"
        raise Permanent("invalid-graph", OPERATION, cause, remedy, path=path) from error
    if ([value.name for value in session.get_inputs()], [value.name for value in session.get_outputs()]) != wanted:
        raise Permanent("invalid-graph", OPERATION, "inputs or outputs changed their names", remedy, path=path)


def _figures(counts: Counts, file: graph.GraphFile, source_bytes: int) -> dict[str, object]:
    return {
        "quantized_nodes": sum(counts.quantized.values()),
        "kept_fp32_nodes": counts.kept,
        "op_types": dict(counts.quantized),
        "shared_tables": counts.shared_tables,
        "size_ratio_to_onnx": round(file.size / source_bytes, 4),
        "graph_bytes": file.size,
        "external_data": file.external_data,
        "nodes": file.nodes,
    }


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Quantize the graph of the onnx stage into the staging folder and copy the files beside it."""
    folder, staging = Path(context.inputs["onnx"]), Path(context.staging)
    source = folder / graph.MODEL_FILE
    weights = {graph.MODEL_FILE, graph.DATA_FILE}
    source_bytes = sum((folder / name).stat().st_size for name in weights if (folder / name).is_file())
    reporter.progress(0.05, "reading the graph")
    model = ir.load(source)
    names = _names(model.graph)
    reporter.progress(0.1, "turning weights into int8")
    counts = IntegerRewriter(model).rewrite()
    if not counts.quantized:
        raise Permanent(
            "nothing-to-quantize", OPERATION, "no matrix product with a constant weight was found", "leave onnx-int8 out", path=source
        )
    graph.describe(model, {"ckptd.dtype": "int8"})
    reporter.progress(0.75, "saving the graph")
    scratch = graph.fresh_folder(Path(context.temporary) / "int8")
    written = graph.write(model, staging, scratch)
    del model
    check_form(written)
    file = graph.place(written, staging)
    reporter.progress(0.85, "checking the graph")
    _check(file.path, names, context.limits.threads)
    for path in sorted(folder.iterdir()):
        if path.name not in weights:
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, staging / path.name)
    ratio = file.size / source_bytes
    warnings = (
        []
        if ratio < SMALL_ENOUGH
        else [f"the int8 graph is {ratio:.0%} of the fp32 one: most of its weights are of a kind that stays in fp32"]
    )
    return StageOutput(figures=_figures(counts, file, source_bytes), warnings=warnings)
