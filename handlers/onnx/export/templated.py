"""Exports by way of a template: a graph without weights that is made once for an architecture, and filled for each checkpoint.

`template_making` makes it. The filled graph is compared with torch at full depth, as a traced one is; one that does not agree is forgotten,
and the model is traced itself.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.formats.stages import LAYER_BY_LAYER
from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from handlers.child.progress import Interrupted, Reporter
from handlers.families.base import UNREAD, Family, release
from handlers.families.causal import Causal
from handlers.families.chain.family import Layered
from handlers.graphs import graph_file
from handlers.graphs.attention import marks
from handlers.graphs.attention.fusing import sharing
from handlers.graphs.graphset import GraphSet
from handlers.graphs.sessions import check_form, described_alone
from handlers.layerwise import passes, skeleton
from handlers.models.folder import ModelFolder
from handlers.onnx.export import building
from handlers.onnx.export.building import Built
from handlers.onnx.export.template_making import Task, explain, make
from handlers.onnx.options import OnnxOptions
from handlers.onnx.templates import filling, layers
from handlers.onnx.templates.shallow import NoTemplateError, NotTriedError
from handlers.onnx.templates.store import Store, Template, key_of
from handlers.onnx.templates.weights import Weights
from handlers.onnx.tracing import optimum
from handlers.onnx.tracing.strategies import Strategy

SMALL = 1 << 27
"""Bytes of stored weights up to which a model is loaded whole: that is quicker than to read its layers for each pass."""


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
            key = key_for(context, strategy, weights, family.per_graph if isinstance(family, Layered) else 0)
            if known := store.refused(key):
                raise NotTriedError(f"{known} (found out before)")
            template = store.get(key)
            return replace(_build(Task(strategy, family, context, reporter, weights, key), template), undivided=undivided)
        except (CkptdError, Interrupted, MemoryError):
            raise
        except OSError as error:
            if error.errno is not None:
                raise
            reason = explain(error)
        except NotTriedError as error:
            reason, key = explain(error), ""
        except Exception as error:
            reason = explain(error)
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


def key_for(context: StageContext, strategy: Strategy, weights: Weights, per_graph: int = 0) -> str:
    """The key of the template of an export of a model by one strategy; `per_graph`: the layers of each graph of a chain."""
    form, wanted = strategy.form(building.wanted_form(context)), context.work.options(OnnxOptions)
    options: Json = {
        "optimize": wanted.optimize, "attention": wanted.attention, "threads": context.limits.threads,
        "axes": form.axes, "cache": form.cache, "per_graph": per_graph,
    }  # fmt: skip
    return key_of(weights, strategy.name, strategy.opset(context.work.export.opset), options)


def _unfit(strategy: Strategy, family: Family, context: StageContext) -> str:
    """Why there is no template for an export, known before any work; "" where there may be one."""
    if not context.work.options(OnnxOptions).templates:
        return "onnx.templates is off"
    if strategy.name == optimum.NAME:
        return "optimum's exporter reads the model itself"
    if not family.task.reads_text:
        return "it is a model of pictures or sound"
    return "the weights are not in safetensors" if ModelFolder(Path(context.inputs["merge"])).pickled else ""


def _build(task: Task, template: Template | None) -> Built:
    used = "kept" if template else "made"
    outline, reference, unread = _asked(task, look=template is None)
    task = replace(task, weights=Weights(task.source, unread), reference=reference)
    started = time.monotonic()
    if template is None:
        try:
            template = make(task, outline, started)
        except Permanent as error:  # what is wrong with the stand-in is no fault of the model
            raise NoTemplateError(explain(error)) from error
        except OSError as error:  # tracing the model itself may need less
            raise NotTriedError(f"its stand-in could not be written: {error.strerror or error}") from error
    seconds = time.monotonic() - started
    task.reporter.progress(0.7, "filling the graph with the model's weights")
    graphs = _filled(task, template)
    staging = Path(task.context.staging)
    task.reporter.progress(0.85, "checking the graph against torch")
    verify = functools.partial(task.family.verify, reference=reference, threads=task.context.limits.threads)
    record = template.record
    figures: Json = {
        "used": used,
        "layers": _numbers(record.layers),
        "seconds": round(record.seconds, 3),
        "error": record.error,
        "whole": record.why_whole,
    }
    return Built(
        graphs, record.opset, verify(staging), seconds, list(record.warnings), verify, template=figures, optimization=record.optimization,
    )  # fmt: skip


def _numbers(kept: Mapping[str, Sequence[int]]) -> Any:
    """The numbers of the layers that were traced; of an encoder-decoder, those of each half under its name."""
    traced = {name: list(numbers) for name, numbers in kept.items()}
    return traced if len(traced) > 1 else next(iter(traced.values()), [])


def _asked(task: Task, *, look: bool) -> tuple[layers.Outline | None, Any, Collection[str]]:
    """What torch says of the model: its layers, if `look`, its answers, and the names of tensors that it does not read.

    A language model that is not small is run layer by layer, where that works, so that it never lies in memory as a whole.
    """
    # The template's own graph is compared in all shapes, so one of them shows that the weights are in their places.
    decoder = task.family if isinstance(task.family, Causal | Layered) else None
    family = task.family if decoder is None else decoder.briefly()
    by_layers = task.context.strategy == LAYER_BY_LAYER
    if decoder is not None and (by_layers or ModelFolder(task.source).stored_bytes > SMALL):
        task.reporter.progress(0.05, f"running the model layer by layer for {task.strategy.name}")
        try:
            made = skeleton.build(task.source, task.family.task.name, attention=task.strategy.tracing.attention)
            outline = layers.of_model(made.model) if look else None
            return outline, passes.run(made, lambda model: family.refer(model, task.source)), made.unread
        except (Permanent, RuntimeError):
            if by_layers:
                raise
    task.reporter.progress(0.05, f"loading the model for {task.strategy.name}")
    model = task.family.load(task.source, task.strategy.tracing)
    outline, reference = layers.of_model(model) if look else None, family.refer(model, task.source)
    release(model)
    return outline, reference, getattr(model, UNREAD, ())


def _filled(task: Task, template: Template) -> GraphSet:
    """Write the template's graphs with the model's weights into the staging folder."""
    context, staging, record, models = task.context, Path(task.context.staging), template.record, {}
    for name, (model, sources) in template.graphs().items():
        filling.fill(model, sources, task.weights)
        graph_file.describe(model, building.metadata(context, record.opset, task.family.task))
        models[name] = model
    task.scratch.mkdir(parents=True, exist_ok=True)
    if isinstance(task.family, Layered):
        written = task.family.place(models, task.reference, staging)
    else:
        place = building.place_for(task.strategy, context, task.scratch)
        written = graph_file.write(models, staging, place, context.limits.threads)
    shared = sharing({role: models[name] for role, name in record.roles.items()})
    graph_file.let_go(models.values())
    task.weights.unmap()
    for path in written.values():
        check_form(path)
    graphs = [described_alone(role, graph_file.place(written[name], staging)) for role, name in record.roles.items()]
    made = building.write_set(task.family, task.reference, record.opset, graphs, staging)
    made = made.model_copy(update={"extra": marks.marked(made.extra, proved=record.proved, shared=shared)})
    made.write(staging)
    return made
