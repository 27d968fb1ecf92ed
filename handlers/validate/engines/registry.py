"""What validation asks of an engine, and the engines that there are.

An engine is a model as a user would load it, reduced to its primitive: one `step` of a language model, `start` and `step` of an
encoder-decoder, one `run` of an encoder. Everything else (greedy decoding, teacher forcing, padding, timing) is the work of the
drivers, one for each kind of model, the same code for every engine. Light: the stage process reads the tables, and only a worker
calls `load`. All engines run on the CPU: verdicts must not depend on, or disturb, a
GPU that is busy training.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import Limits
from daemon.contract.formats.stages import LAYER_BY_LAYER
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.models.files import read_json, setting
from handlers.models.tasks import BY_NAME, Kind
from handlers.validate.engines.generation_rules import Rules
from handlers.validate.engines.task_profile import ValidatedTask


class EngineSpec(BaseModel):
    """What a worker loads; crosses the process boundary as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    """Name in `engines`."""
    folder: str
    """Folder of the model: a checkpoint's pin for `live`, an artifact otherwise."""
    base: str | None = None
    """Folder of the job's base model; only engines that put an adapter over it read it."""
    base_values: str = "original"
    """What `merge.base` comes to, for an artifact that is put over that base."""
    weight: float = 1.0
    """Factor of the adapter's delta, for the live model."""
    additions: tuple[tuple[str, float], ...] = ()
    """(folder, factor) of each adapter that acts beside it there."""
    threads: int = 1
    task: str = "text-generation"
    """Name in `handlers.models.tasks`: the task of the merged model."""
    sentence: bool = False
    """Whether it gives one vector a text, by the modules of sentence-transformers, and not one a token."""
    processors: tuple[str, ...] = ()
    """Folders whose processor prepares pictures and sounds where a folder that is nobody's artifact has none, the first one's of them."""


def base_values(context: StageContext) -> str:
    """Give what `merge.base` comes to: "original" where there is no adapter, and for a base stored quantized, where it has no effect."""
    wanted = context.work.merge.base
    return "original" if wanted == "original" or context.base is None or stored_quantized(Path(context.base)) else wanted


def stored_quantized(base: Path) -> bool:
    """Tell whether a base is quantized as it lies on disk, by its config.json."""
    config = read_json(base / "config.json", "read the base's configuration")
    return bool(setting(config, "quantization_config") or config.get("compression_config"))


def live_spec(context: StageContext, engine: str, subject: ValidatedTask) -> EngineSpec:
    """Give what loads the live model of a job, on the base as it is stored."""
    return EngineSpec(
        engine=engine, folder=context.pin, base=context.base, threads=context.limits.threads, task=subject.task, sentence=subject.sentence,
        weight=context.checkpoint.weight, additions=tuple((str(folder), adapter.weight) for folder, adapter in context.additions),
    )  # fmt: skip


def artifact_spec(context: StageContext, engine: str, folder: str, subject: ValidatedTask) -> EngineSpec:
    """Give what loads an artifact of a job; one that is an adapter goes over the base that the merge was made of."""
    return EngineSpec(
        engine=engine, folder=folder, base=context.base, base_values=base_values(context), threads=context.limits.threads,
        task=subject.task, sentence=subject.sentence,
    )  # fmt: skip


class LoadedModel(Protocol):
    """What all loaded models have."""

    vocabulary: int | None
    """Width of a row of outputs, None when only a run can tell."""
    context_length: int | None
    """Positions that the model can address, None when it does not say."""

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Import what loading `spec` will need, without loading it; never raises."""

    def encode(self, text: str) -> list[int]:
        """Give token ids of a text, special tokens as the tokenizer's own default has them."""

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Give token ids of two texts as one input, and the segment (0 or 1) that each token is of."""

    def text(self, ids: list[int]) -> str:
        """Give the text of token ids, without special tokens."""


class Engine(LoadedModel, Protocol):
    """A language model. Token ids are int64, logits float32, caches opaque and consumed by the step that takes them.

    An engine may have more, which saves time: `batches` (True: texts can be decoded as the rows of one padded batch), `same_kernels` (True:
    a single row is computed by the code that computes a batch), `prefill` (as `step` without a cache, with the logits of the last position
    alone) with `logits_held` (False: it never holds those of all positions), `copied` (a second cache, to be gone on from like the first),
    `keeps_caches` (True: a step leaves the cache that it takes as it is), `kept` (as `step`, with the logits of some of the new tokens
    alone), and `reserve` (told of how many tokens the next text will be, where room for its cache is laid out before).
    """

    end_tokens: tuple[int, ...]

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """Run (B, S) new tokens after the P cached ones: ids (B, S), mask (B, P+S), positions (B, S) → logits (B, S, V), new cache.

        `cache` None means P = 0.
        """


class Seq2SeqEngine(LoadedModel, Protocol):
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


class EncoderEngine(LoadedModel, Protocol):
    """A model that gives its answer in one pass."""

    pad: int
    """Token that fills up a batch."""

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """Run all three (B, S) → the task's outputs in float32: one of (B, S, V) or (B, V), or starts and ends of answers, both (B, S)."""


