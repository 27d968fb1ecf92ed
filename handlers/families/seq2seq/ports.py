"""Names, order and axes of the graphs of an encoder-decoder.

Used by the family `seq2seq`, its composition and its check. The names are those that runtimes of such folders look for. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from handlers.graphs.signature import BATCH, PAST, SEQUENCE, TOTAL, Ports

ENCODER, DECODER, DECODER_WITH_PAST, DECODER_MERGED = "encoder", "decoder", "decoder_with_past", "decoder_merged"
"""Roles in graphs.json."""
FILES: Mapping[str, str] = {
    ENCODER: "encoder_model.onnx",
    DECODER: "decoder_model.onnx",
    DECODER_WITH_PAST: "decoder_with_past_model.onnx",
    DECODER_MERGED: "decoder_model_merged.onnx",
}
ENCODER_SEQUENCE, PAST_ENCODER_SEQUENCE = "encoder_sequence", "past_encoder_sequence"
"""Axes: source tokens; source tokens of a cache that a merged decoder may be told to ignore."""

STATES, MASK, USE_CACHE = "encoder_hidden_states", "encoder_attention_mask", "use_cache_branch"
_CACHED = (DECODER_WITH_PAST, DECODER_MERGED)


def cache_names(prefix: str, layers: int, side: str | None = None) -> tuple[str, ...]:
    """Return the names of cached tensors in the order of the graphs: of each layer the decoder's own keys and values, then the encoder's.

    `prefix` is "past_key_values" or "present"; `side` takes "decoder" or "encoder" alone.
    """
    sides = ("decoder", "encoder") if side is None else (side,)
    return tuple(f"{prefix}.{index}.{owner}.{kind}" for index in range(layers) for owner in sides for kind in ("key", "value"))


def encoder_ports() -> Ports:
    """Return the encoder: tokens and their mask to states."""
    axes = {0: BATCH, 1: ENCODER_SEQUENCE}
    inputs, outputs = ("input_ids", "attention_mask"), ("last_hidden_state",)
    return Ports(inputs, outputs, dict.fromkeys((*inputs, *outputs), axes))


def decoder_ports(role: str, layers: int) -> Ports:
    """Return a decoder of `layers` cached layers; 0 of the role "decoder" is one without a cache."""
    past = cache_names("past_key_values", layers) if role in _CACHED else ()
    present = cache_names("present", layers)
    states = () if role == DECODER_WITH_PAST else (STATES,)
    switch = (USE_CACHE,) if role == DECODER_MERGED else ()
    own_past, own_present = {0: BATCH, 2: PAST}, {0: BATCH, 2: TOTAL if past else SEQUENCE}
    cross_past = {0: BATCH, 2: PAST_ENCODER_SEQUENCE if role == DECODER_MERGED else ENCODER_SEQUENCE}
    cross_present = {0: BATCH, 2: ENCODER_SEQUENCE}
    axes: dict[str, Mapping[int, str]] = {
        **{name: {0: BATCH, 1: ENCODER_SEQUENCE} for name in (MASK, *states)},
        **{name: {0: BATCH, 1: SEQUENCE} for name in ("input_ids", "logits")},
        **{name: cross_past if ".encoder." in name else own_past for name in past},
        **{name: cross_present if ".encoder." in name else own_present for name in present},
        **{name: {} for name in switch},
    }
    return Ports((MASK, "input_ids", *states, *past, *switch), ("logits", *present), axes)


def ports(role: str, layers: int) -> Ports:
    """Return the ports of the graph with that role."""
    return encoder_ports() if role == ENCODER else decoder_ports(role, layers)
