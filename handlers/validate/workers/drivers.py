"""What a worker can be asked about its model, whatever the model is for; one driver for each kind of model.

Called by the worker. Language models are driven by `decoding.py`, encoder-decoders by `translating.py`, encoders by `one_pass.py`.
All use numpy alone, so that every engine is driven by the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from handlers.models.tasks import BY_NAME
from handlers.validate.engines.registry import Engine, EngineSpec
from handlers.validate.engines.sentence import SentencePooling, settings_of
from handlers.validate.workers import decoding
from handlers.validate.workers.encoder_pass import EncoderDriver
from handlers.validate.workers.protocol import Decoding
from handlers.validate.workers.seq2seq_decoding import Seq2SeqDriver

VERIFIED_STEPS = 64
"""Cached steps that are compared with a pass without a cache: their logits are held in memory."""


class Driver(Protocol):
    """The verbs; every array is fp32. `ids` are a prompt's, a source's or a text's, `targets` what was decoded after it."""

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> np.ndarray:
        """Rows of outputs (P, V) of one pass without a cache; the drivers say which."""

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        """Decode; with `verify` the cached steps are compared with a pass without a cache."""

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        """max |Δ| between a batch that is padded on one side and its rows alone. `continuations` are of one length, or empty."""

    def timed(self, rows: Sequence[Sequence[int]], tokens: int) -> tuple[float, float, int]:
        """Seconds of the first pass over rows of one length, seconds of the work after it, and the tokens of that work for all rows."""


class CausalDriver:
    """Language models; rows: logits at every token of prompt and continuation. Batches are padded on the left alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> np.ndarray:
        return decoding.teacher_forced(self._engine, [*ids, *targets])

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        decoded = decoding.greedy(self._engine, ids, tokens, end_tokens=self._engine.end_tokens if stop else (), least=least)
        if not verify:
            return Decoding(tokens=decoded.tokens)
        errors = decoding.cache_errors(self._engine, ids, decoded, VERIFIED_STEPS)
        return Decoding(tokens=decoded.tokens, cache_error=max(errors), cache_steps=errors)

    def sampled(self, ids: Sequence[int], tokens: int, seed: int) -> list[int]:
        """A continuation that is drawn and not chosen; an end token ends it."""
        return decoding.greedy(self._engine, ids, tokens, choose=decoding.drawn(seed), end_tokens=self._engine.end_tokens, least=1).tokens

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        return decoding.padding_error(self._engine, prompts, continuations)

    def timed(self, rows: Sequence[Sequence[int]], tokens: int) -> tuple[float, float, int]:
        """See `Driver.timed`: the prompts' pass, then single-token greedy steps."""
        return *decoding.timed(self._engine, rows, tokens), len(rows) * tokens


def drive(spec: EngineSpec, engine: Any) -> Driver:
    """The driver for an engine that was loaded from `spec`."""
    kind = BY_NAME[spec.task].kind
    if kind == "seq2seq":
        return Seq2SeqDriver(engine, VERIFIED_STEPS)
    if spec.sentence:
        return EncoderDriver(engine, SentencePooling(settings_of(Path(spec.folder), Path(spec.base) if spec.base else None)))
    return EncoderDriver(engine) if kind == "encoder" else CausalDriver(engine)