_OURS: dict[str, dict[str, str]] = {
    "live": {
        "causal": "handlers.validate.engines.pytorch.live:LiveEngine",
        "seq2seq": "handlers.validate.engines.pytorch.live:LiveSeq2Seq",
        "encoder": "handlers.validate.engines.pytorch.live:LiveEncoder",
        "media-encoder": "handlers.validate.engines.pytorch.live:LiveMediaEncoder",
        "media-seq2seq": "handlers.validate.engines.pytorch.live:LiveMediaSeq2Seq",
    },
    "torch": {
        "causal": "handlers.validate.engines.pytorch.torch_causal:TorchEngine",
        "seq2seq": "handlers.validate.engines.pytorch.torch_tasks:TorchSeq2Seq",
        "encoder": "handlers.validate.engines.pytorch.torch_tasks:TorchEncoder",
        "media-encoder": "handlers.validate.engines.media.encoders:MediaEncoder",
        "media-seq2seq": "handlers.validate.engines.media.speech:TorchSpeech",
    },
    "live-layerwise": {"causal": "handlers.validate.engines.pytorch.layerwise:LayerwiseLive"},
    "torch-layerwise": {"causal": "handlers.validate.engines.pytorch.layerwise:LayerwiseTorch"},
}
"""The engines of the reference and of PyTorch's own format; all others are declared by the formats that they run."""
LAYERWISE = "-layerwise"
"""What the name of an engine ends with that reads its model layer by layer, and answers many requests at once (`Ahead`)."""
WAY = "layer by layer"
"""What people read of it."""
EXACT = Limits("torch", cache=1e-3, padding=1e-3)
"""Of the merged model in PyTorch, published or not."""


def engines() -> dict[str, dict[str, str]]:
    """Give engine → `Task.engine` → `module:class`."""
    return {**catalog().engines, **_OURS}


def runs_models(engine: str) -> bool:
    """Tell whether an engine runs what transformers and PEFT read, and no file of a format of ours."""
    return engine in _OURS


def in_pytorch(engine: str) -> bool:
    """Tell whether an engine runs PyTorch and transformers, so that it starts at once in a process that has them loaded."""
    return engine in _OURS or engine.removesuffix(LAYERWISE) in catalog().in_pytorch


def engine_for(name: str, context: StageContext, kind: Kind) -> str:
    """Give the engine of a stage whose model the engine `name` would hold whole: by the strategy that the daemon chose.

    Permanent where the model turns out to be of a kind that can't be run in this way: an adapter may bring another task than its base has.
    """
    if context.strategy != LAYER_BY_LAYER:
        return name
    if kind not in engines().get(name + LAYERWISE, {}):
        raise Permanent(
            FaultCode.MEMORY_NEVER, f"run the stage {context.stage}",
            f"the model is too large to be held in memory, and with its adapter it is no language model (its kind is {kind}), so that it"
            " can't be run layer by layer", "export on a larger machine, or raise limits.memory_fraction", path=context.base,
        )  # fmt: skip
    return name + LAYERWISE


def as_taken(engine: str) -> Fallback | None:
    """Give what to record of an engine that does not hold its model whole."""
    if not engine.endswith(LAYERWISE):
        return None
    reason = "the whole model needs more memory than limits.memory_fraction allows; the outputs are the same"
    return Fallback(wanted="the model in one piece", taken=WAY, reason=reason)


def load(spec: EngineSpec) -> Any:
    """Import the engine's libraries and load its model; whatever the library raises passes through."""
    return engine_class(spec)(spec)


def engine_class(spec: EngineSpec) -> Any:
    """Give the class that loads `spec`; imports its libraries."""
    return pkgutil.resolve_name(engines()[spec.engine][BY_NAME[spec.task].engine])
