"""Decoder-only language models: which are taken, how they are loaded, wrapped, and run for reference.

Called by the onnx stage. What a model's cache looks like is learnt from a forward pass over a few tokens, not from
its configuration, since every family names those settings differently.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from daemon.errors import Permanent
from handlers.model_files import read_json, setting
from handlers.onnx.signature import CacheLayer, Signature
from handlers.plan import VARIANTS, plan

OPERATION = "export the model to ONNX"
STEPS = (7, 1, 3)
"""Tokens of the calls that the graph's check makes: a prefill, one decoded token, a chunk after a past."""
ROWS, PADDING = 3, 2


@dataclass(frozen=True)
class Reference:
    """What torch says about a few tokens, in one pass without a past.

    `ids`, `mask` and `positions` are int64 (rows, tokens), `logits` fp32 (rows, tokens, vocabulary); the second row is padded on the left.
    """

    signature: Signature
    ids: np.ndarray
    mask: np.ndarray
    positions: np.ndarray
    logits: np.ndarray


def unsupported(folder: Path, cause: str) -> Permanent:
    """The error for a model that this stage can't export; it names the variants that don't go through ONNX."""
    others = [name for name in VARIANTS if "onnx" not in {spec.name for spec in plan([name])}]
    return Permanent(
        "unsupported-architecture", OPERATION, cause, f"leave the onnx variants out; these still work: {', '.join(others)}", path=folder
    )


def require_causal(folder: Path) -> str:
    """Architecture of a decoder-only language model; Permanent `unsupported-architecture` for any other model."""
    config = read_json(folder / "config.json", OPERATION)
    names = config.get("architectures") or []
    if not names:
        raise unsupported(folder, "config.json names no architecture")
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if names[0] not in known or config.get("is_encoder_decoder"):
        raise unsupported(folder, f"{names[0]} is not a decoder-only language model that transformers knows as one")
    return str(names[0])


def has_experts(folder: Path) -> bool:
    """Whether the model is a mixture of experts."""
    config = read_json(folder / "config.json", OPERATION)
    return any(setting(config, key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


def load(folder: Path, attention: str, experts: str | None = None) -> Any:
    """The model of `folder` in fp32 on the CPU, in evaluation mode, every weight taken from its files.

    `attention` and `experts` name implementations of transformers. Permanent when it can't be loaded or lacks weights.
    """
    loader: Any = AutoModelForCausalLM
    try:
        model, info = loader.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True, output_loading_info=True
        )
    except (KeyError, ImportError) as error:
        raise unsupported(folder, f"transformers cannot load it ({type(error).__name__}: {error})") from error
    lost = sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"]))
    if lost:
        raise Permanent(
            "missing-weights",
            OPERATION,
            f"{len(lost)} weights are not in the files, for example {lost[0]}",
            "check the merge stage's output; random weights are never exported",
            path=folder,
        )
    if experts is not None:
        model.set_experts_implementation(experts)
    return model.eval().requires_grad_(False)


def release(model: torch.nn.Module) -> None:
    """Give the weights' memory back now; the exporter keeps references to the model in caches of its own."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = torch.empty(0)


class FlatCacheModel(torch.nn.Module):
    """A causal model whose cache comes and goes as a flat list of tensors, as ONNX wants it."""

    def __init__(self, model: torch.nn.Module, signature: Signature) -> None:
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
    signature = Signature(_cache_layers(getattr(output, "past_key_values", None), folder), takes_positions)
    return Reference(signature, ids.numpy(), mask.numpy(), positions.numpy(), output.logits.float().numpy())


def example_inputs(model: Any, signature: Signature) -> tuple[torch.Tensor, ...]:
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
