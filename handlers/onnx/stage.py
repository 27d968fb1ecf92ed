"""The stage `onnx`: one fp32 graph for prefill and decoding, with KV cache, every length dynamic.

Run by `handlers/__main__.py`. Takes decoder-only language models whose cache is keys and values a layer; other
architectures end as Permanent `unsupported-architecture`. Peak memory is about three times the fp32 weights.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon import __version__
from daemon.contract import Fallback, StageContext
from handlers.model_files import copy_config, copy_tokenizer, read_json
from handlers.onnx import causal, check, graph
from handlers.onnx.chatter import Chatter
from handlers.onnx.exporters import Request
from handlers.onnx.session import check_form
from handlers.onnx.strategies import STRATEGIES, Failure, NotApplicableError, Strategy, climb, starting_at
from handlers.progress import Reporter, StageOutput


class OpsetMismatchError(Exception):
    """The exporter wrote another operator set than it was told to."""


@dataclass(frozen=True)
class Built:
    """A graph that agrees with torch."""

    file: graph.GraphFile
    reference: causal.Reference
    opset: int
    error: float
    """Largest |Δlogit| against torch, in units of the largest |logit|."""
    seconds: float
    """Time of the export proper: tracing and translating, without loading, checking and saving."""
    warnings: list[str]


def metadata(context: StageContext, opset: int) -> dict[str, object]:
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
        "ckptd.task": "text-generation-with-past",
        "ckptd.model_type": read_json(Path(context.inputs["merge"]) / "config.json", "read the model's configuration").get("model_type"),
    }


def _export_and_write(strategy: Strategy, context: StageContext, reporter: Reporter) -> tuple[Path, causal.Reference, int, float]:
    """Everything that needs torch's copy of the weights; they are let go of when this returns."""
    source, opset = Path(context.inputs["merge"]), strategy.opset(context.work.export.opset)
    if strategy.experts and not causal.has_experts(source):
        raise NotApplicableError
    scratch = graph.fresh_folder(Path(context.temporary) / strategy.name)
    reporter.progress(0.05, f"loading the model for {strategy.name}")
    model = causal.load(source, strategy.attention, strategy.experts)
    reference = causal.refer(model, source)
    reporter.progress(0.15, f"exporting with {strategy.name}, opset {opset}")
    started = time.monotonic()
    exported = strategy.export(Request(model, reference.signature, opset, scratch))
    seconds = time.monotonic() - started
    reporter.progress(0.65, "naming axes and tidying the graph")
    if graph.opset(exported) != opset:
        raise OpsetMismatchError(f"the exporter wrote opset {graph.opset(exported)} where {opset} was asked for")
    graph.tidy(exported)
    graph.fold_transposed_weights(exported)
    graph.name_axes(exported, reference.signature)
    graph.describe(exported, metadata(context, opset))
    reporter.progress(0.7, "saving the graph")
    written = graph.write(exported, Path(context.staging), scratch)
    causal.release(model)
    check_form(written)
    return written, reference, opset, seconds


def build(strategy: Strategy, context: StageContext, reporter: Reporter) -> Built:
    """Export by one strategy and check the result against torch; whatever it wrote is gone again if it fails."""
    staging = Path(context.staging)
    try:
        with Chatter() as chatter:
            written, reference, opset, seconds = _export_and_write(strategy, context, reporter)
            gc.collect()  # the exporter's program and the model refer to each other in cycles
            file = graph.place(written, staging)
            reporter.progress(0.85, "checking the graph against torch")
            error = check.verify(file.path, reference, threads=context.limits.threads)
        return Built(file, reference, opset, error, seconds, chatter.lines)
    except Exception:
        graph.clear(staging)
        raise


def export(context: StageContext, reporter: Reporter, strategies: Sequence[Strategy]) -> StageOutput:
    """Export by the first of `strategies` that works; Permanent when none does."""
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    architecture = causal.require_causal(source)

    def told(failure: Failure) -> None:
        reporter.warn(f"{failure.strategy} failed: {failure.reason}")

    strategy, built, fallbacks = climb(strategies, lambda one: build(one, context, reporter), path=str(source), on_failure=told)
    wanted = context.work.export.opset
    if built.opset != wanted:
        reason = f"{strategy.name} writes no newer one"
        fallbacks.append(Fallback(wanted=f"opset {wanted}", taken=f"opset {built.opset}", reason=reason))
    reporter.progress(0.95, "copying configuration and tokenizer")
    copy_config(source, staging)
    tokenizer = copy_tokenizer(Path(context.pin), Path(context.base) if context.base else None, staging)
    warnings = [*built.warnings, *([] if tokenizer.source else ["neither the checkpoint nor the base has a tokenizer"])]
    return StageOutput(strategy=strategy.name, figures=_figures(built, strategy, architecture), warnings=warnings, fallbacks=fallbacks)


def _figures(built: Built, strategy: Strategy, architecture: str) -> dict[str, object]:
    signature = built.reference.signature
    return {
        "architecture": architecture,
        "attention": strategy.attention,
        "opset": built.opset,
        "nodes": built.file.nodes,
        "export_seconds": round(built.seconds, 3),
        "inputs": list(signature.inputs),
        "outputs": list(signature.outputs),
        "graph_bytes": built.file.size,
        "external_data": built.file.external_data,
        "relative_error": built.error,
    }


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Export the merged model into the staging folder, with configuration, tokenizer and chat template beside it."""
    return export(context, reporter, starting_at(STRATEGIES, context.strategy))
