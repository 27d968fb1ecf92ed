"""The engine of MLX folders: mlx-lm itself, on the CPU, in fp32. Run inside the toolchain `mlx`.

What is stored in 16 bits is widened before anything is computed, and so are scales and biases of packed weights: the numbers are the
same, and only what mlx-lm makes of them is compared. A row of a batch is a text of its own, without its padding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm import utils
from mlx_lm.models.cache import make_prompt_cache

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.mlx import comparison
from handlers.validate.engines.registry import EngineSpec


@dataclass
class Row:
    """The cache of one text, and how many tokens it holds."""

    cache: Any
    tokens: int = 0


@dataclass
class Cache:
    """The caches of a batch."""

    rows: list[Row] = field(default_factory=list)


class MlxEngine:
    """A language model."""

    def __init__(self, spec: EngineSpec) -> None:
        folder = Path(spec.folder)
        self._model, config = utils.load_model(folder, lazy=True)
        self._model.set_dtype(mx.float32)
        mx.eval(self._model.parameters())
        self._tokenizer = utils.load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
        self.vocabulary: int | None = None
        known = config.get("max_position_embeddings") or config.get("n_positions")
        self.context_length: int | None = int(known) if known else None
        self.end_tokens = self.own_ends = tuple(sorted(map(int, self._tokenizer.eos_token_ids)))

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Nothing: this module has imported what is needed."""

    @staticmethod
    def weights_difference(spec: EngineSpec, merged: Path) -> str | None:
        """Why its weights are not those of the merged model, as a clause; None where they are."""
        return comparison.difference(Path(spec.folder), merged)

    def step(
        self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Cache | None
    ) -> tuple[np.ndarray, Cache]:
        """See `Engine.step`."""
        rows, new = input_ids.shape
        cache = cache or Cache([Row(make_prompt_cache(self._model)) for _ in range(rows)])
        real = attention_mask[:, attention_mask.shape[1] - new :].astype(bool)
        answers: np.ndarray | None = None
        for place, row in enumerate(cache.rows):
            ids, positions = input_ids[place, real[place]], position_ids[place, real[place]]
            if not len(ids):
                continue
            if positions.tolist() != list(range(row.tokens, row.tokens + len(ids))):
                cause = f"mlx-lm counts positions itself, and {positions.tolist()[:8]} do not follow {row.tokens} tokens"
                raise Permanent(FaultCode.FORM_NOT_POSSIBLE, "run the MLX model", cause, "leave the variant out")
            logits = np.array(self._model(mx.array(ids[None].astype(np.int32)), cache=row.cache)[0].astype(mx.float32))
            row.tokens += len(ids)
            if answers is None:
                answers = np.zeros((rows, new, logits.shape[-1]), np.float32)
            answers[place, real[place]] = logits
        assert answers is not None, "a step has a token"
        return answers, cache

    def encode(self, text: str) -> list[int]:
        """See `Loaded.encode`; by the tokenizer that mlx-lm loads."""
        return [int(token) for token in self._tokenizer.encode(text)]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        raise Permanent(FaultCode.NO_PAIRS, "run the MLX model", "a language model takes no pairs of texts", "leave the variant out")

    def text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
