"""A configuration of the same architecture as another, with few layers and small sizes.

Called for the reproduction of a failed export. Sizes are shrunk by their names, which a table holds; what makes an architecture what it is
(kinds of layers, windows, rotary embedding, tying) stays. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daemon.contract.values import Json

HEADS, HEAD_SIZE, HIDDEN, INNER, VOCABULARY = 4, 16, 64, 128, 320

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_SIZES: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"), INNER),
    **dict.fromkeys(("head_dim", "d_kv"), HEAD_SIZE),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
}
_PER_FREQUENCY = ("short_factor", "long_factor")


def shrunk(config: Json) -> dict[str, Any]:
    """Return the configuration in small; one that is small already stays as it is."""
    small = dict(config)
    kinds = config.get("layer_types")
    layers = 2
    if isinstance(kinds, list) and kinds:
        small["layer_types"] = [*dict.fromkeys(kinds), *kinds[:1]][: max(2, len(set(kinds)))]
        layers = len(small["layer_types"])
    for name in _LAYERS:
        if isinstance(config.get(name), int):
            small[name] = min(config[name], layers)
    heads = next((config[name] for name in _HEADS if isinstance(config.get(name), int)), HEADS)
    if isinstance(groups := config.get("num_key_value_heads"), int):
        small["num_key_value_heads"] = max(1, min(HEADS, heads) * groups // heads)
    for name in _HEADS:
        if isinstance(config.get(name), int):
            small[name] = min(config[name], HEADS)
    for name, size in _SIZES.items():
        if isinstance(config.get(name), int):
            small[name] = min(config[name], size)
    _shrink_vocabulary(small)
    rope = config.get("rope_parameters")
    if isinstance(rope, Mapping):
        half = int(small.get("head_dim") or small.get("hidden_size", HIDDEN) // min(heads, HEADS)) // 2
        small["rope_parameters"] = {name: value[:half] if name in _PER_FREQUENCY else value for name, value in rope.items()}
    if isinstance(config.get("text_config"), Mapping):
        small["text_config"] = shrunk(config["text_config"])
    return small


def _shrink_vocabulary(small: dict[str, Any]) -> None:
    if not isinstance(small.get("vocab_size"), int):
        return
    size = small["vocab_size"] = min(small["vocab_size"], VOCABULARY)
    for name, value in small.items():
        if name.endswith("_token_id") and isinstance(value, int) and value >= size:
            small[name] = size - 1
        elif name.endswith("_token_id") and isinstance(value, list):
            small[name] = sorted({min(token, size - 1) for token in value})
