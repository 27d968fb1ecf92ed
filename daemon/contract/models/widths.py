"""Numbers of outputs of a language model's layers, by config.json alone."""

from __future__ import annotations

from collections.abc import Mapping

from daemon.contract.values import Json

FUSED = ("phi3",)
"""Model types that store queries, keys and values as one layer, and the gate with what it gates."""


def as_wide_as_vocabulary(config: Json) -> int:
    """Return how many outputs layers inside a model have that are as wide as its vocabulary; 0 where none is, or config.json does not tell.

    Names are those of Llama and its relatives.
    """
    nested = config.get("text_config")
    stated = {**config, **nested} if isinstance(nested, Mapping) else config
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    vocabulary, hidden, inner, heads, groups, size = (value if type(value := stated.get(name)) is int else 0 for name in names)
    size, groups = size or (hidden // heads if heads else 0), groups or heads
    widths = {hidden, inner, heads * size, groups * size}
    if stated.get("model_type") in FUSED:
        widths |= {2 * inner, (heads + 2 * groups) * size}
    return vocabulary if vocabulary in widths else 0
