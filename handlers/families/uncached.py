"""Decoder-only language models without a cache: token ids in, logits out; of dynamic or of fixed size.

A simpler graph, for what has no KV cache to speak of, for engines that want no cache, and as a fallback if the graph with a cache can't be
made. Each new token costs a pass over all of them. With a fixed sequence it is a *window*: a prompt of up to `window` tokens, padded on the
right, whose next token is read at its last real position; `handlers.folder.fixed_window` runs such graphs. Given by `Causal.shaped`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from daemon.contract.values import Json
from handlers.families.base import Family, Form, Part
from handlers.families.trace_cases import LONGEST, TraceCase, compare, make_cases, tested
from handlers.folder.fixed_window import Window
from handlers.graphs.comparison import Opener, open_graph
from handlers.graphs.graph_file import MODEL_FILE
from handlers.graphs.signature import BATCH, SEQUENCE, Ports, Signature
from handlers.models.files import setting
from handlers.models.tasks import Task

WINDOW = 128
"""Tokens of a graph of fixed size, or the model's own context where that is shorter: enough for a sentence's completion, and small
enough for the devices that need fixed sizes."""


@dataclass(frozen=True)
class UncachedReference:
    """What torch says about a few prompts in one pass each."""

    signature: Signature
    cases: tuple[TraceCase, ...]
    window: int | None
    """Tokens of the graph; None where their number is dynamic."""
    untested: str = ""


class PlainModel(torch.nn.Module):
    """A causal model reduced to its logits."""

    def __init__(self, model: torch.nn.Module, signature: Signature) -> None:
        super().__init__()
        self.model = model
        self.names = signature.inputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
        """Tensors in the order of the signature's inputs, (rows, tokens) each; gives logits (rows, tokens, vocabulary)."""
        return (self.model(**dict(zip(self.names, tensors, strict=True)), use_cache=False).logits,)


class Uncached(Family):
    """See `handlers.families.base.Family`."""

    name = "causal"

    def __init__(self, task: Task, form: Form) -> None:
        super().__init__(task)
        self.form = form

    def refer(self, model: Any, folder: Path) -> UncachedReference:
        dynamic = {"all": (BATCH, SEQUENCE), "lengths": (SEQUENCE,), "batch": (BATCH,), "none": ()}[self.form.axes]
        axes = {place: name for place, name in enumerate((BATCH, SEQUENCE)) if name in dynamic}
        positions = "position_ids" in inspect.signature(model.forward).parameters
        inputs = ("input_ids", "attention_mask", *(("position_ids",) if positions else ()))
        signature = Ports(inputs, ("logits",), dict.fromkeys((*inputs, "logits"), axes))
        window = None
        if SEQUENCE not in dynamic:
            longest = setting(model.config.to_dict(), "max_position_embeddings")
            window = min(WINDOW, longest) if isinstance(longest, int) else WINDOW
        vocabulary = int(model.get_input_embeddings().num_embeddings)
        cases, untested = make_cases(model, vocabulary, positions=positions, cache=False, longest=window or LONGEST)
        if BATCH not in dynamic:
            cases = tuple(row for case in cases for row in case.rows())
        return UncachedReference(signature, cases, window, "" if window else untested)

    def parts(self, model: Any, reference: UncachedReference) -> Sequence[Part]:
        signature = reference.signature
        rows = 2 if self.form.axes in ("all", "batch") else 1
        tokens = reference.window or 5
        generator = torch.Generator().manual_seed(11)
        ids = torch.randint(0, int(model.get_input_embeddings().num_embeddings), (rows, tokens), generator=generator)
        mask = torch.ones_like(ids)
        mask[0, tokens - 2 :] = 0
        positions = (torch.arange(tokens).repeat(rows, 1),) if "position_ids" in signature.inputs else ()
        return [Part("model", MODEL_FILE, signature, PlainModel(model, signature).eval(), (ids, mask, *positions))]

    def signatures(self, reference: UncachedReference) -> Mapping[str, tuple[str, Signature]]:
        return {"model": (MODEL_FILE, reference.signature)}

    def extra(self, reference: UncachedReference) -> Json:
        """Return what graphs.json says of this form."""
        return {"cache": False, "dynamic_axes": self.form.axes, "window": reference.window}

    def tested(self, reference: UncachedReference) -> str:
        """Return what `verify` feeds, in words."""
        return tested(reference.cases)

    def verify(self, folder: Path, reference: UncachedReference, *, threads: int = 1, opened: Opener = open_graph) -> float:
        """See `Family.verify`: the graph as `handlers.folder.fixed_window` drives it."""
        window = Window(opened(folder / MODEL_FILE, reference.signature, threads))
        return max(compare(case, window.logits(case.ids, case.mask, case.positions)) for case in reference.cases)
