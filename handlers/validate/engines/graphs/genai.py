"""The engine of onnxruntime-genai folders: onnxruntime-genai itself with the folder's own tokenizer, as its users run them.

Used inside workers. onnxruntime-genai keeps cache, mask and positions to itself and pads batches on the
right, so a step is served as far as it can do it: the rows of a batch are the tokens that the mask lets through, moved to the left, and
positions are its own. A batch goes on together by having its forced tokens chosen from logits that allow nothing else; where that
can't be (an end token would stop a row, a padding token would be taken for padding), its rows go on one by one.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.folder import genai_config
from handlers.validate.engines.graphs.exported_folder import tokenizer_json
from handlers.validate.engines.registry import EngineSpec

genai: Any = importlib.import_module("onnxruntime_genai")  # it has no type information

ROOM = 128
"""Tokens beyond the first ones for which a cache is laid out, all of it at once; one that needs more is filled again, twice as large."""
_PLAIN = {
    "do_sample": False, "num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0,
    "temperature": 1.0, "diversity_penalty": 0.0, "length_penalty": 1.0,
}  # fmt: skip
"""Search options under which the logits alone decide."""
_SIZES = {
    "head_dim": "head_size", "hidden_size": "hidden_size", "num_attention_heads": "num_attention_heads",
    "num_hidden_layers": "num_hidden_layers", "num_key_value_heads": "num_key_value_heads",
}  # fmt: skip
"""Setting of config.json → its name in genai_config.json."""


class GenaiEngine:
    """A language model in onnxruntime-genai."""

    foreign_tokenizer = True
    ignored_settings = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "min_new_tokens")

    def __init__(self, spec: EngineSpec) -> None:
        folder = self._folder = Path(spec.folder)
        if not (folder / genai_config.FILE).is_file():
            cause = f"the folder holds no {genai_config.FILE}"
            raise Permanent(
                FaultCode.GRAPH_UNREADABLE, "run the model with onnxruntime-genai", cause, "export the variant again", path=folder
            )
        model = genai_config.read(folder)["model"]
        self.vocabulary: int | None = int(model["vocab_size"])
        self.context_length: int | None = int(model["context_length"])
        self.end_tokens: tuple[int, ...] = genai_config.end_tokens({"model": model})
        self.own_ends = self.end_tokens
        self.pad = int(model["pad_token_id"])
        self.model = genai.Model(_configured(folder, spec.threads))
        self._tokenizer: Any = None
        self.reserved = 0

    def reserve(self, tokens: int) -> None:
        """Lay out the caches of single texts for so many tokens at least."""
        self.reserved = tokens

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Nothing: importing this module is all there is to prepare."""

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`; `position_ids` are onnxruntime-genai's own, and logits of masked tokens are 0."""
        real = attention_mask[:, -input_ids.shape[1] :].astype(bool)
        rows = [[int(token) for token in ids[mask]] for ids, mask in zip(input_ids, real, strict=True)]
        if cache is None:
            cache = self._apart([[] for _ in rows]) if len(rows) == 1 or any(self.pad in row for row in rows) else Together(self, rows)
            answers = cache.first if isinstance(cache, Together) else cache.feed(rows)
        else:
            if isinstance(cache, Together) and not cache.takes(rows):
                cache = self._apart(cache.rows)
            answers = cache.feed(rows)
        logits = np.zeros((*input_ids.shape, answers[0].shape[-1]), np.float32)
        for row, (mask, answer) in enumerate(zip(real, answers, strict=True)):
            logits[row, mask] = answer
        return logits, cache

    def _apart(self, rows: Sequence[Sequence[int]]) -> Apart:
        return Apart([Alone(self, row) for row in rows])

    def generator(self, rows: int, length: int) -> Any:
        """Give a generator of `rows` texts with room for `length` tokens each, as far as the model reaches."""
        parameters = genai.GeneratorParams(self.model)
        parameters.set_search_options(batch_size=rows, max_length=min(length, self.context_length or length), **_PLAIN)
        return genai.Generator(self.model, parameters)

    def generate(self, ids: Sequence[int], tokens: int) -> list[int]:
        """Give at most `tokens` tokens after `ids`, by the search of genai_config.json without sampling; its cache holds just these."""
        parameters = genai.GeneratorParams(self.model)
        room = min(len(ids) + tokens, int(parameters.get_search_options()["max_length"]))
        parameters.set_search_options(do_sample=False, max_length=room)
        generator, made = genai.Generator(self.model, parameters), list[int]()
        generator.append_tokens(np.array([list(ids)], np.int32))
        while len(made) < tokens and not generator.is_done():
            generator.generate_next_token()
            made.append(int(generator.get_next_tokens()[0]))
        return made

    def encode(self, text: str) -> list[int]:
        """See `Loaded.encode`; by onnxruntime-genai's tokenizer."""
        return [int(token) for token in self._own_tokenizer().encode(text)]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Never asked of a language model; onnxruntime-genai's tokenizer does not support pairs of texts."""
        raise Permanent(
            FaultCode.NO_PAIRS,
            "load the tokenizer",
            "onnxruntime-genai's tokenizer does not support pairs of texts",
            "leave the variant out",
        )

    def text(self, ids: list[int]) -> str:
        return str(self._own_tokenizer().decode(np.array(ids, np.int32)))

    def tokenizer_json(self) -> str | None:
        """Give tokenizer.json, which onnxruntime-genai reads; see `exported_folder.tokenizer_json`."""
        return tokenizer_json(self._folder)

    def runtime_settings(self) -> Json:
        """Give what onnxruntime-genai reads from genai_config.json, in transformers' names; sizes as the file says them."""
        settings = genai_config.read(self._folder)["model"]
        decoder, tokenizer = settings["decoder"], self._own_tokenizer()
        return {
            "eos_token_id": [int(token) for token in tokenizer.eos_token_ids],
            "pad_token_id": int(tokenizer.pad_token_id),
            **({"bos_token_id": int(tokenizer.bos_token_id)} if "bos_token_id" in settings else {}),
            "context_length": settings["context_length"],
            "vocab_size": settings["vocab_size"],
            **{name: decoder[key] for name, key in _SIZES.items() if key in decoder},
            **genai.GeneratorParams(self.model).get_search_options(),
        }

    def _own_tokenizer(self) -> Any:
        """With the first token where the model has one: its `encode` leaves that out by itself (src/models/model.cpp of that library)."""
        if self._tokenizer is None:
            self._tokenizer = genai.Tokenizer(self.model)
            self._tokenizer.update_options(add_special_tokens="true")
        return self._tokenizer


def _configured(folder: Path, threads: int) -> Any:
    """Give the folder's configuration, on the CPU, with bounded threads that don't spin: those would slow down whose turn is next."""
    options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1, "session.intra_op.allow_spinning": "0"}
    config = genai.Config(str(folder))
    config.clear_providers()
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    return config


class Alone:
    """One text, which takes any number of tokens at a time."""

    def __init__(self, engine: GenaiEngine, seen: Sequence[int]) -> None:
        self._engine = engine
        self._seen = list(seen)
        self._room = 0
        self._generator: Any = None

    def feed(self, tokens: Sequence[int]) -> np.ndarray:
        """Give logits (n, V) of n further tokens."""
        new = list(tokens)
        self._seen += new
        if len(self._seen) > self._room:
            self._room = max(len(self._seen) + max(ROOM, len(self._seen)), self._engine.reserved)
            self._generator = self._engine.generator(1, self._room)
            new = self._seen
        self._generator.append_tokens(np.array([new], np.int32))
        logits: np.ndarray = _logits(self._generator)[0][-len(tokens) :]
        return logits


class Apart:
    """Rows that go on one by one."""

    def __init__(self, rows: list[Alone]) -> None:
        self._rows = rows

    def feed(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Give logits (n, V) of each row's further tokens."""
        return [alone.feed(row) for alone, row in zip(self._rows, rows, strict=True)]


class Together:
    """Rows in one batch, which take one token each at a time."""

    def __init__(self, engine: GenaiEngine, rows: Sequence[Sequence[int]]) -> None:
        self.rows = [list(row) for row in rows]
        width = max(len(row) for row in rows)
        ids = np.full((len(rows), width), engine.pad, np.int32)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
        self._stops = {engine.pad, *engine.end_tokens}
        self._room = width + ROOM
        self._generator = engine.generator(len(rows), self._room)
        self._generator.append_tokens(ids)
        logits = _logits(self._generator)
        self.first = [logits[number, : len(row)] for number, row in enumerate(rows)]
        """Logits (n, V) of each row's first tokens."""

    def takes(self, rows: Sequence[Sequence[int]]) -> bool:
        """Tell whether the batch can go on with these tokens."""
        single = all(len(row) == 1 and row[0] not in self._stops for row in rows)
        return single and max(len(row) for row in self.rows) + 1 < self._room

    def feed(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Give logits (1, V) after each row's next token."""
        allowed = np.full((len(rows), 1, self.first[0].shape[-1]), -1e9, np.float32)
        for number, row in enumerate(rows):
            allowed[number, 0, row[0]] = 0
            self.rows[number].append(row[0])
        self._generator.set_logits(allowed)
        self._generator.generate_next_token()
        self._generator.get_logits()  # the model runs when it is asked for
        return list(_logits(self._generator)[:, -1:])


def _logits(generator: Any) -> np.ndarray:
    """Give the model's own output (B, S, V) of the last run, in float32, before any rule of the search."""
    return np.asarray(generator.get_output("logits")).astype(np.float32, copy=True)
