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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from daemon.contract.errors import CkptdError, Permanent
from daemon.contract.formats.stages import LAYER_BY_LAYER
from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from handlers.child.progress import Interrupted, Reporter
from handlers.layerwise import passes, skeleton
from handlers.models.folder import ModelFolder
from handlers.onnx.attention import marks
from handlers.onnx.attention.fusing import fuse, sharing
from handlers.onnx.export import building
from handlers.onnx.export.building import Built
from handlers.onnx.export.optimization import optimize_export
from handlers.onnx.families.base import UNREAD, Family, release
from handlers.onnx.families.causal import Causal
from handlers.onnx.families.chain.family import Layered
from handlers.onnx.graphs import graph_file
from handlers.onnx.graphs.graphset import GraphSet
from handlers.onnx.graphs.sessions import check_form, described_alone
from handlers.onnx.options import OnnxOptions
from handlers.onnx.templates import filling, layers, repetition, shallow
from handlers.onnx.templates.repetition import NotRepeatableError, Stack
from handlers.onnx.templates.shallow import NoTemplateError, NotTriedError, OtherSurroundingsError
from handlers.onnx.templates.sources import Source
from handlers.onnx.templates.store import Store, Template, key_of
from handlers.onnx.templates.weights import Weights
from handlers.onnx.tracing import optimum
from handlers.onnx.tracing.strategies import Strategy

SMALL = 1 << 27
"""Bytes of stored weights up to which a model is loaded whole: that is quicker than to read its layers for each pass."""
WHOLE_LIMIT = 1 << 30
"""Bytes of weights up to which a model whose layers do not repeat gets a template: its stand-in is as large as itself."""


@dataclass(frozen=True)
class _Task:
    """One export, and all that its template depends on."""

    strategy: Strategy
    family: Family
    context: StageContext
    reporter: Reporter
    weights: Weights
    key: str

    @property
    def source(self) -> Path:
        """The model's folder."""
        return self.weights.folder

    @property
    def store(self) -> Store:
        """Where templates are kept."""
        return Store(Path(self.context.cache))

    @property
    def scratch(self) -> Path:
        """Folder for the stand-in and its graphs."""
        return Path(self.context.temporary) / f"template-{self.strategy.name}"


def build(strategy: Strategy, family: Family, context: StageContext, reporter: Reporter) -> Built:
    """Export by one strategy, by way of a template where that works, and check the result against torch.

    Raises what `building.trace` raises, and NoTemplateError where the model is too large for that and there is no template.
    """
    family, undivided = building.family_for(strategy, family, context)
    store, key, template = Store(Path(context.cache)), "", None
    reason = _unfit(strategy, family, context)
    if reason and context.strategy == LAYER_BY_LAYER and strategy.name != optimum.NAME:
        raise skeleton.refuse(Path(context.inputs["merge"]), f"no template can be made of its graph: {reason}")
    if not reason:
        try:
            weights = Weights(Path(context.inputs["merge"]))
            key = key_for(context, strategy, weights)
            if known := store.refused(key):
                raise NotTriedError(f"{known} (found out before)")
            template = store.get(key)
            return replace(_build(_Task(strategy, family, context, reporter, weights, key), template), undivided=undivided)
        except (CkptdError, Interrupted, MemoryError):
            raise
        except OSError as error:
            if error.errno is not None:
                raise
            reason = _told(error)
        except NotTriedError as error:
            reason, key = _told(error), ""
        except Exception as error:
            reason = _told(error)
        finally:
            shutil.rmtree(Path(context.temporary) / f"template-{strategy.name}", ignore_errors=True)
        graph_file.clear(Path(context.staging))
        store.remove(key)
    if context.strategy == LAYER_BY_LAYER:
        raise NoTemplateError(reason)  # of what another exporter writes there may be one
    built = building.trace(strategy, family, context, reporter)
    # What is wrong with the model itself would have been found now; a template that was kept may have been damaged.
    if key and template is None:
        store.refuse(key, reason)
    return replace(built, undivided=undivided, template={"used": "no", "reason": reason})


