"""Whether the settings that a runtime reads from a file of its own are the checkpoint's: ends, lengths, sampling, sizes of heads. Pure.

An engine says them in the names of transformers (`runtime_settings`), as its runtime read them; those that it does not say are not
compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from daemon.contract.values import Json
from handlers.models.files import setting
from handlers.validate.engines.generation_rules import tokens_of
from handlers.validate.folders.wording import instead

TOKENS = ("eos_token_id", "bos_token_id", "pad_token_id")
SIZES = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "vocab_size")
SEARCH = {
    "do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "num_beams": 1,
    "no_repeat_ngram_size": 0, "num_return_sequences": 1, "diversity_penalty": 0.0, "min_length": 0,
}  # fmt: skip
"""Setting of the search → what it is where generation_config.json says nothing."""
LENGTHS = ("context_length", "max_length")
POSITIONS = ("max_position_embeddings", "n_positions")
ENDS = "named_ends"
"""Tokens that a runtime's file names as ends of a text: each must be one of the checkpoint's; a runtime may know more by itself."""


def difference(settings: Json, config: Json, generation: Json, tokenizer: Mapping[str, int] | None = None) -> str | None:
    """Say which settings of a runtime are not the checkpoint's, as a clause; None where all that it says are.

    `tokenizer`: ids that the tokenizer's own special tokens have, for a runtime that may take them from there, by the same keys.
    """
    wrong: list[tuple[str, Any, Any]] = []
    for key in TOKENS:
        said = next((value for value in (generation.get(key), setting(config, key)) if value is not None), None)
        own = (tokenizer or {}).get(key)
        known = [_unify(value) for value in (said, own) if value is not None]
        if key in settings and known and _unify(settings[key]) not in known:
            wrong.append((key, settings[key], own if said is None else said))
    sizes = {key: setting(config, key) for key in SIZES}
    heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
    sizes["num_key_value_heads"] = sizes["num_key_value_heads"] or heads
    sizes["head_dim"] = sizes["head_dim"] or (width // heads if heads and width else None)
    wrong += [(key, settings[key], value) for key, value in sizes.items() if value is not None and settings.get(key, value) != value]
    for key, usual in SEARCH.items():
        value = generation.get(key)
        wanted = usual if value is None else value
        if key in settings and not math.isclose(float(settings[key]), float(wanted), rel_tol=1e-6):  # it may hold them in 32 bits
            wrong.append((key, settings[key], wanted))
    ends = {end for value in (generation.get("eos_token_id"), setting(config, "eos_token_id")) for end in tokens_of(value)}
    if ends and (odd := [token for token in settings.get(ENDS, ()) if token not in ends]):
        wrong.append(("the end of a text", odd[0], sorted(ends)))
    lengths = [setting(config, key) for key in POSITIONS]
    length = next((length for length in lengths if isinstance(length, int)), None)
    if length is not None:
        windows = {length, setting(config, "sliding_window")}  # a runtime that knows no window may stop where it begins to matter
        wrong += [(key, settings[key], length) for key in LENGTHS if key in settings and settings[key] not in windows]
    return instead(wrong, len(wrong)) or None


def tokens_difference(named: Json, names: dict[str, str], tokenizer: Json) -> str | None:
    """Say which special tokens of a runtime's own tokenizer are not those that the checkpoint names, as a clause; None where all are.

    `named`: key → id; `names`: "eos_token" → its text, see `chat.special_tokens`; `tokenizer`: the checkpoint's tokenizer.json.
    """
    ids = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    known = {key: ids[text] for key in TOKENS if (text := names.get(key.removesuffix("_id"))) in ids}
    wrong = [(f"its tokenizer's {key}", named[key], value) for key, value in known.items() if named.get(key, value) != value]
    return instead(wrong, len(wrong)) or None


def _unify(value: Any) -> Any:
    """Give a token, or tokens, as a set: their order says nothing."""
    return frozenset(map(int, tokens_of(value)))
