"""How an encoder-decoder's tokens are chosen, as its generation_config says, as far as plain greedy decoding goes. Pure.

Called by the encoder-decoder's driver and engines. Kept: decoder_start_token_id, forced_bos_token_id, end tokens, tokens that must not
come (single-token bad_words_ids, suppress_tokens, and begin_suppress_tokens at the first place). Left out, since they change neither
graph nor cache: beams, sampling, penalties, forbidden n-grams and word sequences, minimum length, and forced_eos_token_id, which
only acts where a length limit cuts a text off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json


@dataclass(frozen=True)
class Rules:
    """The rules by which target tokens are chosen."""

    start: int
    """The decoder's first input, which is no output."""
    first: int | None
    """Token that always comes first."""
    banned: tuple[int, ...]
    banned_first: tuple[int, ...]
    ends: tuple[int, ...]

    def choose(self, logits: np.ndarray, place: int) -> int:
        """Give the token for `place`, from logits (V,)."""
        if place == 0 and self.first is not None:
            return self.first
        banned = [*self.banned, *(self.banned_first if place == 0 else ())]
        if not banned:
            return int(np.argmax(logits))
        scores = logits.copy()
        scores[[token for token in banned if token < len(scores)]] = -np.inf
        return int(np.argmax(scores))


def tokens_of(value: Any) -> tuple[int, ...]:
    """Give the tokens that a setting names: none, one, or a list."""
    return () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


def end_tokens(generation: Json, config: Json) -> tuple[int, ...]:
    """Give tokens that end a text; generation_config.json goes before config.json."""
    return tokens_of(generation.get("eos_token_id", config.get("eos_token_id")))


def read_rules(generation: Json, config: Json) -> Rules:
    """Give the rules in generation_config.json and config.json, the first going before; Permanent without a start token."""

    def get(key: str) -> Any:
        value = generation.get(key)
        return config.get(key) if value is None else value

    start = get("decoder_start_token_id")
    start = get("bos_token_id") if start is None else start
    if not isinstance(start, int):
        cause = "neither generation_config.json nor config.json names a decoder_start_token_id"
        raise Permanent(FaultCode.NO_START_TOKEN, "decode with the model", cause, "name the token that decoding starts with in config.json")
    words = [word[0] for word in get("bad_words_ids") or [] if len(word) == 1]
    banned = tuple(dict.fromkeys([*words, *tokens_of(get("suppress_tokens"))]))
    return Rules(start, get("forced_bos_token_id"), banned, tokens_of(get("begin_suppress_tokens")), end_tokens(generation, config))
