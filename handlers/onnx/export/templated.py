"""Exports by way of a template: a graph without weights that is made once for an architecture, and filled for each checkpoint.

A template is traced of a stand-in with few layers, fewer tokens and random weights (`templates.shallow`), checked against torch and
optimized like any graph, and then given the layers that were left out (`templates.repetition`). What does not repeat is traced with all its
layers. The filled graph is compared with torch at full depth, as a traced one is; one that does not agree is forgotten, and the model is
traced itself.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from daemon.contract.errors import CkptdError, Permanent
from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from handlers.child.progress import Interrupted, Reporter
from handlers.models.folder import ModelFolder
from handlers.onnx.export import building
from handlers.onnx.export.building import Built
from handlers.onnx.export.optimization import optimize_export
from handlers.onnx.families.base import Family, extra_facts, has_experts, release
from handlers.onnx.families.causal import Causal
from handlers.onnx.families.chain.family import Layered
from handlers.onnx.graphs import graph_file
from handlers.onnx.graphs.graphset import GraphSet
from handlers.onnx.graphs.sessions import check_form, described_alone
from handlers.onnx.options import OnnxOptions
from handlers.onnx.templates import filling, layers, repetition, shallow
from handlers.onnx.templates.repetition import NotRepeatableError, Stack
from handlers.onnx.templates.shallow import NoTemplateError
from handlers.onnx.templates.sources import Source
from handlers.onnx.templates.store import Store, Template, key_of
from handlers.onnx.templates.weights import Weights
from handlers.onnx.tracing.strategies import Strategy

WHOLE_LIMIT = 1 << 30
"""Bytes of weights up to which a model whose layers do not repeat gets a template: its stand-in is as large as itself."""
Models = Mapping[str, tuple[ir.Model, Mapping[str, Source]]]
"""File → (graph, sources of its weights)."""


@dataclass(frozen=True)
class _Task:
    """One export, and all that its template depends on."""

    strategy: Strategy
    family: Family
    context: StageContext
    reporter: Reporter
    key: str

    @property
    def source(self) -> Path:
        """The model's folder."""
        return Path(self.context.inputs["merge"])

    @property
    def scratch(self) -> Path:
        """Folder for the stand-in and its graphs."""
        return Path(self.context.temporary) / f"template-{self.strategy.name}"


def build(strategy: Strategy, family: Family, context: StageContext, reporter: Reporter) -> Built:
    """Export by one strategy, by way of a template where that works, and check the result against torch.

    Raises what `building.trace` raises.
    """
    family, undivided = building.family_for(strategy, family, context)
    reason = _unfit(strategy, family, context)
    if not reason:
        key = ""
        try:
            key = key_for(context, strategy)
            return _build(_Task(strategy, family, context, reporter, key))
        except (CkptdError, Interrupted, MemoryError):
            raise
        except OSError as error:
            if error.errno is not None:
                raise
            reason = _told(error)
        except Exception as error:
            reason = _told(error)
        finally:
            shutil.rmtree(Path(context.temporary) / f"template-{strategy.name}", ignore_errors=True)
        graph_file.clear(Path(context.staging))
        if key:
            Store(Path(context.cache)).remove(key)
    built = building.trace(strategy, family, context, reporter)
    return replace(built, undivided=undivided, template={"used": "no", "reason": reason})


def key_for(context: StageContext, strategy: Strategy) -> str:
    """The key of the template of an export by one strategy."""
    source, form = Path(context.inputs["merge"]), strategy.form(building.wanted_form(context))
    options: Json = {
        "optimize": context.work.options(OnnxOptions).optimize, "threads": context.limits.threads, "axes": form.axes, "cache": form.cache,
    }  # fmt: skip
    return key_of(source, Weights(source), strategy.name, strategy.opset(context.work.export.opset), options)


def _told(error: Exception) -> str:
    line = (str(error).strip().splitlines() or ["no message"])[0]
    return (line if isinstance(error, NoTemplateError | NotRepeatableError) else f"{type(error).__name__}: {line}")[:200]


