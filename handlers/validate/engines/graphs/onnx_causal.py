"""The engine of language models as ONNX: onnxruntime, tokenizers and numpy, nothing else, as a deployment would run them.

Used inside workers. The graph takes input_ids, attention_mask, position_ids and
past_key_values.{i}.key|value, and gives logits and present.{i}.key|value; inputs that a graph lacks are not fed. One without a
cache, of dynamic or of fixed size, is run over all tokens again at every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnxruntime import OrtValue

from handlers.folder.fixed_window import Window
from handlers.validate.engines.generation_rules import end_tokens
from handlers.validate.engines.graphs.onnx_folder import GRAPH, LoadedGraph, OnnxFolder, floats, present
from handlers.validate.engines.registry import EngineSpec

__all__ = ["GRAPH", "OnnxEngine"]


class OnnxEngine(OnnxFolder):
    """One graph, or one chain of graphs, for prefill and decoding; the cache stays in onnxruntime's own memory between steps."""

    keeps_caches = True
    """A step makes another cache."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._model = self._decoder(spec.threads)
        self._outputs = ["logits", *(present(name) for name in self._model.past)]
        self._model.check_names("a language model", ["input_ids"], self._outputs, ["attention_mask", "position_ids"])
        self.vocabulary: int | None = self._model.width("logits")
        self.batches = bool(self._model.past)
        """Texts can be decoded in one batch; see `BatchingDriver`."""
        self.end_tokens: tuple[int, ...] = end_tokens(self._generation, self._config)

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`; arrays are cast to the type that the graph asks for."""
        if not self._model.past:
            return self._whole(input_ids, attention_mask, position_ids, cache)
        feeds: dict[str, OrtValue] = dict(self._model.empty_past(len(input_ids)) if cache is None else cache)
        outputs = self._model.run(self._outputs, feeds | self._tokens(input_ids, attention_mask, position_ids))
        return floats(outputs["logits"]), {name: outputs[present(name)] for name in self._model.past}

    def _whole(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        new = input_ids.shape[1]
        if cache is not None:
            input_ids, position_ids = (np.concatenate(pair, axis=1) for pair in zip(cache, (input_ids, position_ids), strict=True))
        assert isinstance(self._model, LoadedGraph), "a chain of graphs has a cache"
        logits = Window(self._model.session).logits(input_ids, attention_mask, position_ids)
        return logits[:, -new:].astype(np.float32, copy=False), (input_ids, position_ids)

    def _tokens(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray) -> dict[str, OrtValue]:
        arrays = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        return {name: self._model.value(name, array) for name, array in arrays.items() if name in self._model.inputs}
