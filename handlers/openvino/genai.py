"""OpenVINO GenAI over a folder, as its users run it: what it reads from the files beside the weights, and what it writes by them.

Used by the engine of language models, in the toolchain. Each object opens what it needs when it is asked.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.values import Json
from handlers.openvino import library

GENERATION = "generation_config.json"
IGNORED = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "min_length")
"""Settings of generation_config.json that it does not know."""
_SEARCH = (
    "do_sample",
    "temperature",
    "top_p",
    "repetition_penalty",
    "length_penalty",
    "num_beams",
    "num_return_sequences",
    "diversity_penalty",
)
_COUNTS = ("top_k", "no_repeat_ngram_size")
"""Settings that are a number so large that it limits nothing, where the file has none."""
_NOTHING = 1 << 32


class GenAi:
    """A folder with OpenVINO's tokenizer."""

    def __init__(self, folder: Path, threads: int, settings: Mapping[str, str]) -> None:
        self._folder, self._settings = folder, {**settings, "INFERENCE_NUM_THREADS": str(threads)}

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return library.genai().Tokenizer(self._folder)

    @functools.cached_property
    def _config(self) -> Any:
        genai, path = library.genai(), self._folder / GENERATION
        return genai.GenerationConfig(path) if path.is_file() else genai.GenerationConfig()

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens at which it ends a text: those of generation_config.json, otherwise the tokenizer's own."""
        stated = {*self._config.stop_token_ids, self._config.eos_token_id} - {-1}
        return tuple(sorted(map(int, stated or {self._tokenizer.get_eos_token_id()})))

    def templates(self) -> dict[str, str]:
        """The chat template, wherever it takes it from."""
        template = str(self._tokenizer.get_original_chat_template())
        return {"default": template} if template else {}

    def settings(self) -> Json:
        """What it read, in transformers' names; the special tokens of the tokenizer's model apart."""
        config, tokenizer = self._config, self._tokenizer
        counts = {key: int(getattr(config, key)) for key in _COUNTS}
        own = {
            "eos_token_id": tokenizer.get_eos_token_id(), "pad_token_id": tokenizer.get_pad_token_id(),
            "bos_token_id": tokenizer.get_bos_token_id(),
        }  # fmt: skip
        return {
            "eos_token_id": list(self.ends),
            "tokenizer": {key: int(value) for key, value in own.items()},
            **{key: getattr(config, key) for key in _SEARCH},
            **{key: value for key, value in counts.items() if value < _NOTHING},
        }

    def generate(self, ids: Sequence[int], tokens: int) -> list[int]:
        """At most `tokens` tokens after `ids`, by the folder's own settings without sampling."""
        ov, genai = library.openvino(), library.genai()
        pipeline = genai.LLMPipeline(self._folder, "CPU", **self._settings)
        config = pipeline.get_generation_config()
        config.do_sample, config.max_new_tokens = False, tokens
        written = pipeline.generate(ov.Tensor(np.array([list(ids)], np.int64)), config)
        return [int(token) for token in written.tokens[0]]
