"""What the engines of exported folders share, whatever runs them: configuration and tokenizer, by the folder's own files.

Free of torch, transformers and every runtime, as a deployment would be.
"""

from __future__ import annotations

import json
from pathlib import Path

from daemon.contract.values import Json
from handlers.folder import tokenizers
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.engines.task_profile import context_length


def tokenizer_json(folder: Path) -> str | None:
    """Give tokenizer.json with all that it says, as the library tokenizers reads it; None where there is none."""
    from tokenizers import Tokenizer  # not in every toolchain

    path = folder / "tokenizer.json"
    return str(Tokenizer.from_file(str(path)).to_str()) if path.is_file() else None


class ExportedFolder:
    """Configuration and tokenizer of a folder."""

    def __init__(self, spec: EngineSpec) -> None:
        self._folder = Path(spec.folder)
        self._tokenizer: tokenizers.FolderTokenizer | None = None
        self._config = self._json("config.json")
        self._generation = self._json("generation_config.json")
        self.context_length: int | None = context_length(self._config)
        self.pad: int = self._config.get("pad_token_id") or 0

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Nothing: importing this module is all there is to prepare."""

    def _json(self, name: str) -> Json:
        path = self._folder / name
        value: Json = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return value

    def encode(self, text: str) -> list[int]:
        """See `Loaded.encode`; by the folder's own files, without transformers."""
        return self._loaded_tokenizer().encode(text)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        return self._loaded_tokenizer().encode_pair(first, second)

    def text(self, ids: list[int]) -> str:
        return self._loaded_tokenizer().decode(ids)

    def whole_text(self, ids: list[int]) -> str | None:
        """Give the text of token ids, with special tokens; None where the tokenizer's reader leaves them out."""
        return self._loaded_tokenizer().decode_whole(ids)

    def tokenizer_json(self) -> str | None:
        """See `tokenizer_json`."""
        return tokenizer_json(self._folder)

    def _loaded_tokenizer(self) -> tokenizers.FolderTokenizer:
        if self._tokenizer is None:
            self._tokenizer = tokenizers.load(self._folder)
        return self._tokenizer
