"""The stage `onnx`: exports the model as fp32 graphs with dynamic lengths; the model's family defines which graphs.

Run by `handlers/__main__.py`. `profiles` and `attempts` decide which strategies are tried, and what may be given up if no strategy keeps
everything. An architecture of no known family gives Permanent `unsupported-architecture`. Peak memory is about one and a half times the
fp32 weights beside what the libraries and the exporter's own graph take: the model and the files that it is loaded from, later the weights'
file, mapped once.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.jobs.messages import Fallback, StageContext
from daemon.contract.version import __version__
from handlers.child.progress import Reporter, StageOutput
from handlers.models.files import read_json
from handlers.models.folder import ModelFolder
from handlers.models.tasks import Task
from handlers.onnx.export import profiles
from handlers.onnx.export.attempts import AllStrategiesFailedError, StrategyFailure, StrategyResult, attempts, try_strategies
from handlers.onnx.export.failure_report import failure_with_report
from handlers.onnx.export.family_choice import choose
from handlers.onnx.export.history import History, PastExport, key_of
from handlers.onnx.export.optimization import optimize_export
from handlers.onnx.families.base import (
    Family,
    Form,
    Graphs,
    NotApplicableError,
    Part,
    architecture,
    extra_facts,
    has_experts,
    release,
    shaped,
)
from handlers.onnx.families.chain.family import CHAIN, Layered, divided, forms, place_example
from handlers.onnx.folder import companions, examples
from handlers.onnx.graphs import graph_file
from handlers.onnx.graphs.graphset import GraphSet
from handlers.onnx.graphs.sessions import check_form, described
from handlers.onnx.graphs.signature import Signature
from handlers.onnx.options import OnnxOptions
from handlers.onnx.tracing.exporters import Request
from handlers.onnx.tracing.library_warnings import LibraryWarnings, told
from handlers.onnx.tracing.model_rewrites import rewritten
from handlers.onnx.tracing.strategies import LOSSES, STRATEGIES, Strategy, named, starting_at


class OpsetMismatchError(Exception):
    """The exporter wrote another operator set than the one asked for."""


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
    verify: Callable[[Path], float]
    """Compares a folder of these graphs with torch's answers; gives the error, or raises."""
    undivided: str = ""
    """Why it is one graph where a chain was asked for."""


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
        "ckptd.task": f"{task.name}-with-past" if task.kind != "encoder" and context.work.options(OnnxOptions).cache else task.name,
        "ckptd.model_type": read_json(Path(context.inputs["merge"]) / "config.json", "read the model's configuration").get("model_type"),
    }


@dataclass(frozen=True)
class _Exported:
    """What remains of an export after torch's copy of the weights is released."""

    written: dict[str, Path]
    """Role → graph."""
    reference: Any
    opset: int
    seconds: float


def wanted_form(context: StageContext) -> Form:
    """The graphs that are asked for."""
    return Form(cache=context.work.options(OnnxOptions).cache)


def _export_and_write(strategy: Strategy, family: Family, context: StageContext, reporter: Reporter) -> _Exported:
    """Everything that needs torch's copy of the weights; they are released when this returns."""
    source, opset = Path(context.inputs["merge"]), strategy.opset(context.work.export.opset)
    if strategy.experts and not has_experts(source):
        raise NotApplicableError
    scratch = graph_file.fresh_folder(Path(context.temporary) / strategy.name)
    reporter.progress(0.05, f"loading the model for {strategy.name}")
    model = family.load(source, strategy.tracing)
    reference = family.refer(model, source)
    reporter.progress(0.15, f"exporting with {strategy.name}, opset {opset}")
    if isinstance(family, Layered):
        return _export_chain(strategy, family, context, model, reference, scratch)
    started = time.monotonic()
    with rewritten(strategy.rewrite, model):
        exported = {part.role: strategy.export(Request(part, opset, scratch, context=context)) for part in family.parts(model, reference)}
    seconds = time.monotonic() - started
    reporter.progress(0.65, "naming axes and tidying the graph")
    finished = _finished(exported, family, reference, opset, metadata(context, opset, family.task))
    reporter.progress(0.7, "saving the graph")
    files = {role: file for role, (file, _) in family.signatures(reference).items() if role in finished}
    staging = Path(context.staging)
    apart = strategy.external or context.work.options(OnnxOptions).external_data == "always"
    written = graph_file.write({files[role]: one for role, one in finished.items()}, staging, staging if apart else scratch)
    graph_file.let_go((*exported.values(), *finished.values()))
    release(model)
    for path in written.values():
        check_form(path)
    return _Exported({role: written[files[role]] for role in finished}, reference, opset, seconds)


def _export_chain(strategy: Strategy, family: Layered, context: StageContext, model: Any, reference: Any, scratch: Path) -> _Exported:
    """As `_export_and_write` once the model is loaded, for a chain: each graph is on disk before the next one is exported."""
    opset, started = strategy.opset(context.work.export.opset), time.monotonic()
    facts, signatures = metadata(context, opset, family.task), family.signatures(reference)

    def make(part: Part) -> Any:
        one = strategy.export(Request(part, opset, scratch, context))
        _tidied(one, opset)
        _described(one, signatures[part.role][1], facts)
        return one

    with rewritten(strategy.rewrite, model):
        written = family.write(model, reference, make, Path(context.staging))
    release(model)
    for path in written.values():
        check_form(path)
    return _Exported(written, reference, opset, time.monotonic() - started)


def _tidied(one: Any, opset: int) -> None:
    if graph_file.opset(one) != opset:
        raise OpsetMismatchError(f"the exporter wrote opset {graph_file.opset(one)} where {opset} was asked for")
    graph_file.tidy(one)


