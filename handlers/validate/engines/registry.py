"""What validation asks of an engine, and which engine runs which variant.

An engine is a model as a user would load it, reduced to its primitive: one `step` of a language model, `start` and `step` of an
encoder-decoder, one `run` of an encoder. Everything else (greedy decoding, teacher forcing, padding, timing) is the work of the
drivers, one for each kind of model, the same code for every engine. Light: the stage process reads the tables, and only a worker
calls `load`. All engines run on the CPU: verdicts must not depend on, or disturb, a
GPU that is busy training.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from handlers.models.tasks import BY_NAME
from handlers.models.tasks import Kind as ModelKind
from handlers.validate.engines.generation_rules import Rules


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
    task: str = "text-generation"
    """Name in `handlers.models.tasks`: the task of the merged model."""


class Loaded(Protocol):
    """What all loaded models have."""

    vocabulary: int | None
    """Width of a row of outputs, None when only a run can tell."""
    context_length: int | None
    """Positions that the model can address, None when it does not say."""

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Import what loading `spec` will need, without loading it; never raises."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens as the tokenizer's own default has them."""

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Token ids of two texts as one input, and the segment (0 or 1) that each token is of."""

    def text(self, ids: list[int]) -> str:
        """The text of token ids, without special tokens."""


class Engine(Loaded, Protocol):
    """A language model. Token ids are int64, logits float32, caches opaque and consumed by the step that takes them."""

    end_tokens: tuple[int, ...]

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """Run (B, S) new tokens after the P cached ones: ids (B, S), mask (B, P+S), positions (B, S) → logits (B, S, V), new cache.

        `cache` None means P = 0.
        """


class Seq2SeqEngine(Loaded, Protocol):
    """An encoder-decoder. `end_tokens` are its rules'."""

    end_tokens: tuple[int, ...]
    rules: Rules
    ways: tuple[str, ...]
    """Names of the ways in which its decoder can be run, each of which must give the same; the first is the one that is timed."""
    pad: int

    def start(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
        """Encode sources (B, S); the state before any target token."""

    def step(self, tokens: np.ndarray, state: Any, way: str) -> tuple[np.ndarray, Any]:
        """Run (B, T) target tokens after those that `state` has seen → logits (B, T, V), new state.

        T is 1 in all calls but the first. `state` is not consumed where it comes from `start`.
        """


class EncoderEngine(Loaded, Protocol):
    """A model that gives its answer in one pass."""

    pad: int
    """Token that fills up a batch."""

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """All three (B, S) → the task's outputs in float32: one of (B, S, V) or (B, V), or starts and ends of answers, both (B, S)."""


ENGINES: dict[str, dict[ModelKind, str]] = {
    "live": {
        "causal": "handlers.validate.engines.live:LiveEngine",
        "seq2seq": "handlers.validate.engines.live:LiveSeq2Seq",
        "encoder": "handlers.validate.engines.live:LiveEncoder",
    },
    "torch": {
        "causal": "handlers.validate.engines.torch_causal:TorchEngine",
        "seq2seq": "handlers.validate.engines.torch_tasks:TorchSeq2Seq",
        "encoder": "handlers.validate.engines.torch_tasks:TorchEncoder",
    },
    "onnx": {
        "causal": "handlers.validate.engines.onnx_causal:OnnxEngine",
        "seq2seq": "handlers.validate.engines.onnx_tasks:OnnxSeq2Seq",
        "encoder": "handlers.validate.engines.onnx_tasks:OnnxEncoder",
    },
    "onnx-genai": {"causal": "handlers.validate.engines.genai:GenaiEngine"},
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
    "onnx-fp16": Kind("onnx", cache_limit=0.02, padding_limit=0.02, noise_share=1.5),
    "onnx-int8-static": Kind("onnx", cache_limit=0.5, padding_limit=0.5, noise_share=1.5),
    "onnx-int8-weight": Kind("onnx", cache_limit=0.1, padding_limit=0.1, noise_share=1.5),
    "onnx-int4": Kind("onnx", cache_limit=0.5, padding_limit=0.5, noise_share=1.5),
    "onnx-activations": Kind("onnx", cache_limit=1e-3, padding_limit=1e-3, merged_limit=1e-2),
    "onnx-activations-fp16": Kind("onnx", cache_limit=0.05, padding_limit=0.05, merged_limit=0.1),
    "onnx-activations-int8": Kind("onnx", cache_limit=1.0, padding_limit=1.0, noise_share=1.5),
    "onnx-genai-fp32": Kind("onnx-genai", cache_limit=1e-3, padding_limit=1e-3, merged_limit=1e-2),
    "onnx-genai-fp16": Kind("onnx-genai", cache_limit=0.05, padding_limit=0.05, noise_share=1.5),
    "onnx-genai-int4": Kind("onnx-genai", cache_limit=0.5, padding_limit=0.5, noise_share=1.5),
}
"""Limits by measurement on a two-layer model: fp32 graphs stay below 1e-5, and a graph with a blanked cache or without its mask
goes above 2. Dynamic int8 scales activations by the largest value of the whole tensor, so a row depends on its neighbours:
there sound graphs reach 0.36 where their error against the live model is 0.42. On trained models of three layers (Qwen3, Llama,
GPT-2) fp16 stays below 2e-4 in both, static int8 below 1e-4, 8-bit and 4-bit weights below 5e-3."""


def load(spec: EngineSpec) -> Any:
    """Import the engine's libraries and load its model; whatever the library raises passes through."""
    return engine_class(spec)(spec)


def engine_class(spec: EngineSpec) -> Any:
    """The class that loads `spec`; imports its libraries."""
    module, _, attribute = ENGINES[spec.engine][BY_NAME[spec.task].kind].partition(":")
    return getattr(importlib.import_module(module), attribute)
