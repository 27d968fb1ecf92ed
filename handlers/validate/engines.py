"""What validation asks of an engine, and which engine runs which variant.

An engine is a model as a user would load it, reduced to one primitive, `step`. Everything else (greedy decoding,
teacher forcing, padding, timing) is `decoding.py`, the same code for every engine. Light: the stage process reads
the tables, and only a worker calls `load`. All engines run on the CPU: verdicts must not depend on, or disturb, a
GPU that is busy training.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict


class EngineSpec(BaseModel):
    """What a worker loads; crosses the process boundary as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    """Name in ENGINES."""
    folder: str
    """Folder of the model: a checkpoint's pin for `live`, an artifact otherwise."""
    base: str | None = None
    """Folder of the base model; only `live` reads it."""
    threads: int = 1


class Engine(Protocol):
    """A loaded model. Token ids are int64, logits float32, caches opaque and consumed by the step that takes them."""

    vocabulary: int | None
    """Width of the logits, None when only a step can tell."""
    context_length: int | None
    """Positions that the model can address, None when it does not say."""
    end_tokens: tuple[int, ...]

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Import what loading `spec` will need, without loading it; never raises."""

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """Run (B, S) new tokens after the P cached ones: ids (B, S), mask (B, P+S), positions (B, S) → logits (B, S, V), new cache.

        `cache` None means P = 0.
        """

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens as the tokenizer's own default has them."""

    def text(self, ids: list[int]) -> str:
        """The text of token ids, without special tokens."""


ENGINES: dict[str, str] = {
    "live": "handlers.validate.live_engine:LiveEngine",
    "torch": "handlers.validate.torch_engine:TorchEngine",
    "onnx": "handlers.validate.onnx_engine:OnnxEngine",
}


@dataclass(frozen=True)
class Kind:
    """How artifacts of one variant are run, and how far they may differ from themselves.

    The limits are in units of the standard deviation of the reference's logits.
    """

    engine: str
    cache_limit: float
    """Largest |Δlogit| between the artifact's cached steps and its own prefill of the same tokens."""
    padding_limit: float
    """Largest |Δlogit| between a row of a left-padded batch and the same prompt alone."""
    merged_limit: float | None = None
    """Largest |Δlogit| against the merged PyTorch model; None leaves that to the thresholds."""
    noise_share: float = 0.0
    """Raises the cache and padding limits to this multiple of the artifact's largest error against the live model."""


EXACT = Kind("torch", cache_limit=1e-3, padding_limit=1e-3)
VARIANT_KINDS: dict[str, Kind] = {
    "pytorch": EXACT,
    "onnx": Kind("onnx", cache_limit=1e-3, padding_limit=1e-3, merged_limit=1e-2),
    "onnx-int8": Kind("onnx", cache_limit=1.0, padding_limit=1.0, noise_share=1.5),
}
"""Limits by measurement on a two-layer model: fp32 graphs stay below 1e-5, and a graph with a blanked cache or without its mask
goes above 2. Dynamic int8 scales activations by the largest value of the whole tensor, so a row depends on its neighbours:
there sound graphs reach 0.36 where their error against the live model is 0.42."""


def load(spec: EngineSpec) -> Engine:
    """Import the engine's libraries and load its model; whatever the library raises passes through."""
    engine: Engine = engine_class(spec.engine)(spec)
    return engine


def engine_class(name: str) -> Any:
    """The class behind a name of ENGINES; imports its libraries."""
    module, _, attribute = ENGINES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
