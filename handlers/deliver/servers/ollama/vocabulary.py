"""Token ids as the texts that Ollama speaks in, and back.

It is asked by text and answers with texts of tokens; the vocabulary is its own, as it shows it of the model (the keys of GGUF,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CONTROL, USER_DEFINED, BYTE = 3, 4, 6
"""Types of tokens."""


def _letters() -> dict[str, int]:
    """Letter → byte of GPT-2's vocabularies: bytes that can be printed are themselves, the others follow from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + place): byte for place, byte in enumerate(rest)}}


class Vocabulary:
    """Of one model."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        """`info`: `model_info` of a model. Raises ValueError for a kind of vocabulary that is not known here."""
        self._kind = str(info.get("tokenizer.ggml.model", ""))
        tokens = info.get("tokenizer.ggml.tokens")
        if self._kind not in ("gpt2", "llama") or not isinstance(tokens, list) or not tokens:
            raise ValueError(f"its vocabulary is of the kind {self._kind or 'that it does not show'}")
        self._types = info.get("tokenizer.ggml.token_type") or []
        self._tokens: list[str] = tokens
        self._begin = info.get("tokenizer.ggml.bos_token_id") if info.get("tokenizer.ggml.add_bos_token", self._kind == "llama") else None
        self._spaced = self._kind == "llama" and bool(info.get("tokenizer.ggml.add_space_prefix", True))
        self._letters = _letters()
        self._ids: dict[bytes, int] = {}
        for token in reversed(range(len(tokens))):
            self._ids[self.piece(token)] = token

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        text = self._tokens[token]
        kind = self._types[token] if token < len(self._types) else 1
        if kind in (CONTROL, USER_DEFINED):
            return text.encode("utf-8", "surrogatepass")
        if self._kind == "gpt2":
            return bytes(self._letters[letter] for letter in text if letter in self._letters)
        if kind == BYTE:
            return bytes([int(text[3:-1], 16)])
        return text.replace("\u2581", " ").encode("utf-8", "surrogatepass")

    def text(self, ids: Sequence[int]) -> str | None:
        """The text that the server reads as these tokens; None where there is none."""
        if any(not 0 <= token < len(self._tokens) for token in ids):
            return None
        rest = list(ids)
        if self._begin is not None and rest[:1] == [self._begin]:
            rest = rest[1:]  # it puts that before each text itself
        try:
            text = b"".join(map(self.piece, rest)).decode()
        except UnicodeDecodeError:
            return None
        if self._spaced:
            return text[1:] if text.startswith(" ") else None
        return text

    def id(self, piece: bytes) -> int | None:
        """The token of these bytes."""
        return self._ids.get(piece)