def _described(one: Any, signature: Signature, facts: dict[str, object]) -> None:
    graph_file.fold_transposed_weights(one)
    graph_file.name_axes(one, signature)
    graph_file.describe(one, facts)


def _finished(exported: Graphs, family: Family, reference: Any, opset: int, facts: dict[str, object]) -> Graphs:
    """The graphs that are written: tidied, with named axes and facts about themselves."""
    for one in exported.values():
        _tidied(one, opset)
    finished = family.finish(exported)
    signatures = family.signatures(reference)
    for role, one in finished.items():
        _described(one, signatures[role][1], facts)
    return finished


def build(strategy: Strategy, family: Family, context: StageContext, reporter: Reporter) -> Built:
    """Export by one strategy and check the result against torch; if that fails, its files are removed."""
    staging = Path(context.staging)
    form, per_graph = strategy.form(wanted_form(context)), context.work.options(OnnxOptions).layers_per_graph
    family, undivided = divided(family, Path(context.inputs["merge"]), form, per_graph, must=strategy.chain)
    family = family if isinstance(family, Layered) else shaped(family, form)
    try:
        with LibraryWarnings() as chatter:
            exported = _export_and_write(strategy, family, context, reporter)
            gc.collect()  # the exporter's program and the model refer to each other in cycles
            files = {role: graph_file.place(path, staging) for role, path in exported.written.items()}
            reporter.progress(0.85, "checking the graph against torch")
            verify = functools.partial(family.verify, reference=exported.reference, threads=context.limits.threads)
            error = verify(staging)
        warnings = told(chatter, family, exported.reference)
        graphs = GraphSet(
            task=family.task.name, family=family.name, dtype="float32", opset=exported.opset,
            graphs=tuple(described(role, file, context.limits.threads) for role, file in files.items()),
            extra=extra_facts(family, exported.reference),
        )  # fmt: skip
        graphs.write(staging)
        return Built(graphs, exported.opset, error, exported.seconds, warnings, verify, undivided)
    except Exception:
        graph_file.clear(staging)
        raise


def export(context: StageContext, reporter: Reporter, strategies: Sequence[Strategy], known: PastExport | None = None) -> StageOutput:
    """Export by the first of `strategies` that works; AllStrategiesFailedError when none does. `known`: what came of an earlier export."""
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    family = choose(source)

    def warn(failure: StrategyFailure) -> None:
        reporter.warn(f"{failure.strategy} failed ({failure.diagnosis.meaning}): {failure.reason}")

    climbed = try_strategies(strategies, lambda one: build(one, family, context, reporter), path=str(source), on_failure=warn)
    reporter.progress(0.86, "copying configuration and tokenizer")
    tokenizer = companions.place(context, source, staging)
    if CHAIN in climbed.result.graphs.extra:
        place_example(staging)
    elif "window" not in climbed.result.graphs.extra:  # the example script can't feed a window of fixed length
        examples.place(family.task.name, staging)
    warnings = [*climbed.result.warnings, *([tokenizer.warning] if tokenizer.warning else [])]
    polished = optimize_export(context, climbed.result.graphs, climbed.result.verify, reporter)
    figures = _figures(climbed, polished.graphs, architecture(source), staging)
    figures |= {"optimization": polished.figures, "tokenizer": tokenizer.form, "chat_template": tokenizer.chat_template}
    if polished.error is not None:
        figures["relative_error"] = polished.error
    return StageOutput(
        strategy=climbed.strategy.name, figures=figures, warnings=[*warnings, *polished.warnings],
        fallbacks=_fallbacks(climbed, strategies[0].name, context, known),
    )  # fmt: skip


def _fallbacks(climbed: StrategyResult[Built], first: str, context: StageContext, known: PastExport | None) -> list[Fallback]:
    """The fallbacks: another strategy than the first, and each property that this strategy gives up."""
    opset, strategy = context.work.export.opset, climbed.strategy
    reasons = "; ".join(f"{failure.strategy}: {failure.reason}" for failure in climbed.failures)
    found = [Fallback(wanted=first, taken=strategy.name, reason=reasons)] if climbed.failures else []
    if not reasons and known is not None:
        reasons = "; ".join(f"{name}: {code}" for name, code in known.failed.items()) + " (at an earlier export with the same versions)"
    found += forms(climbed.result.graphs.extra, context.work.options(OnnxOptions).layers_per_graph, climbed.result.undivided or reasons)
    for loss in strategy.losses(opset, wanted_form(context)):
        wanted, taken = LOSSES[loss]
        if loss == "opset":
            wanted, taken = f"opset {opset}", f"opset {climbed.result.opset}"
        limit = (
            f"{strategy.name} writes no newer one" if loss == "opset" and not strategy.other_opset else "no strategy that keeps it worked"
        )
        found.append(Fallback(wanted=wanted, taken=taken, reason=f"{limit}: {reasons}" if reasons else limit))
    return found


def _figures(climbed: StrategyResult[Built], made: GraphSet, name: str, staging: Path) -> dict[str, object]:
    built = climbed.result
    graphs = made.graphs
    return {
        "architecture": name,
        "task": built.graphs.task,
        "attention": climbed.strategy.attention,
        "opset": built.opset,
        "nodes": sum(one.nodes for one in graphs),
        "export_seconds": round(built.seconds, 3),
        "inputs": [port.name for port in graphs[0].inputs],
        "outputs": [port.name for port in graphs[0].outputs],
        "graphs": {one.role: one.file for one in graphs},
        "graph_bytes": made.size(staging),
        "external_data": any(one.data for one in graphs),
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
    if context.strategy != "default":
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
    if context.strategy != "default":
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
