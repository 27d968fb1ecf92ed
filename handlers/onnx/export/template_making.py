"""Makes a template: traces a stand-in with few layers, proves that these stand for all, and repeats them.

Called by `templated` where no template is kept. The stand-in has random weights and fewer tokens (`templates.shallow`); its graphs are
checked against torch and optimized like any others, and then given the layers that were left out (`templates.repetition`, for a chain
`templates.blocks`). What does not repeat is traced with all its layers.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter
from handlers.families.base import Family, release
from handlers.families.chain.family import Layered
from handlers.folder.chain_signature import block_number, block_role
from handlers.graphs import graph_file
from handlers.graphs.attention import marks
from handlers.graphs.attention.fusing import fuse
from handlers.graphs.graphset import GraphSet
from handlers.models.folder import ModelFolder
from handlers.onnx.export import building
from handlers.onnx.options import OnnxOptions
from handlers.onnx.templates import blocks, filling, layers, repetition, shallow
from handlers.onnx.templates.blocks import Blocks
from handlers.onnx.templates.repetition import SHARED, NotRepeatableError, Stack
from handlers.onnx.templates.shallow import NoTemplateError, OtherSurroundingsError
from handlers.onnx.templates.sources import Finder, Source
from handlers.onnx.templates.store import Store, Template
from handlers.onnx.templates.weights import Weights
from handlers.onnx.tracing.strategies import Strategy

WHOLE_LIMIT = 1 << 30
"""Bytes of weights up to which a model whose layers do not repeat gets a template: its stand-in is as large as itself."""
FEWER_TOKENS = ("causal", "seq2seq")
"""Families whose stand-ins have fewer tokens: a table of tokens, and what multiplies by it, are no part of a layer."""
Filler = tuple[ir.Model, Mapping[str, Source]]
"""A graph, and where its weights come from."""


class FewLayersError(Exception):
    """No layer of a model would be spared."""


@dataclass(frozen=True)
class Task:
    """One export, and all that its template depends on."""

    strategy: Strategy
    family: Family
    context: StageContext
    reporter: Reporter
    weights: Weights
    key: str
    reference: Any = None
    """What torch says of the model, once it was asked."""

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


def explain(error: Exception) -> str:
    """Why no template can be made, in one line."""
    if isinstance(error, Permanent):
        return f"the model cut down to a stand-in does not work: {error.fault.cause}"[:200]
    line = (str(error).strip().splitlines() or ["no message"])[0]
    return (line if isinstance(error, NoTemplateError | NotRepeatableError) else f"{type(error).__name__}: {line}")[:200]


def make(task: Task, outline: layers.Outline | None, started: float) -> Template:
    """Make the template: with the layers that stand for all if the model's repeat, else with all of them."""
    why_whole = "" if outline is not None else "the model's layers are not one list"
    if outline is not None:
        try:
            return _with_fewer_tokens(task, started, outline, _stacks(task, outline))
        except FewLayersError:
            why_whole = "the model has few layers, or too many kinds"
        except (NotRepeatableError, NoTemplateError, Permanent, ValueError) as error:
            why_whole = explain(error)
            task.reporter.warn(f"the layers of this model are not repeated from a few of them: {why_whole}")
    if ModelFolder(task.source).stored_bytes > WHOLE_LIMIT:
        raise NoTemplateError(f"{why_whole}, and a second copy of it with random weights would be too large")
    return _with_fewer_tokens(task, started, outline, (), why_whole=why_whole)


def _with_fewer_tokens(
    task: Task, started: float, outline: layers.Outline | None, stacks: Sequence[Stack], *, why_whole: str = ""
) -> Template:  # fmt: skip
    """The template of a stand-in with a small vocabulary, if all else is as in the model, else with the model's."""
    if outline is not None and task.family.name in FEWER_TOKENS:
        try:
            return _traced(task, started, outline, stacks, fewer_tokens=True, why_whole=why_whole)
        except OtherSurroundingsError:
            pass
        except (Permanent, RuntimeError, ValueError) as error:  # something else has the vocabulary's size, for example
            task.reporter.warn(f"the stand-in keeps the model's tokens: {explain(error)}")
    return _traced(task, started, outline, stacks, why_whole=why_whole)


def _stacks(task: Task, outline: layers.Outline) -> tuple[Stack, ...]:
    """Which layers of each list stand for all: all of them in a list that has few. FewLayersError where none is spared."""
    stacks = []
    for layer_list in outline.lists:
        kept = (
            blocks.chosen(layer_list.kinds, task.family.per_graph) if isinstance(task.family, Layered) else layers.chosen(layer_list.kinds)
        )
        stacks.append(Stack(shallow.prefix_of(task.weights.infos, layer_list), layer_list.kinds, kept or tuple(range(layer_list.depth))))
    if all(stack.whole for stack in stacks):
        raise FewLayersError
    return tuple(stacks)


