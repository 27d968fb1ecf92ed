"""The engines of OpenVINO's folders. Run inside the toolchain, with settings under which OpenVINO computes in fp32 on every processor.

A language model keeps its cache to itself: each text or batch has a request of its own. The others are those of ONNX folders, over
OpenVINO's models instead of sessions.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.values import Json
from handlers.openvino import genai, library

library.openvino()  # before anything else imports it

from handlers.openvino.converting.conversion import BEAM  # noqa: E402
from handlers.openvino.converting.tokenizer import DECODER, ENCODER, Pair  # noqa: E402
from handlers.openvino.session import EXACT, Session  # noqa: E402
from handlers.openvino.twin import tables  # noqa: E402
from handlers.validate.engines.generation_rules import end_tokens  # noqa: E402
from handlers.validate.engines.graphs.onnx_folder import LoadedGraph, OnnxFolder  # noqa: E402
from handlers.validate.engines.graphs.onnx_tasks import OnnxEncoder, OnnxSeq2Seq  # noqa: E402
from handlers.validate.engines.graphs.other_runtimes import OtherGraph  # noqa: E402
from handlers.validate.engines.registry import EngineSpec  # noqa: E402


class OpenVinoModel(OtherGraph):
    """One model. `settings`: OpenVINO's own, by name."""

    def __init__(self, path: Path, threads: int, settings: Mapping[str, str] = EXACT) -> None:
        self._settings = settings
        super().__init__(path, threads)

    def _session(self, path: Path, threads: int) -> Session:
        return Session(path, {**self._settings, "INFERENCE_NUM_THREADS": str(threads)})


class _Models(OnnxFolder):
    def __init__(self, spec: EngineSpec, settings: Mapping[str, str] = EXACT) -> None:
        self.settings = settings
        super().__init__(spec)

    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        return OpenVinoModel(path, threads, self.settings)


class OpenVinoEngine(_Models):
    """A language model whose cache is its own state."""

    def __init__(self, spec: EngineSpec, settings: Mapping[str, str] = EXACT) -> None:
        super().__init__(spec, settings)
        self._threads = spec.threads
        self._model = self._graph("model", spec.threads)
        self._model.check_names("a language model", ["input_ids", BEAM], ["logits"], ["attention_mask", "position_ids"])
        self.vocabulary: int | None = self._model.width("logits")
        self.end_tokens: tuple[int, ...] = end_tokens(self._generation, self._config)
        self._pair: Pair | None = None
        own = any((self._folder / name).is_file() for name in (ENCODER, DECODER))
        self._genai = genai.GenAi(self._folder, spec.threads, self.settings) if own else None

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`; the cache is a request of the compiled model."""
        if cache is None:
            cache = self._model.session.compiled.create_infer_request()
            cache.reset_state()
        arrays = {
            "input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids, BEAM: np.arange(len(input_ids))
        }  # fmt: skip
        feeds = {name: array.astype(self._model.dtype(name)) for name, array in arrays.items() if name in self._model.inputs}
        logits: np.ndarray = np.asarray(cache.infer(feeds)["logits"]).astype(np.float32, copy=False)
        return logits, cache

    def encode(self, text: str) -> list[int]:
        """See `Loaded.encode`; by OpenVINO's tokenizer where the folder has one."""
        pair = self._own_tokenizer()
        return super().encode(text) if pair is None else pair.encode(text)

    def text(self, ids: list[int]) -> str:
        pair = self._own_tokenizer()
        return super().text(ids) if pair is None else pair.decode(ids)

    @property
    def foreign_tokenizer(self) -> bool:
        """Whether OpenVINO's own reads the texts."""
        return self._own_tokenizer() is not None

    alike_tokenizer = True
    """It was kept only because it reads hard texts as the folder's tokenizer.json does."""
    ignored_settings = genai.IGNORED

    @property
    def own_ends(self) -> tuple[int, ...] | None:
        """Tokens at which OpenVINO GenAI ends a text, where it can run the folder."""
        return self._genai.ends if self._genai else None

    def tokenizer_fault(self, wanted: Json) -> str | None:
        """What the tables inside OpenVINO's tokenizer say otherwise than a tokenizer.json, as a clause."""
        return tables.fault(self._folder / ENCODER, self._folder / DECODER, wanted) if self._genai else None

    def chat_templates(self) -> dict[str, str] | None:
        """The chat template that OpenVINO GenAI reads; None where it can't run the folder."""
        return self._genai.templates() if self._genai else None

    def runtime_settings(self) -> Json | None:
        """What OpenVINO GenAI reads; None where it can't run the folder."""
        return self._genai.settings() if self._genai else None

    def generate(self, ids: Sequence[int], tokens: int) -> list[int] | None:
        """At most `tokens` tokens by OpenVINO GenAI, by the folder's own settings without sampling; None where it can't run the folder.

        It has a model of its own, so that this one's is closed meanwhile: both would take twice the memory.
        """
        if self._genai is None:
            return None
        del self._model
        gc.collect()
        try:
            return self._genai.generate(ids, tokens)
        finally:
            gc.collect()
            self._model = self._graph("model", self._threads)

    def _own_tokenizer(self) -> Pair | None:
        if self._pair is None and self._genai:
            self._pair = Pair(self._folder)
        return self._pair


class OpenVinoSeq2Seq(_Models, OnnxSeq2Seq):
    """An encoder-decoder: an encoder, and decoders of the first step and of the later ones."""


class OpenVinoEncoder(_Models, OnnxEncoder):
    """An encoder, with or without a head."""