def key_for(context: StageContext, strategy: Strategy, weights: Weights) -> str:
    """The key of the template of an export of a model by one strategy."""
    form = strategy.form(building.wanted_form(context))
    options: Json = {
        "optimize": context.work.options(OnnxOptions).optimize, "threads": context.limits.threads, "axes": form.axes, "cache": form.cache,
    }  # fmt: skip
    return key_of(weights, strategy.name, strategy.opset(context.work.export.opset), options)


def _told(error: Exception) -> str:
    if isinstance(error, Permanent):
        return f"the model cut down to a stand-in does not work: {error.fault.cause}"[:200]
    line = (str(error).strip().splitlines() or ["no message"])[0]
    return (line if isinstance(error, NoTemplateError | NotRepeatableError) else f"{type(error).__name__}: {line}")[:200]


def _unfit(strategy: Strategy, family: Family, context: StageContext) -> str:
    """Why there is no template for an export, known before any work; "" where there may be one."""
    if not context.work.options(OnnxOptions).templates:
        return "onnx.templates is off"
    if isinstance(family, Layered):
        return "onnx.layers_per_graph asks for a chain of graphs, which are traced from the whole model"
    if strategy.name == optimum.NAME:
        return "optimum's exporter reads the model itself"
    return "the weights are not in safetensors" if ModelFolder(Path(context.inputs["merge"])).pickled else ""


def _build(task: _Task, template: Template | None) -> Built:
    used = "kept" if template else "made"
    found, reference, unread = _asked(task, look=template is None)
    task = replace(task, weights=Weights(task.source, unread))
    started = time.monotonic()
    if template is None:
        try:
            template = _made(task, found, started)
        except Permanent as error:  # what is wrong with the stand-in is no fault of the model
            raise NoTemplateError(_told(error)) from error
        except OSError as error:  # tracing the model itself may need less
            raise NotTriedError(f"its stand-in could not be written: {error.strerror or error}") from error
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


def _asked(task: _Task, *, look: bool) -> tuple[layers.Layers | None, Any, Collection[str]]:
    """What torch says of the model: its layers, if `look`, its answers, and the names of tensors that it does not read.

    A language model that is not small is run layer by layer, where that works, so that it never lies in memory as a whole.
    """
    # The template's own graph is compared in all shapes, so one of them shows that the weights are in their places.
    family = task.family.briefly() if isinstance(task.family, Causal) else task.family
    by_layers = task.context.strategy == LAYER_BY_LAYER
    if isinstance(task.family, Causal) and (by_layers or ModelFolder(task.source).stored_bytes > SMALL):
        task.reporter.progress(0.05, f"running the model layer by layer for {task.strategy.name}")
        try:
            made = skeleton.build(task.source, task.family.task.name, attention=task.strategy.tracing.attention)
            found = layers.of_model(made.model) if look else None
            return found, passes.run(made, lambda model: family.refer(model, task.source)), made.unread
        except (Permanent, RuntimeError):
            if by_layers:
                raise
    task.reporter.progress(0.05, f"loading the model for {task.strategy.name}")
    model = task.family.load(task.source, task.strategy.tracing)
    found, reference = layers.of_model(model) if look else None, family.refer(model, task.source)
    release(model)
    return found, reference, getattr(model, UNREAD, ())


def _filled(task: _Task, template: Template, reference: Any) -> GraphSet:
    """Write the template's graphs with the model's weights into the staging folder."""
    context, staging, record, models = task.context, Path(task.context.staging), template.record, {}
    for name, (model, sources) in template.graphs().items():
        filling.fill(model, sources, task.weights)
        graph_file.describe(model, building.metadata(context, record.opset, task.family.task))
        models[name] = model
    task.scratch.mkdir(parents=True, exist_ok=True)
    place = building.place_for(task.strategy, context, task.scratch)
    written = graph_file.write(models, staging, place, context.limits.threads)
    shared = sharing({role: models[name] for role, name in record.roles.items()})
    graph_file.let_go(models.values())
    task.weights.unmap()
    for path in written.values():
        check_form(path)
    graphs = [described_alone(role, graph_file.place(written[name], staging)) for role, name in record.roles.items()]
    made = building.write_set(task.family, reference, record.opset, graphs, staging)
    made = made.model_copy(update={"extra": marks.marked(made.extra, proved=record.proved, shared=shared)})
    made.write(staging)
    return made


