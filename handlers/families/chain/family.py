"""A decoder as a chain of graphs: the embedding, blocks of a few layers each, the head. For models too large for one graph.

`chained` gives it to the onnx stage instead of the causal family when `onnx.layers_per_graph` or a strategy asks for it.
Blocks are the model's own code over a part of its layers, so masks, rotary embeddings and windows are what they are in the whole.
Graphs are exported and written one at a time, and each block's weights are let go of once they are on disk: memory stays near the
fp32 model and one block's copy of it. Needs a model of embedding, layers, norm and head in a row, and nothing between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from daemon.contract.jobs.messages import Fallback
from daemon.contract.values import Json
from handlers.families.base import Family, Form, NotApplicableError, Part, release
from handlers.families.causal import CausalReference, refer
from handlers.families.chain.check import largest_error
from handlers.families.chain.modules import BlockModel, EmbeddingModel, HeadModel, obstacle
from handlers.families.trace_cases import tested
from handlers.folder.chain_signature import EMBEDDING, BlockSignature, Link, links
from handlers.graphs.comparison import Opener, open_graph
from handlers.graphs.graph_file import let_go
from handlers.graphs.weights import shared_weights
from handlers.models.folder import ModelFolder
from handlers.models.tasks import Task

CHAIN = "layers_per_graph"
"""Key in a GraphSet's `extra` that tells a chain."""
LAYERS_PER_GRAPH = 4
"""Where a strategy asks for a chain and no number is set: a gigabyte or two of a model of some billions of parameters."""


@dataclass(frozen=True)
class LayeredReference:
    """torch's outputs of the complete model, and how the model is divided."""

    whole: CausalReference
    links: tuple[Link, ...]
    """The graphs in the order in which they run."""
    tied: bool
    """Whether embedding and head are one tensor."""

    @property
    def untested(self) -> str:
        return self.whole.untested


class Layered(Family):
    """See `handlers.families.base.Family`."""

    name = "causal"

    def __init__(self, task: Task, per_graph: int, *, brief: bool = False) -> None:
        super().__init__(task)
        self.per_graph = per_graph
        self._brief = brief

    def briefly(self) -> Layered:
        """See `Causal.briefly`."""
        return Layered(self.task, self.per_graph, brief=True)

    def refer(self, model: Any, folder: Path) -> LayeredReference:
        whole = refer(model, folder, brief=self._brief)
        return LayeredReference(whole, links(whole.signature.layers, self.per_graph, whole.signature.position_ids), _tied(model, folder))

    def parts(self, model: Any, reference: LayeredReference) -> Sequence[Part]:
        """See `Family.parts`: embedding, head, blocks; the modules share the model's weights."""
        return [_part(model, link) for link in sorted(reference.links, key=lambda link: isinstance(link.signature, BlockSignature))]

    def signatures(self, reference: LayeredReference) -> Mapping[str, tuple[str, Any]]:
        """See `Family.signatures`; in the order in which the graphs run."""
        return {link.role: (link.file, link.signature) for link in reference.links}

    def extra(self, reference: LayeredReference) -> Json:
        """Return what graphs.json says of a chain."""
        return {CHAIN: self.per_graph, "tied_head": reference.tied}

    def tested(self, reference: LayeredReference) -> str:
        """Return what `verify` feeds, in words."""
        return tested(reference.whole.cases)

    def verify(self, folder: Path, reference: LayeredReference, *, threads: int = 1, opened: Opener = open_graph) -> float:
        """See `Family.verify`: the whole chain, one graph in memory at a time."""
        return largest_error(folder, reference.links, reference.whole.cases, threads, opened)

    def write(self, model: Any, reference: LayeredReference, make: Callable[[Part], ir.Model], folder: Path) -> dict[str, Path]:
        """Make the graphs one after the other and write each with its weights; role → path, in the order in which they run.

        A head that is tied to the embedding finds its weights in the embedding's file. The model's layers are empty afterwards.
        """
        parts = {part.file: part for part in self.parts(model, reference)}
        for files in _sharing(reference):
            made = {file: make(parts[file]) for file in files}
            if len(files) > 1:
                turn_back(made[files[-1]], model.model.embed_tokens.weight)
            shared_weights.write(made, folder, f"{files[0]}.data")
            let_go(made.values())
            for module in (parts[file].module for file in files):
                if isinstance(module, BlockModel):
                    release(module.stack.layers)
        return {link.role: folder / link.file for link in reference.links}

    def place(self, models: Mapping[str, ir.Model], reference: LayeredReference, folder: Path) -> dict[str, Path]:
        """Write finished graphs, by file, as `write` does; file → path."""
        for files in _sharing(reference):
            shared_weights.write({file: models[file] for file in files}, folder, f"{files[0]}.data")
        return {file: folder / file for file in models}


