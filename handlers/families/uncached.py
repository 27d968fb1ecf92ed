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

import numpy as np
import torch

from daemon.contract.values import Json
from handlers.families.base import Form, Graphs, Part, Tracing, load_model
from handlers.families.trace_cases import LONGEST, TraceCase, make_cases, tested
from handlers.folder.fixed_window import Window
from handlers.graphs.comparison import GraphMismatchError, largest_relative, open_graph
from handlers.graphs.graph_file import MODEL_FILE
from handlers.graphs.signature import BATCH, SEQUENCE, Signature
from handlers.models.files import setting
from handlers.models.tasks import Task

WINDOW = 128
"""Tokens of a graph of fixed size, or the model's own context where that is shorter: enough for a sentence's completion, and small
enough for the devices that need fixed sizes."""


@dataclass(frozen=True)
class UncachedSignature:
    """Inputs and outputs of a decoder without a cache."""

    position_ids: bool
    dynamic: tuple[str, ...] = (BATCH, SEQUENCE)
    """Names of the axes that are dynamic."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """All inputs."""
        return ("input_ids", "attention_mask", *(("position_ids",) if self.position_ids else ()))

    @property
    def outputs(self) -> tuple[str, ...]:
        """All outputs."""
        return ("logits",)

    @property
    def axes(self) -> dict[str, dict[int, str]]:
        """Input or output → its dynamic axes by position."""
        named = {place: name for place, name in enumerate((BATCH, SEQUENCE)) if name in self.dynamic}
        return {name: dict(named) for name in (*self.inputs, *self.outputs)}


@dataclass(frozen=True)
class UncachedReference:
    """What torch says about a few prompts in one pass each."""

    signature: UncachedSignature
    cases: tuple[TraceCase, ...]
    window: int | None
    """Tokens of the graph; None where their number is dynamic."""
    untested: str = ""


class PlainModel(torch.nn.Module):
    """A causal model reduced to its logits."""

    def __init__(self, model: torch.nn.Module, signature: UncachedSignature) -> None:
        super().__init__()
        self.model = model
        self.names = signature.inputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
        """Tensors in the order of the signature's inputs, (rows, tokens) each; gives logits (rows, tokens, vocabulary)."""
        return (self.model(**dict(zip(self.names, tensors, strict=True)), use_cache=False).logits,)


class Uncached:
    """See `handlers.families.base.Family`."""

    name = "causal"

    def __init__(self, task: Task, form: Form) -> None:
        self.task = task
        self.form = form

    def load(self, folder: Path, tracing: Tracing) -> Any:
        return load_model(folder, self.task, tracing)

    def refer(self, model: Any, folder: Path) -> UncachedReference:
        dynamic = {"all": (BATCH, SEQUENCE), "lengths": (SEQUENCE,), "batch": (BATCH,), "none": ()}[self.form.axes]
        signature = UncachedSignature("position_ids" in inspect.signature(model.forward).parameters, dynamic)
        window = None
        if SEQUENCE not in dynamic:
            positions = setting(model.config.to_dict(), "max_position_embeddings")
            window = min(WINDOW, positions) if isinstance(positions, int) else WINDOW
        vocabulary = int(model.get_input_embeddings().num_embeddings)
        longest = LONGEST if window is None else window
        cases, untested = make_cases(model, vocabulary, positions=signature.position_ids, cache=False, longest=longest)
        if BATCH not in dynamic:
            cases = tuple(row for case in cases for row in case.rows())
        return UncachedReference(signature, cases, window, "" if window else untested)

    def parts(self, model: Any, reference: UncachedReference) -> Sequence[Part]:
        signature = reference.signature
        rows = 2 if BATCH in signature.dynamic else 1
        tokens = reference.window or 5
        generator = torch.Generator().manual_seed(11)
        ids = torch.randint(0, int(model.get_input_embeddings().num_embeddings), (rows, tokens), generator=generator)
        mask = torch.ones_like(ids)
        mask[0, tokens - 2 :] = 0
        positions = (torch.arange(tokens).repeat(rows, 1),) if signature.position_ids else ()
        return [Part("model", MODEL_FILE, signature, PlainModel(model, signature).eval(), (ids, mask, *positions))]

    def finish(self, graphs: Graphs) -> Graphs:
        return graphs

    def signatures(self, reference: UncachedReference) -> Mapping[str, tuple[str, Signature]]:
        return {"model": (MODEL_FILE, reference.signature)}

    def extra(self, reference: UncachedReference) -> Json:
        """Return what graphs.json says of this form."""
        return {"cache": False, "dynamic_axes": self.form.axes, "window": reference.window}

    def tested(self, reference: UncachedReference) -> str:
        """Return what `verify` feeds, in words."""
        return tested(reference.cases)

    def verify(self, folder: Path, reference: UncachedReference, *, threads: int = 1) -> float:
        """See `Family.verify`: the graph as `handlers.folder.fixed_window` drives it."""
        window = Window(open_graph(folder / MODEL_FILE, reference.signature, threads))
        largest = 0.0
        for case in reference.cases:
            logits = window.logits(case.ids, case.mask, case.positions)
            if not np.isfinite(logits).all():
                raise GraphMismatchError("the graph's logits hold values that are not finite")
            real = case.mask.astype(bool)
            largest = max(largest, largest_relative(logits[real], case.logits[real], "logits"))
        return largest
