"""The engine of GGUF files: llama.cpp itself, in fp32 wherever the weights leave it the choice. Run inside the toolchain `gguf`."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.child.variants import NotPossible
from handlers.gguf import comparison
from handlers.gguf.file.model_file import PREFIX, ModelFile
from handlers.gguf.file.writing import TooLarge
from handlers.gguf.llama import library
from handlers.gguf.llama.pictures import Pictures
from handlers.gguf.reading import header
from handlers.validate.checks.stock_generation import KNOWN
from handlers.validate.engines.registry import EngineSpec

KINDS = {1: "normal", 2: "unknown", 3: "control", 4: "added", 5: "unused", 6: "byte"}
"""llama.cpp's numbers for kinds of tokens → as `handlers.validate.files.words` names them."""
SIZES = {
    "num_hidden_layers": "block_count", "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "hidden_size": "embedding_length",
}  # fmt: skip
"""Setting of transformers → key of a file, behind its architecture."""
ROOM = 256
"""Tokens for which a cache has room beyond its first ones, at least."""


@dataclass
class Cache:
    """A context, and what was computed in it: rows of (token, position)."""

    context: library.Context
    rows: list[list[tuple[int, int]]] = field(default_factory=list)


def file_in(folder: Path) -> Path:
    """The GGUF file of a folder: that of the language model where there is one for pictures too."""
    files = sorted(path for path in folder.glob("*.gguf") if not path.name.startswith(PREFIX))
    if len(files) != 1:
        cause = f"the folder holds {len(files)} .gguf files instead of one"
        raise Permanent(FaultCode.GRAPH_UNREADABLE, "run the GGUF file", cause, "export the variant again", path=folder)
    return files[0]


