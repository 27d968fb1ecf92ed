"""The stage `onnx`: the model as fp32 graphs, every length dynamic; which graphs, its family knows.

Run by `handlers/__main__.py`. Architectures of no known family
end as Permanent `unsupported-architecture`. Peak memory is about three times the fp32 weights.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon import __version__
from daemon.contract import Fallback, StageContext
from handlers.model_files import copy_config, copy_tokenizer, read_json
from handlers.onnx import graph
from handlers.onnx.chatter import Chatter
from handlers.onnx.exporters import Request
from handlers.onnx.families import choose
from handlers.onnx.families.base import Family, architecture, has_experts, release
from handlers.onnx.graphset import GraphSet
from handlers.onnx.session import check_form, described
from handlers.onnx.strategies import STRATEGIES, Failure, NotApplicableError, Strategy, climb, starting_at
from handlers.progress import Reporter, StageOutput
from handlers.tasks import Task


class OpsetMismatchError(Exception):
    """The exporter wrote another operator set than it was told to."""


@dataclass(frozen=True)
class Built:
    """Graphs that agree with torch."""

    graphs: GraphSet
    opset: int
    error: float
    """Largest error against torch, in units of the reference's largest value."""
    seconds: float
    """Time of the export proper: tracing and translating, without loading, checking and saving."""
    warnings: list[str]


def metadata(context: StageContext, opset: int, task: Task) -> dict[str, object]:
    """What a graph's metadata says: where the model comes from and what it is."""
    checkpoint = context.checkpoint
    return {
        "ckptd.version": __version__,
        "ckptd.run": checkpoint.run,
        "ckptd.step": checkpoint.step,
        "ckptd.checkpoint": checkpoint.digest,
        "ckptd.base": checkpoint.base_name,
        "ckptd.opset": opset,
        "ckptd.dtype": "float32",
        "ckptd.task": "text-generation-with-past" if task.kind == "causal" else task.name,
        "ckptd.model_type": read_json(Path(context.inputs["merge"]) / "config.json", "read the model's configuration").get("model_type"),
    }


@dataclass(frozen=True)
class _Exported:
    """What is left of an export when torch's copy of the weights is gone."""

    written: dict[str, Path]
    """Role → graph."""
    reference: Any
    opset: int
    seconds: float


def _export_and_write(strategy: Strategy, family: Family, context: StageContext, reporter: Reporter) -> _Exported:
    """Everything that needs torch's copy of the weights; they are let go of when this returns."""
    source, opset = Path(context.inputs["merge"]), strategy.opset(context.work.export.opset)
    if strategy.experts and not has_experts(source):
        raise NotApplicableError
    scratch = graph.fresh_folder(Path(context.temporary) / strategy.name)
    reporter.progress(0.05, f"loading the model for {strategy.name}")
    model = family.load(source, strategy.tracing)
    reference = family.refer(model, source)
    reporter.progress(0.15, f"exporting with {strategy.name}, opset {opset}")
    started = time.monotonic()
    exported = {part.role: strategy.export(Request(part, opset, scratch)) for part in family.parts(model, reference)}
    seconds = time.monotonic() - started
    reporter.progress(0.65, "naming axes and tidying the graph")
    for one in exported.values():
        if graph.opset(one) != opset:
            raise OpsetMismatchError(f"the exporter wrote opset {graph.opset(one)} where {opset} was asked for")
        graph.tidy(one)
    finished = family.finish(exported)
    signatures = family.signatures(reference)
    for role, one in finished.items():
        graph.fold_transposed_weights(one)
        graph.name_axes(one, signatures[role][1])
        graph.describe(one, metadata(context, opset, family.task))
    reporter.progress(0.7, "saving the graph")
    files = {role: signatures[role][0] for role in finished}
    written = graph.write({files[role]: one for role, one in finished.items()}, Path(context.staging), scratch)
    release(model)
    for path in written.values():
        check_form(path)
    return _Exported({role: written[files[role]] for role in finished}, reference, opset, seconds)


def build(strategy: Strategy, family: Family, context: StageContext, reporter: Reporter) -> Built:
    """Export by one strategy and check the result against torch; whatever it wrote is gone again if it fails."""
    staging = Path(context.staging)
    try:
        with Chatter() as chatter:
            exported = _export_and_write(strategy, family, context, reporter)
            gc.collect()  # the exporter's program and the model refer to each other in cycles
            files = {role: graph.place(path, staging) for role, path in exported.written.items()}
            reporter.progress(0.85, "checking the graph against torch")
            error = family.verify(staging, exported.reference, threads=context.limits.threads)
        graphs = GraphSet(
            task=family.task.name, family=family.name, dtype="float32", opset=exported.opset,
            graphs=tuple(described(role, file, context.limits.threads) for role, file in files.items()),
        )  # fmt: skip
        graphs.write(staging)
        return Built(graphs, exported.opset, error, exported.seconds, chatter.lines)
    except Exception:
        graph.clear(staging)
        raise


def export(context: StageContext, reporter: Reporter, strategies: Sequence[Strategy]) -> StageOutput:
    """Export by the first of `strategies` that works; Permanent when none does."""
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    family = choose(source)

    def told(failure: Failure) -> None:
        reporter.warn(f"{failure.strategy} failed: {failure.reason}")

    strategy, built, fallbacks = climb(strategies, lambda one: build(one, family, context, reporter), path=str(source), on_failure=told)
    wanted = context.work.export.opset
    if built.opset != wanted:
        reason = f"{strategy.name} writes no newer one"
        fallbacks.append(Fallback(wanted=f"opset {wanted}", taken=f"opset {built.opset}", reason=reason))
    reporter.progress(0.95, "copying configuration and tokenizer")
    copy_config(source, staging)
    tokenizer = copy_tokenizer(Path(context.pin), Path(context.base) if context.base else None, staging)
    warnings = [*built.warnings, *([] if tokenizer.source else ["neither the checkpoint nor the base has a tokenizer"])]
    return StageOutput(
        strategy=strategy.name, figures=_figures(built, strategy, architecture(source), staging), warnings=warnings, fallbacks=fallbacks
    )


def _figures(built: Built, strategy: Strategy, name: str, staging: Path) -> dict[str, object]:
    graphs = built.graphs.graphs
    return {
        "architecture": name,
        "task": built.graphs.task,
        "attention": strategy.attention,
        "opset": built.opset,
        "nodes": sum(one.nodes for one in graphs),
        "export_seconds": round(built.seconds, 3),
        "inputs": [port.name for port in graphs[0].inputs],
        "outputs": [port.name for port in graphs[0].outputs],
        "graphs": {one.role: one.file for one in graphs},
        "graph_bytes": built.graphs.size(staging),
        "external_data": any(one.data for one in graphs),
        "relative_error": built.error,
    }


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Export the merged model into the staging folder, with configuration, tokenizer and chat template beside it."""
    return export(context, reporter, starting_at(STRATEGIES, context.strategy))