def _made(task: _Task, found: layers.Layers | None, started: float) -> Template:
    """Make the template: with the layers that stand for all if the model's repeat, else with all of them."""
    kept = layers.chosen(found.kinds) if found is not None else ()
    why_whole = "" if kept else "the model's layers are not one list" if found is None else "the model has few layers, or too many kinds"
    if found is not None and kept:
        try:
            stack = Stack(shallow.prefix_of(task.weights.infos, found.depth), found.kinds, kept)
            try:
                return _traced(task, started, found, stack, fewer_tokens=task.family.name == "causal")
            except OtherSurroundingsError:
                return _traced(task, started, found, stack)
        except (NotRepeatableError, NoTemplateError, Permanent, ValueError) as error:
            why_whole = _told(error)
            task.reporter.warn(f"the layers of this model are not repeated from {len(kept)} of them: {why_whole}")
    if ModelFolder(task.source).stored_bytes > WHOLE_LIMIT:
        raise NoTemplateError(f"{why_whole}, and a second copy of it with random weights would be too large")
    return _traced(task, started, why_whole=why_whole)


def _traced(
    task: _Task, started: float, whole: layers.Layers | None = None, stack: Stack | None = None, *, fewer_tokens: bool = False,
    why_whole: str = "",
) -> Template:  # fmt: skip
    """Trace a stand-in, with the layers of `stack` if it is given, and keep its graphs as the template."""
    graph_file.fresh_folder(task.scratch)
    folder, staging = task.scratch / "model", task.scratch / "graphs"
    task.reporter.progress(0.1, f"tracing {len(stack.kept)} layers of {len(stack.kinds)}" if stack is not None else "tracing the model")
    weights, vocabulary = shallow.write(task.weights, folder, stack, fewer_tokens=fewer_tokens)
    if whole is not None and stack is not None:
        _check_alike(task, folder, whole, stack.kept)
    staging.mkdir()
    shutil.copyfile(folder / "config.json", staging / "config.json")
    small = task.context.model_copy(
        update={"inputs": {**task.context.inputs, "merge": str(folder)}, "staging": str(staging), "temporary": str(task.scratch / "work")}
    )
    built = building.trace(task.strategy, task.family, small, task.reporter)
    polished = optimize_export(small, built.graphs, built.verify, task.reporter, template=True)
    proved = marks.roles(polished.graphs.extra, marks.PROVED)
    fused = proved if task.context.work.options(OnnxOptions).optimize != "auto" else ()
    finder, models = filling.finder_of(weights), dict[str, tuple[ir.Model, Mapping[str, Source]]]()
    unread = finder.tensors.keys() - {name for group in weights.equal for name in group}
    for graph in polished.graphs.graphs:
        model = ir.load(staging / graph.file)
        sources = filling.find_sources(model, finder)
        unread -= {name for source in sources.values() for name in source.tensors}
        if vocabulary:
            sources = filling.resize(model, sources, shallow.TOKENS, vocabulary)
        if stack is not None:
            model, sources = repetition.repeat(model, sources, stack)
        filling.empty(model, sources)
        models[graph.file] = fuse(model) if graph.role in fused else model, sources
    if unread:  # a tool may have computed a constant of it, which would be that of random weights
        raise NoTemplateError(f"the graph does not read the weight {min(unread)} as it is")
    facts = {
        "roles": {graph.role: graph.file for graph in polished.graphs.graphs}, "opset": built.opset,
        "layers": stack.kept if stack is not None else (), "seconds": time.monotonic() - started, "error": built.error,
        "proved": () if fused else proved, "why_whole": why_whole, "warnings": (*built.warnings, *polished.warnings),
        "optimization": polished.figures,
    }  # fmt: skip
    return task.store.put(task.key, models, facts)


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
