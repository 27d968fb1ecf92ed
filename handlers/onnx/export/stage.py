"""The stage `onnx`: exports the model as fp32 graphs with dynamic lengths; the model's family defines which graphs.

Run by `handlers/__main__.py`. `profiles` and `attempts` decide which strategies are tried, and what may be given up if no strategy keeps
everything. An architecture of no known family gives Permanent `unsupported-architecture`. Peak memory is about one and a half times the
fp32 weights beside what the libraries and the exporter's own graph take: the model and the files that it is loaded from, later the weights'
file, mapped once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from daemon.contract.formats.stages import LAYER_BY_LAYER
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.families.base import (
    architecture,
    has_experts,
)
from handlers.families.chain.family import forms
from handlers.families.choice import choose
from handlers.folder import companions, examples
from handlers.layerwise import skeleton
from handlers.models.files import read_json
from handlers.models.folder import ModelFolder
from handlers.onnx.export import profiles, templated
from handlers.onnx.export.building import Built, wanted_form
from handlers.onnx.export.failures.attempts import AllStrategiesFailedError, StrategyFailure, StrategyResult, attempts, try_strategies
from handlers.onnx.export.failures.failure_report import failure_with_report
from handlers.onnx.export.history import History, PastExport, key_of
from handlers.onnx.options import OnnxOptions
from handlers.onnx.tracing.strategies import LOSSES, STRATEGIES, Strategy, named, starting_at


def export(context: StageContext, reporter: Reporter, strategies: Sequence[Strategy], known: PastExport | None = None) -> StageOutput:
    """Export by the first of `strategies` that works; AllStrategiesFailedError when none does. `known`: what came of an earlier export."""
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    family = choose(source)

    def warn(failure: StrategyFailure) -> None:
        reporter.warn(f"{failure.strategy} failed ({failure.diagnosis.meaning}): {failure.reason}")

    try:
        climbed = try_strategies(
            strategies, lambda strategy: templated.build(strategy, family, context, reporter), path=str(source), on_failure=warn
        )
    except AllStrategiesFailedError as error:
        if context.strategy != LAYER_BY_LAYER:
            raise
        why = "; ".join(dict.fromkeys(failure.reason.removeprefix("NoTemplateError: ") for failure in error.failures))
        raise skeleton.refuse(source, f"no template can be made of its graph: {why}") from error
    reporter.progress(0.86, "copying configuration and tokenizer")
    tokenizer = companions.place(context, source, staging)
    if "window" not in climbed.result.graphs.extra:  # the example script can't feed a window of fixed length
        examples.place(family.task.name, staging)
    built = climbed.result
    if built.optimization is None:
        from handlers.onnx.export.optimization import optimize_export  # what only fills a template has no use for it

        polished = optimize_export(context, built.graphs, built.verify, reporter)
        built = replace(
            built, graphs=polished.graphs, optimization=polished.figures, warnings=[*built.warnings, *polished.warnings],
            error=built.error if polished.error is None else polished.error,
        )  # fmt: skip
    figures = _figures(climbed, built, architecture(source), staging)
    figures |= {"optimization": built.optimization, "tokenizer": tokenizer.form, "chat_template": tokenizer.chat_template}
    figures |= {"relative_error": built.error, "template": built.template}
    unread = [tokenizer.warning] if tokenizer.warning and family.task.reads_text else []
    return StageOutput(
        strategy=climbed.strategy.name, figures=figures, warnings=[*built.warnings, *unread],
        fallbacks=_fallbacks(climbed, strategies[0].name, context, known),
    )  # fmt: skip


def _fallbacks(climbed: StrategyResult[Built], first: str, context: StageContext, known: PastExport | None) -> list[Fallback]:
    """The fallbacks: another strategy than the first, and each property that this strategy gives up."""
    opset, strategy = context.work.export.opset, climbed.strategy
    reasons = "; ".join(f"{failure.strategy}: {failure.reason}" for failure in climbed.failures)
    fallbacks = [Fallback(wanted=first, taken=strategy.name, reason=reasons)] if climbed.failures else []
    if not reasons and known is not None:
        reasons = "; ".join(f"{name}: {code}" for name, code in known.failed.items()) + " (at an earlier export with the same versions)"
    fallbacks += forms(climbed.result.graphs.extra, context.work.options(OnnxOptions).layers_per_graph, climbed.result.undivided or reasons)
    for loss in strategy.losses(opset, wanted_form(context)):
        wanted, taken = LOSSES[loss]
        if loss == "opset":
            wanted, taken = f"opset {opset}", f"opset {climbed.result.opset}"
        limit = (
            f"{strategy.name} writes no newer one" if loss == "opset" and not strategy.other_opset else "no strategy that keeps it worked"
        )
        fallbacks.append(Fallback(wanted=wanted, taken=taken, reason=f"{limit}: {reasons}" if reasons else limit))
    return fallbacks


def _figures(climbed: StrategyResult[Built], built: Built, name: str, staging: Path) -> dict[str, object]:
    graphs = built.graphs.graphs
    return {
        "architecture": name,
        "task": built.graphs.task,
        "attention": climbed.strategy.attention,
        "opset": built.opset,
        "nodes": sum(graph.nodes for graph in graphs),
        "export_seconds": round(built.seconds, 3),
        "inputs": [port.name for port in graphs[0].inputs],
        "outputs": [port.name for port in graphs[0].outputs],
        "graphs": {graph.role: graph.file for graph in graphs},
        "graph_bytes": built.graphs.size(staging),
        "external_data": any(graph.data for graph in graphs),
        "relative_error": built.error,
        "attempts": attempts(climbed, climbed.failures, round(built.seconds, 3)),
    }


def _parameters(source: Path) -> int:
    """Parameters of the model; an estimate from the files' size where only pickled weights are there."""
    model = ModelFolder(source)
    return model.file_bytes // 2 if model.pickled else model.parameters


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Export the merged model into the staging folder, with configuration, tokenizer and chat template beside it."""
    source, opset, options = Path(context.inputs["merge"]), context.work.export.opset, context.work.options(OnnxOptions)
    if context.strategy not in ("default", LAYER_BY_LAYER):
        named(STRATEGIES, context.strategy)
    family, name = choose(source), architecture(source)
    profile = profiles.settled(options.profile, _parameters(source))
    history = History(Path(context.cache))
    key = key_of(name, read_json(source / "config.json", "read the model's configuration"), opset, profile)
    known = history.get(key)
    strategies = profiles.order(
        STRATEGIES, profile, opset=opset, form=wanted_form(context), experts=has_experts(source),
        external=options.external_data == "always", known=known, wanted="" if options.exporter == "ckptd" else options.exporter,
    )  # fmt: skip
    if context.strategy not in ("default", LAYER_BY_LAYER):
        strategies = starting_at(STRATEGIES, context.strategy)
    try:
        output = export(context, reporter, strategies, known)
    except AllStrategiesFailedError as error:
        raise failure_with_report(error, context, source, opset=opset, kind=family.task.kind, profile=profile) from error
    rows: Any = output.figures["attempts"]
    lately = {row["strategy"]: row["code"] for row in rows if row.get("code", "not-installed") != "not-installed"}
    failed = known.failed if known is not None and known.strategy == output.strategy else {}
    history.put(key, PastExport(strategy=output.strategy, failed={**failed, **lately}))
    output.figures["profile"] = profile
    if options.exporter != "ckptd" and strategies[0].name != options.exporter:
        output.warnings.append(
            f"onnx.exporter: {options.exporter} was not tried first: it gives up what the profile {profile} does not permit"
        )
    return output
