"""Decoder-only language models: one graph for prefill and decoding, with KV cache.

Chosen by `handlers.onnx.families.choose`. What a model's cache looks like is learnt from a forward pass over a few tokens, not from
its configuration, since every family names those settings differently.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from transformers import DynamicCache

from handlers.onnx.check import GraphMismatchError, largest_relative, open_graph
from handlers.onnx.families.base import Part, Tracing, load_model, unsupported
from handlers.onnx.graph import MODEL_FILE
from handlers.onnx.signature import CacheLayer, CausalSignature, Signature
from handlers.tasks import Task

STEPS = (7, 1, 3)
"""Tokens of the calls that the graph's check makes: a prefill, one decoded token, a chunk after a past."""
ROWS, PADDING = 3, 2


@dataclass(frozen=True)
class Reference:
    """What torch says about a few tokens, in one pass without a past.

    `ids`, `mask` and `positions` are int64 (rows, tokens), `logits` fp32 (rows, tokens, vocabulary); the second row is padded on the left.
    """

    signature: CausalSignature
    ids: np.ndarray
    mask: np.ndarray
    positions: np.ndarray
    logits: np.ndarray


class FlatCacheModel(torch.nn.Module):
    """A causal model whose cache comes and goes as a flat list of tensors, as ONNX wants it."""

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
        kind = (
            "it keeps no cache of keys and values"
            if cache is None
            else f"its cache is a {type(cache).__name__}, not keys and values a layer"
        )
        raise unsupported(folder, kind)
    found = []
    for index, layer in enumerate(layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not (isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.ndim == values.ndim == 4):
            raise unsupported(folder, f"layer {index} keeps its state in a {type(layer).__name__}, not in keys and values")
        found.append(CacheLayer(keys.shape[1], keys.shape[3], values.shape[3]))
    return tuple(found)


def refer(model: Any, folder: Path) -> Reference:
    """Run the model once over a few tokens; Permanent when it keeps no standard cache."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, _vocabulary(model), (ROWS, sum(STEPS)), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :PADDING] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    extra = {"position_ids": positions} if takes_positions else {}
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask, use_cache=True, **extra)
    signature = CausalSignature(_cache_layers(getattr(output, "past_key_values", None), folder), takes_positions)
    return Reference(signature, ids.numpy(), mask.numpy(), positions.numpy(), output.logits.float().numpy())


def example_inputs(model: Any, signature: CausalSignature) -> tuple[torch.Tensor, ...]:
    """Contiguous inputs to trace with: every dynamic axis above 1 and unlike the others, a hole in the mask.

    An axis of 1 would be taken for a constant, and a mask of ones would be dropped from the graph.
    """
    batch, sequence, past = 2, 3, 5
    generator = torch.Generator().manual_seed(11)
    ids = torch.randint(0, _vocabulary(model), (batch, sequence), generator=generator)
    mask = torch.ones(batch, past + sequence, dtype=torch.long)
    mask[0, :2] = 0
    positions = torch.arange(past, past + sequence).repeat(batch, 1)
    cache = [torch.randn(batch, heads, past, size, generator=generator) for heads, size in signature.cache_sizes]
    return (ids, mask, *((positions,) if signature.position_ids else ()), *cache)


def _run_in_steps(session: onnxruntime.InferenceSession, reference: Reference) -> np.ndarray:
    """Logits (rows, tokens, vocabulary) of the reference's tokens, fed in STEPS with the graph's own cache."""
    signature = reference.signature
    rows = len(reference.ids)
    cache = [np.zeros((rows, heads, 0, size), np.float32) for heads, size in signature.cache_sizes]
    logits, start = [], 0
    for step in STEPS:
        end = start + step
        feeds = {"input_ids": reference.ids[:, start:end], "attention_mask": reference.mask[:, :end]}
        if signature.position_ids:
            feeds["position_ids"] = reference.positions[:, start:end]
        answer, *cache = session.run(None, {**feeds, **dict(zip(signature.past, cache, strict=True))})
        logits.append(answer)
        start = end
    return np.concatenate(logits, axis=1)


class Causal:
    """See `handlers.onnx.families.base.Family`."""

    name = "causal"

    def __init__(self, task: Task) -> None:
        self.task = task

    def load(self, folder: Path, tracing: Tracing) -> Any:
        """See `Family.load`."""
        return load_model(folder, self.task, tracing)

    def refer(self, model: Any, folder: Path) -> Reference:
        """See `Family.refer`; Permanent for a model that keeps no standard cache."""
        return refer(model, folder)

    def parts(self, model: Any, reference: Reference) -> Sequence[Part]:
        """See `Family.parts`."""
        signature = reference.signature
        return [Part("model", MODEL_FILE, signature, FlatCacheModel(model, signature).eval(), example_inputs(model, signature))]

    def finish(self, graphs: dict[str, Any]) -> dict[str, Any]:
        """See `Family.finish`."""
        return graphs

    def signatures(self, reference: Reference) -> Mapping[str, tuple[str, Signature]]:
        """See `Family.signatures`."""
        return {"model": (MODEL_FILE, reference.signature)}

    def verify(self, folder: Path, reference: Reference, *, threads: int = 1) -> float:
        """See `Family.verify`. Padding positions may say anything that is finite: what a masked token sees is undefined."""
        session = open_graph(folder / MODEL_FILE, reference.signature, threads)
        logits = _run_in_steps(session, reference)
        if not np.isfinite(logits).all():
            raise GraphMismatchError("the graph's logits hold values that are not finite")
        real = reference.mask.astype(bool)
        return largest_relative(logits[real], reference.logits[real], "logits")