class GgufEngine:
    """A language model."""

    foreign_tokenizer = True
    ignored_settings = KNOWN
    """A GGUF file says nothing of them; llama.cpp's own programs take them as options."""

    def __init__(self, spec: EngineSpec) -> None:
        self._threads, self._folder = spec.threads, Path(spec.folder)
        self._adapter: library.LoadedAdapter | None = None
        self._reserved = 0
        self._model = self._opened(spec)
        self.vocabulary: int | None = self._model.tokens
        self.context_length: int | None = self._model.trained_length
        self.end_tokens = self.own_ends = self._model.end_tokens()

    def _opened(self, spec: EngineSpec) -> library.Model:
        return library.Model(file_in(Path(spec.folder)))

    @functools.cached_property
    def _keys(self) -> dict[str, Any]:
        return header.read(file_in(self._folder)).keys

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Load llama.cpp."""
        library.llama()

    @staticmethod
    def weights_difference(spec: EngineSpec, merged: Path) -> str | None:
        """Why its weights are not those of the merged model, as a clause; None where they are. Nothing is loaded for it."""
        return comparison.difference(Path(spec.folder), merged)

    def reserve(self, tokens: int) -> None:
        """Give the next contexts room for so many tokens at least."""
        self._reserved = tokens

    def step(
        self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Cache | None
    ) -> tuple[np.ndarray, Cache]:
        """See `Engine.step`; tokens of padding are left out, since each row is a text of its own for llama.cpp."""
        rows, new = input_ids.shape
        if cache is None:
            cache = Cache(self._context(max(rows * (new + ROOM), self._reserved), rows), [[] for _ in range(rows)])
        elif sum(map(len, cache.rows)) + rows * new > cache.context.room:
            cache = self._wider(cache, rows * (new + ROOM))
        real = attention_mask[:, attention_mask.shape[1] - new :].astype(bool)
        places = [(row, at) for row in range(rows) for at in range(new) if real[row, at]]
        answers = cache.context.run([(int(input_ids[row, at]), int(position_ids[row, at]), row) for row, at in places])
        for row, at in places:
            cache.rows[row].append((int(input_ids[row, at]), int(position_ids[row, at])))
        logits = np.zeros((rows, new, answers.shape[1]), np.float32)
        logits[tuple(np.array(places).T)] = answers
        return logits, cache

    def _context(self, room: int, rows: int) -> library.Context:
        return library.Context(self._model, -(-room // 256) * 256, rows, self._threads, adapter=self._adapter)

    def _wider(self, cache: Cache, more: int) -> Cache:
        """A context with more room, in which all of the cache was computed again: llama.cpp's do not grow."""
        cache.context.close()
        wider = self._context(2 * cache.context.room + more, cache.context.sequences)
        wider.run([(token, place, row) for row, known in enumerate(cache.rows) for token, place in known], logits=False)
        return Cache(wider, cache.rows)

    def encode(self, text: str) -> list[int]:
        """See `Loaded.encode`; by llama.cpp's tokenizer."""
        return self._model.encode(text)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        raise Permanent(FaultCode.NO_PAIRS, "run the GGUF file", "a language model takes no pairs of texts", "leave the variant out")

    def text(self, ids: list[int]) -> str:
        return self._model.decode(ids)

    def generate(self, ids: list[int], tokens: int) -> list[int]:
        """At most `tokens` tokens after `ids`, the most likely one each time, until llama.cpp knows one as the end of a text."""
        context, made, new = self._context(len(ids) + tokens, 1), list[int](), list(ids)
        while len(made) < tokens and not (made and made[-1] in self.own_ends):
            start = len(ids) + len(made) - len(new)
            rows = context.run([(token, start + at, 0) for at, token in enumerate(new)])
            new = [int(rows[-1].argmax())]
            made += new
        context.close()
        return made

    def read_prompt(self, prompt: Sequence[int], mark: int, picture: np.ndarray, tokens: int) -> tuple[np.ndarray, list[int], list[int]]:
        """See `Loaded.read_prompt`: by the library for pictures of llama.cpp's own programs."""
        (file,) = self._folder.glob(f"{PREFIX}*.gguf")
        context = self._context(len(prompt) + tokens, 1)
        rows, places, position = Pictures(file, self._model, self._threads).run(context, prompt, mark, picture)
        made, last = list[int](), rows[-1:]
        while len(made) < tokens and not (made and made[-1] in self.own_ends):
            made.append(int(last[-1].argmax()))
            last = context.run([(made[-1], position + len(made) - 1, 0)])
        context.close()
        return rows, places, made

    def chat_templates(self) -> Json | None:
        """What llama.cpp takes for the file's chat template."""
        template = self._model.said("tokenizer.chat_template")
        return {} if template is None else {"default": template}

    def words(self) -> Json | None:
        """The file's vocabulary, see `handlers.validate.files.words`."""
        return {
            "tokens": self._keys["tokenizer.ggml.tokens"],
            "kinds": [KINDS.get(kind, str(kind)) for kind in self._keys["tokenizer.ggml.token_type"]],
            "merges": self._keys.get("tokenizer.ggml.merges"),
            "scores": self._keys.get("tokenizer.ggml.scores"),
        }

    def runtime_settings(self) -> Json | None:
        """What llama.cpp and the programs on it read from the file, in transformers' names."""
        keys, arch = self._keys, self._keys["general.architecture"]
        named = [keys[key] for kind in ("eos", "eot", "eom") if (key := f"tokenizer.ggml.{kind}_token_id") in keys]
        sizes = {name: keys[f"{arch}.{key}"] for name, key in SIZES.items() if f"{arch}.{key}" in keys}
        named_so = (("bos_token_id", "bos"), ("pad_token_id", "padding"))
        tokens = {name: keys[key] for name, kind in named_so if (key := f"tokenizer.ggml.{kind}_token_id") in keys}
        return {
            "named_ends": named, "context_length": self._model.trained_length, "vocab_size": self._model.tokens,
            **sizes, **tokens,
        }  # fmt: skip


class GgufAdapterEngine(GgufEngine):
    """An adapter over its base, which is written as a GGUF file without loss for as long as it takes to open it."""

    def _opened(self, spec: EngineSpec) -> library.Model:
        if spec.base is None or spec.base_values != "original":
            cause = "the adapter is to be put over a base with changed values (merge.base), which no GGUF file of the base has"
            raise Permanent(FaultCode.FORM_NOT_POSSIBLE, "run the adapter", cause, "leave gguf-adapter out of export.variants")
        with tempfile.TemporaryDirectory() as scratch:
            try:
                base, file = ModelFile(Path(spec.base), "base", Path(scratch)), Path(scratch, "base.gguf")
                base.write(base.lossless, file, lambda _: None)
            except (NotPossible, TooLarge) as error:
                remedy = "leave gguf-adapter out of export.variants"
                raise Permanent(FaultCode.FORM_NOT_POSSIBLE, "run the adapter", str(error), remedy, path=spec.base) from error
            model = library.Model(file)  # which keeps what it has opened
        self._adapter = library.LoadedAdapter(model, file_in(Path(spec.folder)))
        return model

    def chat_templates(self) -> Json | None:
        """Nothing of this and what follows: they are its base's, in a file of the user's own."""
        return None

    def words(self) -> Json | None:
        return None

    def runtime_settings(self) -> Json | None:
        return None

    @staticmethod
    def weights_difference(spec: EngineSpec, merged: Path) -> str | None:
        """Nothing: its factors are compared by what they do."""
        return None