def _unfit(strategy: Strategy, family: Family, context: StageContext) -> str:
    """Why there is no template for an export, known before any work; "" where there may be one."""
    if not context.work.options(OnnxOptions).templates:
        return "onnx.templates is off"
    if isinstance(family, Layered):
        return "a chain of graphs is made layer by layer"
    if strategy.experts and not has_experts(Path(context.inputs["merge"])):
        return "the strategy is for other models"
    if strategy.name == "optimum":
        return "optimum's exporter reads the model itself"
    return "the weights are not in safetensors" if shallow.pickled(Path(context.inputs["merge"])) else ""


def _build(task: _Task) -> Built:
    store = Store(Path(task.context.cache))
    template = store.get(task.key)
    used = "kept" if template else "made"
    task.reporter.progress(0.05, f"loading the model for {task.strategy.name}")
    model = task.family.load(task.source, task.strategy.tracing)
    # The template's own graph is compared in all shapes, so one of them shows that the weights are in their places.
    family = task.family.briefly() if isinstance(task.family, Causal) else task.family
    reference = family.refer(model, task.source)
    found = None if template else layers.of_model(model)
    release(model)
    del model
    started = time.monotonic()
    if template is None:
        try:
            template = _made(task, store, found)
        except OSError as error:  # tracing the model itself may need less
            raise NoTemplateError(f"its stand-in could not be written: {error.strerror or error}") from error
    seconds = time.monotonic() - started
    task.reporter.progress(0.7, "filling the graph with the model's weights")
    graphs = _filled(task, template, reference)
    staging = Path(task.context.staging)
    task.reporter.progress(0.85, "checking the graph against torch")
    verify = functools.partial(task.family.verify, reference=reference, threads=task.context.limits.threads)
    record = template.record
    told: Json = {
        "used": used,
        "layers": list(record.layers),
        "seconds": round(record.seconds, 3),
        "error": record.error,
        "whole": record.why_whole,
    }
    return Built(
        graphs, record.opset, verify(staging), seconds, list(record.warnings), verify, template=told, optimization=record.optimization,
    )  # fmt: skip


def _filled(task: _Task, template: Template, reference: Any) -> GraphSet:
    """Write the template's graphs with the model's weights into the staging folder."""
    context, staging, record = task.context, Path(task.context.staging), template.record
    weights, models = Weights(task.source), {}
    for name, (model, sources) in template.graphs().items():
        filling.fill(model, sources, weights)
        graph_file.describe(model, building.metadata(context, record.opset, task.family.task))
        models[name] = model
    apart = task.strategy.external or context.work.options(OnnxOptions).external_data == "always"
    task.scratch.mkdir(parents=True, exist_ok=True)
    written = graph_file.write(models, staging, staging if apart else task.scratch, context.limits.threads)
    graph_file.let_go(models.values())  # and of the model's mapped files
    for path in written.values():
        check_form(path)
    files = {role: graph_file.place(written[name], staging) for role, name in record.roles.items()}
    graphs = GraphSet(
        task=task.family.task.name, family=task.family.name, dtype="float32", opset=record.opset,
        graphs=tuple(described_alone(role, file) for role, file in files.items()),
        extra=extra_facts(task.family, reference),
    )  # fmt: skip
    graphs.write(staging)
    return graphs


def _made(task: _Task, store: Store, found: layers.Layers | None) -> Template:
    """Make the template: with the layers that stand for all if the model's repeat, else with all of them."""
    kept = layers.chosen(found.kinds) if found is not None else ()
    why_whole = "" if kept else "the model's layers are not one list" if found is None else "the model has few layers, or too many kinds"
    started = time.monotonic()
    if found is not None and kept:
        try:
            try:
                return _of_stand_in(task, store, found, kept, started, fewer_tokens=task.family.name == "causal")
            except OtherSurroundingsError:
                return _of_stand_in(task, store, found, kept, started)
        except (NotRepeatableError, NoTemplateError, ValueError) as error:
            why_whole = _told(error)
            task.reporter.warn(f"the layers of this model are not repeated from {len(kept)} of them: {why_whole}")
    if ModelFolder(task.source).stored_bytes > WHOLE_LIMIT:
        raise NoTemplateError(f"{why_whole}, and a second copy of it with random weights would be too large")
    return _of_stand_in(task, store, found, (), started, why_whole)