def _traced(
    task: Task, started: float, whole: layers.Outline | None = None, stacks: Sequence[Stack] = (), *, fewer_tokens: bool = False,
    why_whole: str = "",
) -> Template:  # fmt: skip
    """Trace a stand-in, with the layers of `stacks` if these are given, and keep its graphs as the template."""
    graph_file.fresh_folder(task.scratch)
    folder, staging = task.scratch / "model", task.scratch / "graphs"
    counts = [f"{len(stack.kept)} layers of {len(stack.kinds)}" for stack in stacks]
    task.reporter.progress(0.1, f"tracing {' and '.join(counts)}" if counts else "tracing the model")
    weights, vocabulary = shallow.write(task.weights, folder, stacks, fewer_tokens=fewer_tokens)
    checked = functools.partial(_alike, task, folder, whole, stacks) if whole is not None and (stacks or vocabulary) else None
    staging.mkdir()
    shutil.copyfile(folder / "config.json", staging / "config.json")
    options = task.context.work.options(OnnxOptions).model_copy(update={"external_data": "always"})
    small = task.context.model_copy(
        update={
            "inputs": {**task.context.inputs, "merge": str(folder)}, "staging": str(staging), "temporary": str(task.scratch / "work"),
            "work": task.context.work.with_options(options),  # what is in the graph itself would be taken out of it to optimize it
        }
    )  # fmt: skip
    finder = filling.finder_of(weights)
    built = building.trace(task.strategy, task.family, small, task.reporter, checked)
    chain = Blocks(stacks[0], task.family.per_graph) if isinstance(task.family, Layered) and stacks else None
    if chain is not None:
        _check_blocks(chain, built.graphs, staging, finder)
    spared = [block_role(number) for _, number in chain.alike] if chain is not None else []
    from handlers.onnx.export.optimization import optimize_export  # what only fills a template has no use for it

    polished = optimize_export(small, built.graphs, built.verify, task.reporter, template=True, without=spared)
    proved = marks.roles(polished.graphs.extra, marks.PROVED)
    fused = proved if task.context.work.options(OnnxOptions).optimize != "auto" else ()
    models = dict[str, Filler]()
    unread = finder.tensors.keys() - {name for group in weights.equal for name in group}
    for graph in polished.graphs.graphs:
        model = ir.load(staging / graph.file)
        sources = filling.find_sources(model, finder)
        unread -= {name for source in sources.values() for name in source.tensors}
        if vocabulary:
            sources = filling.resize(model, sources, shallow.TOKENS, vocabulary)
        for stack in stacks if chain is None else ():
            if not stack.whole and any(stack.number(name) != SHARED for source in sources.values() for name in source.tensors):
                model, sources = repetition.repeat(model, sources, stack)
        filling.empty(model, sources)
        models[graph.role] = fuse(model) if graph.role in fused else model, sources
    if unread:  # a tool may have computed a constant of it, which would be that of random weights
        raise NoTemplateError(f"the graph does not read the weight {min(unread)} as it is")
    roles = {graph.role: graph.file for graph in polished.graphs.graphs}
    if chain is not None:
        models, roles, proved = _all_blocks(chain, models, task.family.signatures(task.reference), proved)
    facts = {
        "roles": roles, "opset": built.opset, "layers": {stack.prefix.rstrip("."): stack.kept for stack in stacks},
        "seconds": time.monotonic() - started, "error": built.error, "proved": () if fused else proved, "why_whole": why_whole,
        "warnings": (*built.warnings, *polished.warnings), "optimization": polished.figures,
    }  # fmt: skip
    return task.store.put(task.key, {roles[role]: made for role, made in models.items()}, facts)


def _check_blocks(chain: Blocks, graphs: GraphSet, staging: Path, finder: Finder) -> None:
    """NotRepeatableError unless blocks of one kind have the same graph, as it was traced: what is made of it later, time may decide."""
    traced = []
    for graph in graphs.graphs:
        if block_number(graph.role) is not None:
            model = ir.load(staging / graph.file)
            traced.append((model, filling.find_sources(model, finder)))
    chain.check_alike(traced)


def _all_blocks(
    chain: Blocks, short: Mapping[str, Filler], signatures: Mapping[str, tuple[str, Any]], proved: Sequence[str]
) -> tuple[dict[str, Filler], dict[str, str], tuple[str, ...]]:
    """Of the graphs of the stand-in, by role, those of the model: the graphs, their files, and the roles that are proved."""
    models: dict[str, Filler] = {}
    shown: list[str] = []
    for role in signatures:
        number = block_number(role)
        stand = role if number is None else block_role(chain.stands[number])
        models[role] = short[stand] if number is None else chain.copied(number, *short[stand])
        shown += [role] if stand in proved else []
    return models, {role: file for role, (file, _) in signatures.items()}, tuple(shown)


def _alike(task: Task, folder: Path, whole: layers.Outline, stacks: Sequence[Stack]) -> Any:
    """The loaded stand-in. NotRepeatableError unless its layers are like those of the model that they were cut to, OtherSurroundingsError
    unless all else is like the model's."""
    model = task.family.load(folder, task.strategy.tracing)
    try:
        outline = layers.of_model(model)
        kept = [stack.kept for stack in stacks] or [tuple(range(layer_list.depth)) for layer_list in whole.lists]
        wanted = [[layer_list.digests[layer] for layer in numbers] for layer_list, numbers in zip(whole.lists, kept, strict=True)]
        if outline is None or not outline.alike(wanted):
            raise NotRepeatableError("with fewer layers the model has other layers")
        if outline.around != whole.around:
            raise OtherSurroundingsError("with fewer layers the model is another one outside of them")
    except Exception:
        release(model)
        raise
    return model
