"""The programs that a model is divided into, by the kind of the model: modules with fixed sizes, an example, and names.

Called by the stage. A program has one row, and one free axis: its tokens (or the tokens of its source), within bounds. A language
model takes up to CHUNK tokens at once and its whole cache; an encoder takes a text; of an encoder-decoder the encoder gives the keys and
values that the decoder attends to, so that they are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput
from transformers.pytorch_utils import Conv1D

from handlers.families.causal import CausalReference
from handlers.families.encoder import EncoderReference, OnePass
from handlers.families.seq2seq.check import Seq2SeqReference
from handlers.families.seq2seq.ports import cache_names
from handlers.static_programs.tracing.fixed_cache import fixed_cache

CHUNK = 32
"""Tokens that a decoder takes at once at most."""
TOKENS, SOURCE = "tokens", "source"
"""Free axes: new tokens, or the tokens of an encoder's text; the tokens of a source, for the decoder."""
IDS, POSITIONS, MASK, CROSS_MASK = "input_ids", "position_ids", "attention_mask", "encoder_attention_mask"


@dataclass(frozen=True)
class FixedPart:
    """One program to be made."""

    role: str
    file: str
    module: torch.nn.Module
    example: Mapping[str, torch.Tensor]
    """Input → example, in the order of the module's arguments."""
    outputs: tuple[str, ...]
    free: Mapping[str, Mapping[int, str]]
    """Input or output → its free axes by place."""
    bounds: Mapping[str, tuple[int, int]]
    """Free axis → fewest and most."""


class Decoder(torch.nn.Module):
    """input_ids, position_ids, keys and values of all layers → logits, and the keys and values with the new rows in them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """ids and positions (1, tokens); the past as `fixed_cache` takes it."""
        cache = fixed_cache(past, positions[0])
        output = self.model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True)
        return (output.logits, *_flat(cache))


class CrossCache(torch.nn.Module):
    """input_ids, attention_mask → keys and values of each of the decoder's layers for this source."""

    def __init__(self, model: Any, start: int) -> None:
        super().__init__()
        self.model, self._start = model, start

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Both (1, source)."""
        states = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # What a first step of the decoder computes besides is left out of the program, since nothing reads it.
        self.model(
            decoder_input_ids=torch.full((1, 1), self._start), encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=mask, past_key_values=cache, use_cache=True,
        )  # fmt: skip
        return _flat(cache.cross_attention_cache)


class CrossDecoder(torch.nn.Module):
    """As `Decoder`, with the source's mask and keys and values between."""

    def __init__(self, model: Any, width: int) -> None:
        super().__init__()
        self.model, self._width = model, width

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """ids and positions (1, tokens), mask (1, source); the past: all of the source's keys and values, then all of its own."""
        middle = len(past) // 2
        crossed, own = past[:middle], fixed_cache(past[middle:], positions[0])
        cache = EncoderDecoderCache(own, DynamicCache(list(zip(crossed[::2], crossed[1::2], strict=True))))
        cache.is_updated = dict.fromkeys(range(middle // 2), True)
        length = past[-1].shape[2]
        # The states' length is read and nothing else, since the cache holds what would be made of them.
        output = self.model(
            decoder_input_ids=ids, encoder_outputs=BaseModelOutput(last_hidden_state=torch.zeros(1, mask.shape[1], self._width)),
            attention_mask=mask, decoder_attention_mask=torch.ones(1, length, dtype=torch.int32), past_key_values=cache, use_cache=True,
        )  # fmt: skip
        return (output.logits, *_flat(own))


def _flat(cache: Any) -> tuple[torch.Tensor, ...]:
    """Keys and values of each layer in turn."""
    return tuple(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


def causal(model: Any, reference: CausalReference, length: int) -> list[FixedPart]:
    """A language model with room for `length` tokens."""
    signature = reference.signature
    example = {**_tokens(), **{name: torch.zeros(1, heads, length, width) for name, (heads, width) in _cache(signature)}}
    free = _along(1, TOKENS, IDS, POSITIONS, "logits")
    return [FixedPart("model", "model.pt2", Decoder(model), example, signature.outputs, free, {TOKENS: (1, min(CHUNK, length))})]


def encoder(model: Any, reference: EncoderReference, length: int) -> list[FixedPart]:
    """An encoder with room for `length` tokens."""
    signature = reference.signature
    example = {name: torch.ones(1, 5, dtype=torch.int32) for name in signature.inputs}
    free = {name: {1: TOKENS} for name, axes in signature.axes.items() if 1 in axes}
    return [FixedPart("model", "model.pt2", OnePass(model, signature), example, signature.outputs, free, {TOKENS: (2, length)})]


def seq2seq(model: Any, reference: Seq2SeqReference, length: int) -> list[FixedPart]:
    """An encoder-decoder with room for `length` tokens of a source and as many of its answer."""
    case = reference.cases[0]
    sizes = {name: (array.shape[1], array.shape[3]) for name, array in case.cache.items()}
    crossed, own = (cache_names("past_key_values", reference.layers, side) for side in ("encoder", "decoder"))
    present = [cache_names("present", reference.layers, side) for side in ("encoder", "decoder")]

    def zeros(names: tuple[str, ...], rows: int) -> dict[str, torch.Tensor]:
        shapes = {name: sizes[name.replace("past_key_values", "present", 1)] for name in names}
        return {name: torch.zeros(1, heads, rows, width) for name, (heads, width) in shapes.items()}

    source = 7
    texts = {name: torch.ones(1, source, dtype=torch.int32) for name in (IDS, MASK)}
    example = {**_tokens(), CROSS_MASK: texts[MASK], **zeros(crossed, source), **zeros(own, length)}
    ends = _along(2, SOURCE, *crossed, *present[0])
    bounds = {TOKENS: (1, min(CHUNK, length)), SOURCE: (2, length)}
    start = int(model.generation_config.decoder_start_token_id or model.config.get_text_config().decoder_start_token_id or 0)
    return [
        FixedPart(
            "encoder", "encoder_model.pt2", CrossCache(model, start), texts, present[0],
            {**_along(1, SOURCE, IDS, MASK), **ends}, {SOURCE: bounds[SOURCE]},
        ),
        FixedPart(
            "decoder", "decoder_model.pt2", CrossDecoder(model, case.states.shape[2]), example, ("logits", *present[1]),
            {**_along(1, TOKENS, IDS, POSITIONS, "logits"), **_along(1, SOURCE, CROSS_MASK), **ends}, bounds,
        ),
    ]  # fmt: skip


def _along(place: int, axis: str, *names: str) -> dict[str, Mapping[int, str]]:
    """Each of the inputs or outputs with one free axis."""
    return {name: {place: axis} for name in names}


def linear(model: torch.nn.Module) -> None:
    """Replace GPT-2's Conv1D, whose weights lie the other way round, by Linear: what devices multiply by and quantize."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, Conv1D):
                made = torch.nn.Linear(child.weight.shape[0], child.weight.shape[1])
                made.weight = torch.nn.Parameter(child.weight.t().contiguous(), requires_grad=False)
                made.bias = torch.nn.Parameter(child.bias, requires_grad=False)
                setattr(parent, name, made)


def _tokens() -> dict[str, torch.Tensor]:
    """Three tokens at the start."""
    places = torch.arange(3, dtype=torch.int32)[None]
    return {IDS: torch.zeros_like(places), POSITIONS: places}


def _cache(signature: Any) -> list[tuple[str, tuple[int, int]]]:
    return list(zip(signature.past, signature.cache_sizes, strict=True))