class OtherSurroundingsError(NoTemplateError):
    """Outside of its layers the stand-in is not like the model."""


def _of_stand_in(
    task: _Task, store: Store, found: layers.Layers | None, kept: tuple[int, ...], started: float, why_whole: str = "",
    *, fewer_tokens: bool = False,
) -> Template:  # fmt: skip
    """As `_traced`; what is wrong with the stand-in is no fault of the model."""
    try:
        return _traced(task, store, found, kept, started, why_whole, fewer_tokens=fewer_tokens)
    except Permanent as error:
        raise NoTemplateError(f"the model cut down to a stand-in does not work: {error.fault.cause}") from error


def _traced(
    task: _Task, store: Store, found: layers.Layers | None, kept: tuple[int, ...], started: float, why_whole: str, *, fewer_tokens: bool
) -> Template:  # fmt: skip
    graph_file.fresh_folder(task.scratch)
    folder, staging = task.scratch / "model", task.scratch / "graphs"
    depth = found.depth if found is not None else 0
    task.reporter.progress(0.1, f"tracing {len(kept)} layers of {depth}" if kept else "tracing the model")
    weights, vocabulary = shallow.write(task.source, folder, kept, depth, fewer_tokens=fewer_tokens)
    if found is not None and kept:
        _check_alike(task, folder, found, kept)
    staging.mkdir()
    (staging / "config.json").write_bytes((folder / "config.json").read_bytes())
    small = task.context.model_copy(
        update={"inputs": {**task.context.inputs, "merge": str(folder)}, "staging": str(staging), "temporary": str(task.scratch / "work")}
    )
    built = building.trace(task.strategy, task.family, small, task.reporter)
    polished = optimize_export(small, built.graphs, built.verify, task.reporter)
    models: dict[str, tuple[ir.Model, Mapping[str, Source]]] = {}
    read: set[str] = set()
    for graph in polished.graphs.graphs:
        model = ir.load(staging / graph.file)
        sources = filling.find_sources(model, weights)
        read.update(name for source in sources.values() for name in source.tensors)
        if vocabulary:
            sources = filling.resize(model, sources, shallow.TOKENS, vocabulary)
        if found is not None and kept:
            prefix = shallow.prefix_of(list(Weights(task.source).infos), depth)
            model, sources = repetition.repeat(model, sources, Stack(prefix, found.kinds, kept))
        filling.empty(model, sources)
        models[graph.file] = model, sources
    if lost := sorted(filling.floating(weights) - read - {name for group in weights.equal for name in group}):
        # A tool may have computed a constant of it, which would be that of random weights.
        raise NoTemplateError(f"the graph does not read the weight {lost[0]} as it is")
    facts = {
        "roles": {graph.role: graph.file for graph in polished.graphs.graphs}, "opset": built.opset, "layers": kept,
        "seconds": time.monotonic() - started, "error": built.error, "why_whole": why_whole,
        "warnings": (*built.warnings, *polished.warnings), "optimization": polished.figures,
    }  # fmt: skip
    return store.put(task.key, models, task.scratch, facts)


def _check_alike(task: _Task, folder: Path, whole: layers.Layers, kept: tuple[int, ...]) -> None:
    """NotRepeatableError unless the stand-in's layers are like those of the model that they were cut to, OtherSurroundingsError unless all
    else is like the model's."""
    model = task.family.load(folder, task.strategy.tracing)
    found = layers.of_model(model)
    release(model)
    if found is None or list(found.digests) != [whole.digests[layer] for layer in kept]:
        raise NotRepeatableError("with fewer layers the model has other layers")
    if found.around != whole.around:
        raise OtherSurroundingsError("with fewer layers the model is another one outside of them")
