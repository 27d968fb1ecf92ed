"""What a base without an adapter says of the prompts, kept from one checkpoint for the next: the base and the prompts are mostly the same.

It is a draft, never an answer: a base that is given one runs several of its tokens in a step, and says where it would go on otherwise.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.values import digest_of
from handlers.child.hints import Hints
from handlers.validate.workers.protocol import Greedy

FILE = "base-texts.json"
LIMIT = 500


class BaseTexts:
    """The texts of one base, by what was asked. Without a folder to keep them in, there are none."""

    def __init__(self, cache: Path | None = None, base: str = "") -> None:
        """`base`: all that tells the base from others."""
        self._hints = None if cache is None else Hints(cache / FILE, LIMIT)
        self._base = base
        self._decoded: dict[str, list[int]] = {}

    def draft(self, request: Greedy) -> list[int]:
        """Give what the base will probably say; nothing where that is not known."""
        tokens = None if self._hints is None else self._hints.get(self._key(request))
        return tokens if isinstance(tokens, list) and all(type(token) is int and token >= 0 for token in tokens) else []

    def keep(self, request: Greedy, tokens: list[int]) -> None:
        """Remember what it said, until `store`."""
        self._decoded[self._key(request)] = tokens

    def store(self) -> None:
        """Leave what was remembered for the next checkpoint."""
        if self._hints is not None and any(self._hints.get(key) != tokens for key, tokens in self._decoded.items()):
            self._hints.put(self._decoded)

    def _key(self, request: Greedy) -> str:
        return digest_of({"base": self._base, "ids": request.ids, "tokens": request.tokens, "least": request.least})[:32]
