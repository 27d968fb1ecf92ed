"""A decoder taken apart: its embedding, some of its layers, its head, as modules that share the whole model's weights.

Used by `handlers.families.chain.family`. A block is the model's own forward over a part of its layers, so whatever that does about
masks, windows and positions stays as it is. What it does to the vectors before or after the layers would be done by every block:
`obstacle` finds that out on a small model of the same kind, before a large one is loaded.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, DynamicCache

from handlers.child import foreign
from handlers.families.base import OPERATION
from handlers.families.tiny_config import shrunk
from handlers.folder.chain_signature import BlockSignature
from handlers.models.files import read_json
from handlers.models.tasks import Task

_PARTS = ("embed_tokens", "layers", "norm", "rotary_emb")
_PER_LAYER = ("layer_types", "mlp_layer_types")
"""Settings with one value for each layer, which a model's forward looks up by the layer's place."""


class _PartOfCache(DynamicCache):
    """The cache of the layers from number `first` on, which go on counting as in the whole model."""

    def __init__(self, pairs: list[tuple[torch.Tensor, torch.Tensor]], first: int) -> None:
        super().__init__(pairs)
        self.first = first

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DynamicCache.update`; `layer_idx` is the layer's number in the whole model."""
        return super().update(key_states, value_states, layer_idx - self.first, *args, **kwargs)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Keys and values in turn."""
        kept: list[Any] = list(self.layers)
        return tuple(tensor for layer in kept for tensor in (layer.keys, layer.values))


class EmbeddingModel(torch.nn.Module):
    """Token ids (batch, sequence) → vectors (batch, sequence, hidden)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embedding = model.model.embed_tokens

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
        """One tensor comes and one goes; in a tuple, as the exporters want it."""
        (ids,) = tensors
        return (self.embedding(ids),)


class HeadModel(torch.nn.Module):
    """Vectors (batch, sequence, hidden) → logits (batch, sequence, vocabulary)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.norm, self.head = model.model.norm, model.lm_head

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
        """One tensor comes and one goes; in a tuple, as the exporters want it."""
        (states,) = tensors
        return (self.head(self.norm(states)),)


class BlockModel(torch.nn.Module):
    """Some layers of a model; tensors come and go in the order of the signature."""

    def __init__(self, model: Any, signature: BlockSignature) -> None:
        super().__init__()
        self.stack = _sliced(model.model, signature.first, len(signature.layers))
        self.names = ("inputs_embeds", *signature.token_inputs[1:])
        self.first = signature.first

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tensors in the order of the signature's inputs; gives vectors and the cache's keys and values in turn."""
        count = len(self.names)
        past = tensors[count:]
        cache = _PartOfCache(list(zip(past[::2], past[1::2], strict=True)), self.first)
        output = self.stack(**dict(zip(self.names, tensors[:count], strict=True)), past_key_values=cache, use_cache=True)
        return (output.last_hidden_state, *cache.tensors)


def _sliced(stack: Any, first: int, count: int) -> Any:
    """Return a model without its head, reduced to some of its layers: no embedding, no last norm."""
    part = copy.copy(stack)
    part._modules = dict(stack._modules)
    part.layers = torch.nn.ModuleList(list(stack.layers)[first : first + count])
    part.embed_tokens, part.norm = None, torch.nn.Identity()
    part.config = copy.deepcopy(stack.config)
    for name in _PER_LAYER:
        values = getattr(stack.config, name, None)
        if isinstance(values, list):
            setattr(part.config, name, values[first : first + count])
    return part


def obstacle(folder: Path, task: Task) -> str:
    """Return why the model of `folder` can't be divided into a chain, as one clause; "" where it can.

    Tried on a small model with the same configuration and random weights, whose parts are run one after the other.
    """
    config = read_json(folder / "config.json", OPERATION)
    try:
        small: Any = AutoConfig.for_model(**shrunk(config))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            model: Any = getattr(transformers, task.auto).from_config(small, dtype=torch.float32, attn_implementation="eager").eval()
    except Exception as error:  # whatever a configuration of an unknown kind raises
        return f"no small model of its configuration can be built to test the division ({foreign.in_words(error)})"
    stack = getattr(model, "model", None)
    lost = [name for name in _PARTS if not hasattr(stack, name)] + [name for name in ("lm_head",) if not hasattr(model, name)]
    if lost:
        return f"its modules are not embedding, layers, norm and head in sequence (missing: {', '.join(lost)})"
    try:
        return _unequal(model)
    except Exception as error:  # a model whose forward expects what a part of it does not have
        return f"its layers do not run by themselves ({foreign.in_words(error)})"


@torch.inference_mode()
def _unequal(model: Any) -> str:
    """Run all layers at once, and one by one; says whether that differs."""
    ids = torch.arange(7)[None] % model.model.embed_tokens.num_embeddings
    cache = _PartOfCache([], 0)
    whole = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
    (states,) = EmbeddingModel(model)(ids)
    for number in range(len(cache.layers)):
        stack = _sliced(model.model, number, 1)
        states = stack(inputs_embeds=states, past_key_values=_PartOfCache([], number), use_cache=True).last_hidden_state
    (logits,) = HeadModel(model)(states)
    if torch.allclose(logits, whole, rtol=1e-3, atol=1e-4 * float(whole.abs().max())):
        return ""
    return "it has other computations besides its embedding, its layers and its head, so a chain of these computes something else"
