"""What a worker can be asked about its model, whatever the model is for; one driver for each kind of model.

Called by the worker. Language models are driven by `causal_drivers.py`, encoder-decoders by `seq2seq_decoding.py`, encoders by
`encoder_pass.py`. All use numpy alone, so that every engine is driven by the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from handlers.models.tasks import BY_NAME
from handlers.validate.engines.registry import LAYERWISE, EngineSpec
from handlers.validate.engines.sentence import SentencePooling, settings_of
from handlers.validate.workers.causal_drivers import VERIFIED_STEPS, BatchingDriver, CausalDriver, LayerwiseDriver
from handlers.validate.workers.encoder_pass import EncoderDriver
from handlers.validate.workers.protocol import Decoding, LongPass
from handlers.validate.workers.seq2seq_decoding import Seq2SeqDriver


class Driver(Protocol):
    """The verbs; every array is fp32. `ids` are a prompt's, a source's or a text's, `targets` what was decoded after it."""

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> np.ndarray:
        """Give rows of outputs (P, V) of one pass without a cache; the drivers say which."""

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        """Decode; with `verify` the cached steps are compared with a pass without a cache."""

    def long(self, request: LongPass) -> np.ndarray:
        """Give the rows that a long text gets; see `LongPass`."""

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        """Give max |Δ| between a batch that is padded on one side and its rows alone. `continuations` are of one length, or empty."""

    def timed(self, rows: Sequence[Sequence[int]], tokens: int, *, again: bool = False) -> tuple[float, float, int]:
        """Give seconds of the first pass over rows of one length, seconds of the work after it, and the tokens of that work for all rows.

        `again`: the last such pass over the same rows is good enough, where it can be gone on from once more.
        """


def drive(spec: EngineSpec, engine: Any) -> Driver:
    """Give the driver for an engine that was loaded from `spec`."""
    kind = BY_NAME[spec.task].kind
    if kind == "seq2seq":
        return Seq2SeqDriver(engine, VERIFIED_STEPS)
    if spec.sentence:
        return EncoderDriver(engine, SentencePooling(settings_of(Path(spec.folder), Path(spec.base) if spec.base else None)))
    if spec.engine.endswith(LAYERWISE):
        return LayerwiseDriver(engine)
    if kind == "encoder":
        return EncoderDriver(engine)
    return BatchingDriver(engine) if getattr(engine, "batches", False) else CausalDriver(engine)
