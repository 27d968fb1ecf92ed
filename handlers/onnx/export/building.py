"""Traces a model by one strategy and writes its graphs, compared with torch.

Called by the stage, and by `templated` for the small stand-in of a model.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from daemon.contract.version import __version__
from handlers.child.progress import Reporter
from handlers.families.base import Family, Form, Graphs, NotApplicableError, Part, has_experts, release
from handlers.families.chain.family import Layered, divided
from handlers.families.warnings.library_warnings import LibraryWarnings, report_lines
from handlers.graphs import graph_file
from handlers.graphs.graphset import Graph, GraphSet
from handlers.graphs.sessions import check_form, described
from handlers.graphs.signature import Signature
from handlers.models.files import read_json
from handlers.models.folder import ModelFolder
from handlers.models.tasks import Task
from handlers.onnx.options import OnnxOptions
from handlers.onnx.tracing.exporters import Request
from handlers.onnx.tracing.model_rewrites import rewritten
from handlers.onnx.tracing.strategies import Strategy

HELD = 1 << 27
"""Bytes of a model's files. What an exporter leaves of a smaller model waits for Python's collector: to call it takes longer than a layer's
trace."""


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
    template: Json | None = None
    """How a template was used, for the figures; None where that was not asked."""
    optimization: Json | None = None
    """What the optimization gave, where that came with the template; None where it is still to be done."""


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


def _export_and_write(
    strategy: Strategy, family: Family, context: StageContext, reporter: Reporter, load: Callable[[], Any] | None
) -> _Exported:  # fmt: skip
    """Everything that needs torch's copy of the weights; they are released when this returns."""
    source, opset = Path(context.inputs["merge"]), strategy.opset(context.work.export.opset)
    scratch = graph_file.fresh_folder(Path(context.temporary) / strategy.name)
    reporter.progress(0.05, f"loading the model for {strategy.name}")
    model = load() if load is not None else family.load(source, strategy.tracing)
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
    written = graph_file.write(
        {files[role]: graph for role, graph in finished.items()}, Path(context.staging), place_for(strategy, context, scratch)
    )
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
        graph = strategy.export(Request(part, opset, scratch, context))
        _tidied(graph, opset)
        _described(graph, signatures[part.role][1], facts)
        return graph

    with rewritten(strategy.rewrite, model):
        written = family.write(model, reference, make, Path(context.staging))
    release(model)
    for path in written.values():
        check_form(path)
    return _Exported(written, reference, opset, time.monotonic() - started)


def _tidied(graph: Any, opset: int) -> None:
    if graph_file.opset(graph) != opset:
        raise OpsetMismatchError(f"the exporter wrote opset {graph_file.opset(graph)} where {opset} was asked for")
    graph_file.tidy(graph)


def _described(graph: Any, signature: Signature, facts: dict[str, object]) -> None:
    graph_file.fold_transposed_weights(graph)
    graph_file.name_axes(graph, signature)
    graph_file.describe(graph, facts)


def _finished(exported: Graphs, family: Family, reference: Any, opset: int, facts: dict[str, object]) -> Graphs:
    """The graphs that are written: tidied, with named axes and facts about themselves."""
    for graph in exported.values():
        _tidied(graph, opset)
    finished = family.finish(exported)
    signatures = family.signatures(reference)
    for role, graph in finished.items():
        _described(graph, signatures[role][1], facts)
    return finished


def place_for(strategy: Strategy, context: StageContext, scratch: Path) -> Path:
    """Where graphs are written first: in `scratch`, unless their weights are to lie in files of their own in any case."""
    apart = strategy.external or context.work.options(OnnxOptions).external_data == "always"
    return Path(context.staging) if apart else scratch


def write_set(family: Family, reference: Any, opset: int, graphs: Iterable[Graph], staging: Path) -> GraphSet:
    """Write the graphs.json of the graphs in `staging`; gives what it says."""
    made = GraphSet(
        task=family.task.name, family=family.name, dtype="float32", opset=opset, graphs=tuple(graphs), extra=family.extra(reference)
    )
    made.write(staging)
    return made


def family_for(strategy: Strategy, family: Family, context: StageContext) -> tuple[Family, str]:
    """The family that makes the strategy's graphs, and why it makes one graph where a chain was asked for.

    NotApplicableError where the strategy is for other models.
    """
    if strategy.experts and not has_experts(Path(context.inputs["merge"])):
        raise NotApplicableError
    form, per_graph = strategy.form(wanted_form(context)), context.work.options(OnnxOptions).layers_per_graph
    family, undivided = divided(family, Path(context.inputs["merge"]), form, per_graph, must=strategy.chain)
    return family if isinstance(family, Layered) else family.shaped(form), undivided


def trace(
    strategy: Strategy, family: Family, context: StageContext, reporter: Reporter, load: Callable[[], Any] | None = None
) -> Built:  # fmt: skip
    """Export by one strategy and check the result against torch; if that fails, its files are removed. `family`: of `family_for`.

    `load` gives the folder's model, where more is to be done than the family does to load it; its weights are released.
    """
    staging = Path(context.staging)
    try:
        with LibraryWarnings() as chatter:
            exported = _export_and_write(strategy, family, context, reporter, load)
            if ModelFolder(Path(context.inputs["merge"])).file_bytes > HELD:
                gc.collect()  # the exporter's program and the model refer to each other in cycles
            files = {role: graph_file.place(path, staging) for role, path in exported.written.items()}
            reporter.progress(0.85, "checking the graph against torch")
            verify = functools.partial(family.verify, reference=exported.reference, threads=context.limits.threads)
            error = verify(staging)
        warnings = report_lines(chatter, family, exported.reference)
        described_graphs = [described(role, file, context.limits.threads) for role, file in files.items()]
        graphs = write_set(family, exported.reference, exported.opset, described_graphs, staging)
        return Built(graphs, exported.opset, error, exported.seconds, warnings, verify)
    except Exception:
        graph_file.clear(staging)
        raise


def build(strategy: Strategy, family: Family, context: StageContext, reporter: Reporter) -> Built:
    """Export by one strategy, without a template, and check the result against torch; if that fails, its files are removed."""
    family, undivided = family_for(strategy, family, context)
    return replace(trace(strategy, family, context, reporter), undivided=undivided)
