"""Decoder-only language models: one graph for prefill and decoding, with KV cache.

Chosen by `handlers.families.choice.choose`. What a model's cache looks like is learnt from a forward pass over a few tokens,
not from its configuration, since every family names those settings differently. `Causal.shaped` gives the forms that give something up:
one row at a time, and (in `uncached`) no cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from daemon.contract.values import Json
from handlers.families.base import Family, Form, NotApplicableError, Part, unsupported
from handlers.families.trace_cases import TraceCase, compare, make_cases, run_in_steps, tested
from handlers.families.uncached import Uncached
from handlers.graphs.comparison import Opener, open_graph
from handlers.graphs.graph_file import MODEL_FILE
from handlers.graphs.signature import CacheLayer, CausalSignature, Signature
from handlers.models.tasks import Task


@dataclass(frozen=True)
class CausalReference:
    """torch's outputs for a few prompts, each fed in the same steps as the graph's check feeds it."""

    signature: CausalSignature
    cases: tuple[TraceCase, ...]
    untested: str = ""
    """A length beyond which the model computes differently and that is too long to be tried; "" if there is none."""


class FlatCacheModel(torch.nn.Module):
    """A causal model whose cache is a flat list of tensors in inputs and outputs, as ONNX needs it."""

    def __init__(self, model: torch.nn.Module, signature: CausalSignature) -> None:
        super().__init__()
        self.model = model
        self.names = signature.token_inputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tensors in the order of the signature's inputs; gives logits and the cache's keys and values in turn."""
        count = len(self.names)
        past = tensors[count:]
        cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        output = self.model(**dict(zip(self.names, tensors[:count], strict=True)), past_key_values=cache, use_cache=True)
        return (output.logits, *(tensor for layer in output.past_key_values.layers for tensor in (layer.keys, layer.values)))


def _vocabulary(model: Any) -> int:
    return int(model.get_input_embeddings().num_embeddings)


def _cache_layers(cache: Any, folder: Path) -> tuple[CacheLayer, ...]:
    layers = getattr(cache, "layers", None)
    if not isinstance(cache, DynamicCache) or not layers:
        raise unsupported(
            folder, "the model keeps no cache of keys and values" if cache is None else "the model has a cache of its own kind"
        )
    cache_layers = []
    for index, layer in enumerate(layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        # Another class, one that is derived from these too, keeps something besides, which a graph with keys and values would lose.
        plain = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
        if not (plain and isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.ndim == values.ndim == 4):
            raise unsupported(folder, f"its layer {index} keeps something else than keys and values of each token")
        cache_layers.append(CacheLayer(keys.shape[1], keys.shape[3], values.shape[3]))
    return tuple(cache_layers)


def takes_positions(model: Any) -> bool:
    """Return whether the model's forward takes position_ids."""
    return "position_ids" in inspect.signature(model.forward).parameters


def refer(model: Any, folder: Path, *, brief: bool = False) -> CausalReference:
    """Run the model over a few prompts, or (`brief`) over the most telling ones; Permanent when it keeps no standard cache."""
    with torch.inference_mode():
        probe = model(input_ids=torch.tensor([[1, 2]]) % _vocabulary(model), use_cache=True)
    signature = CausalSignature(_cache_layers(getattr(probe, "past_key_values", None), folder), takes_positions(model))
    cases, untested = make_cases(model, _vocabulary(model), positions=signature.position_ids, brief=brief)
    return CausalReference(signature, cases, untested)


def example_inputs(model: Any, signature: CausalSignature, batch: int = 2) -> tuple[torch.Tensor, ...]:
    """Contiguous inputs to trace with: every dynamic axis above 1 and unlike the others, a hole in the mask.

    An axis of 1 would be taken for a constant, and a mask of ones would be dropped from the graph.
    """
    sequence, past = 3, 5
    generator = torch.Generator().manual_seed(11)
    ids = torch.randint(0, _vocabulary(model), (batch, sequence), generator=generator)
    mask = torch.ones(batch, past + sequence, dtype=torch.long)
    mask[0, :2] = 0
    positions = torch.arange(past, past + sequence).repeat(batch, 1)
    cache = [torch.randn(batch, heads, past, size, generator=generator) for heads, size in signature.cache_sizes]
    return (ids, mask, *((positions,) if signature.position_ids else ()), *cache)


class Causal(Family):
    """See `handlers.families.base.Family`."""

    name = "causal"

    def __init__(self, task: Task, form: Form = Form(), *, brief: bool = False) -> None:  # noqa: B008 (frozen)
        super().__init__(task)
        self.form = form
        self._brief = brief

    def briefly(self) -> Causal:
        """Return the same, compared with fewer prompts: for a graph of which a smaller one was compared with all."""
        return Causal(self.task, self.form, brief=True)

    def shaped(self, form: Form) -> Family:
        """Return the family that makes graphs of `form`. With a cache only the batch can be fixed: a past of fixed length is of no use."""
        if not form.cache:
            return Uncached(self.task, form)
        if form.axes not in ("all", "lengths"):
            raise NotApplicableError("a graph with a cache needs dynamic lengths")
        return Causal(self.task, form)

    def refer(self, model: Any, folder: Path) -> CausalReference:
        """See `Family.refer`; Permanent for a model that keeps no standard cache."""
        reference = refer(model, folder, brief=self._brief)
        if self.form.axes == "all":
            return reference
        rows = tuple(row for case in reference.cases for row in case.rows())
        return CausalReference(replace(reference.signature, batches=False), rows, reference.untested)

    def parts(self, model: Any, reference: CausalReference) -> Sequence[Part]:
        signature = reference.signature
        example = example_inputs(model, signature, batch=2 if self.form.axes == "all" else 1)
        return [Part("model", MODEL_FILE, signature, FlatCacheModel(model, signature).eval(), example)]

    def signatures(self, reference: CausalReference) -> Mapping[str, tuple[str, Signature]]:
        return {"model": (MODEL_FILE, reference.signature)}

    def extra(self, reference: CausalReference) -> Json:
        """Return what graphs.json says of a form that is not the usual one."""
        return {} if self.form.axes == "all" else {"dynamic_axes": self.form.axes}

    def tested(self, reference: CausalReference) -> str:
        """Return what `verify` feeds, in words."""
        return tested(reference.cases)

    def verify(self, folder: Path, reference: CausalReference, *, threads: int = 1, opened: Opener = open_graph) -> float:
        signature = reference.signature
        session = opened(folder / MODEL_FILE, signature, threads)
        return max(compare(case, run_in_steps(session, signature, case, case.ids)) for case in reference.cases)