def _tied(model: Any, folder: Path) -> bool:
    """Return whether embedding and head are one tensor. In a model that is run layer by layer each of them has a place of its own."""
    if model.lm_head.weight is model.model.embed_tokens.weight:
        return True
    files = ModelFolder(folder)
    alone = files.pickled or any(name.endswith("lm_head.weight") for name in files.headers)
    return bool(model.config.tie_word_embeddings) and not alone


def _sharing(reference: LayeredReference) -> list[list[str]]:
    """Return the graphs' files, those together that have one file of weights: the ends first, then the blocks."""
    first, *blocks, last = (link.file for link in reference.links)
    return [*([[first, last]] if reference.tied else [[first], [last]]), *([block] for block in blocks)]


def _part(model: Any, link: Link) -> Part:
    """One graph to be exported, with inputs to trace it with."""
    signature = link.signature
    module: torch.nn.Module
    if isinstance(signature, BlockSignature):
        module = BlockModel(model, signature)
    else:
        module = EmbeddingModel(model) if link.role == EMBEDDING else HeadModel(model)
    return Part(link.role, link.file, signature, module.eval(), _example(model, link))


def _example(model: Any, link: Link) -> tuple[torch.Tensor, ...]:
    """Inputs as the causal family's: axes above 1 and unlike each other, a hole in the mask."""
    batch, tokens, past = 2, 3, 5
    generator = torch.Generator().manual_seed(11)
    embedding, signature = model.model.embed_tokens, link.signature
    if link.role == EMBEDDING:
        return (torch.randint(0, embedding.num_embeddings, (batch, tokens), generator=generator),)
    states = torch.randn(batch, tokens, embedding.embedding_dim, generator=generator)
    if not isinstance(signature, BlockSignature):
        return (states,)
    mask = torch.ones(batch, past + tokens, dtype=torch.long)
    mask[0, :2] = 0
    positions = torch.arange(past, past + tokens).repeat(batch, 1)
    cache = [torch.randn(batch, heads, past, size, generator=generator) for heads, size in signature.cache_sizes]
    return (states, mask, *((positions,) if signature.position_ids else ()), *cache)


def chained(task: Task, folder: Path, form: Form, per_graph: int) -> Layered:
    """Return the family that makes chains of the model in `folder`; NotApplicableError with the reason where it can't be divided."""
    if task.kind != "causal":
        raise NotApplicableError("only decoder-only models are divided into a chain of graphs")
    if form != Form():
        raise NotApplicableError("a chain of graphs has a cache and all its axes dynamic")
    if reason := obstacle(folder, task):
        raise NotApplicableError(reason)
    return Layered(task, per_graph)


def divided(family: Family, folder: Path, form: Form, per_graph: int, *, must: bool) -> tuple[Family, str]:
    """Return the family that makes a chain where one is asked for (`per_graph` above 0, or `must`), else `family`.

    With it comes why a chain that was asked for can't be made; with `must` that is a NotApplicableError.
    """
    if not (per_graph or must):
        return family, ""
    try:
        return chained(family.task, folder, form, per_graph or LAYERS_PER_GRAPH), ""
    except NotApplicableError as error:
        if must:
            raise
        return family, str(error)


def turn_back(head: ir.Model, embedding: torch.Tensor) -> None:
    """Let the head use the embedding (vocabulary, hidden) itself, and transpose it in the graph.

    The exporters transpose a weight that is used once, and a transposed one could not be shared.
    """
    for old in list(head.graph.initializers.values()):
        if old.const_value is None or tuple(old.const_value.shape) != tuple(reversed(embedding.shape)):
            continue
        if not np.array_equal(old.const_value.numpy(), embedding.numpy().T):
            continue
        weight = ir.Value(name=f"{old.name}_as_stored", const_value=ir.tensor(embedding.numpy()), type=old.type)
        weight.shape = ir.Shape(embedding.shape)
        turned = ir.node("Transpose", [weight], attributes={"perm": [1, 0]})
        ir.convenience.replace_all_uses_with(old, turned.outputs[0])
        turned.outputs[0].shape, turned.outputs[0].type = old.shape, old.type
        head.graph.insert_before(head.graph[0], turned)
        del head.graph.initializers[old.name or ""]
        head.graph.register_initializer(weight)


def forms(extra: Json, per_graph: int, reason: str) -> list[Fallback]:
    """Return what is recorded where a chain was made that nobody asked for, or none where one was; `extra` is that of graphs.json."""
    if bool(per_graph) == (CHAIN in extra):
        return []
    wanted, taken = ("a chain of graphs", "one graph") if per_graph else ("one graph", "a chain of graphs, a few layers each")
    return [Fallback(wanted=wanted, taken=taken, reason=reason or "nothing else worked")]
