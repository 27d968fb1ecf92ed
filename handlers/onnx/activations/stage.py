"""The stage `onnx-activations`: the onnx stage's graph with a model's activations as further outputs, and the contract of those.

Run by `handlers/__main__.py`. Inputs, cache and the outputs that were there stay as they are, so that the graph can replace the plain one
everywhere. Activations are found in the graph that is there; if an optimization removed one, the model is exported again with eager
attention, and this is recorded as a fallback. Peak memory is about three times the fp32 weights.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.folder import examples
from handlers.graphs import graph_file
from handlers.graphs.comparison import GraphMismatchError
from handlers.graphs.graphset import GraphSet, copy_beside, read
from handlers.graphs.sessions import check_form, described
from handlers.onnx.activations.capture import OPERATION, Site
from handlers.onnx.activations.contract import MEANINGS, ActivationOutput, contract
from handlers.onnx.activations.locate import NotInGraphError, add_outputs, find
from handlers.onnx.activations.reference import Torchs, ask_torch, compare
from handlers.onnx.options import OnnxOptions

FAMILIES = ("causal", "encoder")


def shape_of(site: Site, array: np.ndarray, graphs: GraphSet) -> tuple[int | str, ...]:
    """A site's shape, with the names of the graph's axes."""
    if site.kind != "attentions":
        return "batch", "sequence", array.shape[-1]
    mask = next(port for port in graphs.graphs[0].inputs if port.name == "attention_mask")
    return "batch", array.shape[1], "sequence", mask.shape[1]


def contract_outputs(torchs: Torchs, graphs: GraphSet) -> tuple[ActivationOutput, ...]:
    """The outputs as the contract lists them."""
    return tuple(
        ActivationOutput(
            name=site.name, kind=site.kind, layer=site.layer, module=site.module, dtype="float32",
            shape=shape_of(site, torchs.answers[0][site.name], graphs), meaning=MEANINGS[site.kind].format(layer=site.layer),
        )
        for site in torchs.sites
    )  # fmt: skip


def size_warning(outputs: Sequence[ActivationOutput]) -> str:
    """How much a graph with these outputs gives for each token, in words."""
    fixed = sum(4 * int(output.shape[-1]) for output in outputs if output.kind != "attentions")
    heads = sum(int(output.shape[1]) for output in outputs if output.kind == "attentions")
    pairs = f", and {4 * heads:,} bytes more for each token that it may attend to" if heads else ""
    return f"all layers were requested: the {len(outputs)} outputs take {fixed:,} bytes for each token{pairs}"


def _derived(source: Path, graphs: GraphSet, torchs: Torchs, shapes: dict[str, tuple[int | str, ...]], context: StageContext) -> Path:
    """The onnx stage's graph with the activations that are in it, written into the staging folder."""
    scratch = graph_file.fresh_folder(Path(context.temporary) / "activations")
    model = ir.load(source / graphs.graphs[0].file)
    wanted = {name: torchs.answers[0][name] for name in torchs.names}
    add_outputs(model, find(model, wanted, torchs.calls[0], scratch, context.limits.threads), shapes)
    graph_file.describe(model, {"ckptd.activations": " ".join(shapes)})
    (written,) = graph_file.write({graph_file.MODEL_FILE: model}, Path(context.staging), scratch).values()
    return written


def _finish_derived(written: Path, graphs: GraphSet, context: StageContext) -> GraphSet:
    check_form(written)
    file = graph_file.place(written, Path(context.staging))
    made = described("model", file, context.limits.threads)
    return graphs.model_copy(update={"graphs": (made,)})


def _source_graphs(folder: Path) -> GraphSet:
    graphs = read(folder)
    if graphs.family not in FAMILIES or len(graphs.graphs) != 1:
        cause = (
            f"a model of the family {graphs.family} with {len(graphs.graphs)} graphs is not a single graph of a language model or"
            " an encoder"
        )
        raise Permanent(FaultCode.NO_ACTIVATIONS, OPERATION, cause, "leave the onnx-activations variants out", path=folder)
    fixed = [port.name for port in graphs.graphs[0].inputs if port.name == "input_ids" and port.shape != ("batch", "sequence")]
    if fixed:
        cause = f"the exported graph's {fixed[0]} have a fixed size, but activations need a dynamic batch and length"
        raise Permanent(FaultCode.NO_ACTIVATIONS, OPERATION, cause, "leave the onnx-activations variants out", path=folder)
    return graphs


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Add the activations that `[onnx] layers` and `kinds` name to the exported graph, and check each against torch."""
    source, merged, staging = Path(context.inputs["onnx"]), Path(context.inputs["merge"]), Path(context.staging)
    graphs = _source_graphs(source)
    reporter.progress(0.05, "asking torch for the activations")
    torchs = ask_torch(merged, graphs, context)
    gc.collect()
    outputs = contract_outputs(torchs, graphs)
    warnings = [size_warning(outputs)] if context.work.options(OnnxOptions).layers == "all" else []
    for warning in warnings:
        reporter.warn(warning)
    reporter.progress(0.3, "finding the activations in the graph")
    fallbacks: list[Fallback] = []
    try:
        written = _derived(source, graphs, torchs, {output.name: output.shape for output in outputs}, context)
        made = _finish_derived(written, graphs, context)
    except NotInGraphError as lost:
        fallbacks.append(Fallback(wanted="outputs of the exported graph", taken="an export of their own", reason=str(lost)))
        reporter.warn(f"exporting again: {lost}")
        made = _exported_again(torchs, outputs, graphs, context, reporter)
    reporter.progress(0.85, "checking the activations against torch")
    try:
        errors = compare(staging / graph_file.MODEL_FILE, torchs, context.limits.threads)
    except GraphMismatchError as error:
        remedy = "leave the onnx-activations variants out, and keep the attempt's log"
        raise Permanent(FaultCode.ACTIVATIONS_MISMATCH, OPERATION, str(error), remedy, path=source) from error
    made.write(staging)
    copy_beside(source, staging, graphs)
    for name in (examples.ACTIVATIONS, examples.HOSTING):
        examples.place_beside(name, staging)
    agreed = contract(staging, made.files, outputs, task=made.task, layers=torchs.layers)
    agreed.write(staging)
    return StageOutput(figures=_figures(made, errors, agreed.content, staging), warnings=warnings, fallbacks=fallbacks)


def _exported_again(
    torchs: Torchs, outputs: Sequence[ActivationOutput], graphs: GraphSet, context: StageContext, reporter: Reporter
) -> GraphSet:  # fmt: skip
    from handlers.onnx.activations.export import export  # the exporters take seconds to import, and are rarely needed

    return export(torchs, outputs, graphs, context, reporter)


def _figures(made: GraphSet, errors: dict[str, float], content: str, staging: Path) -> dict[str, Any]:
    return {
        "activations": list(errors),
        "content": content,
        "nodes": made.graphs[0].nodes,
        "graph_bytes": made.size(staging),
        "external_data": bool(made.graphs[0].data),
        "relative_error": max(errors.values()),
        "relative_errors": errors,
    }
