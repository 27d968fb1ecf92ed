"""The engine of ONNX folders: onnxruntime, tokenizers and numpy, nothing else, as a deployment would run them.

Used inside workers and by `handlers.generate`. A folder holds `model.onnx` (external data beside it), `tokenizer.json`
and, where known, `config.json` and `generation_config.json`. The graph takes input_ids, attention_mask, position_ids
and past_key_values.{i}.key|value, and gives logits and present.{i}.key|value; inputs that a graph lacks are not fed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import OrtValue
from tokenizers import Tokenizer

from daemon.errors import Permanent
from handlers.validate.engines import EngineSpec

GRAPH = "model.onnx"
_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
_OPERATION = "run the ONNX graph"
_AGAIN = "export the variant again"


class OnnxEngine:
    """One graph for prefill and decoding; the cache stays in onnxruntime's own memory between steps."""

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Nothing: importing this module is all there is to prepare."""

    def __init__(self, spec: EngineSpec) -> None:
        self._folder = Path(spec.folder)
        self._tokenizer: Tokenizer | None = None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = spec.threads
        options.inter_op_num_threads = 1
        # Spinning threads lose more than they gain on a busy box, and would slow down the engine whose turn is next.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(str(self._folder / GRAPH), options, providers=["CPUExecutionProvider"])
        self._inputs = {node.name: node for node in self._session.get_inputs()}
        self._outputs = [node.name for node in self._session.get_outputs()]
        self._past = [name for name in self._inputs if name.startswith("past_key_values.")]
        self._check_names()
        width = {node.name: node.shape for node in self._session.get_outputs()}["logits"][-1]
        self.vocabulary: int | None = width if isinstance(width, int) else None
        self.context_length: int | None = self._json("config.json").get("max_position_embeddings")
        end = self._json("generation_config.json").get("eos_token_id", self._json("config.json").get("eos_token_id"))
        self.end_tokens: tuple[int, ...] = () if end is None else tuple(end) if isinstance(end, list) else (end,)

    def _check_names(self) -> None:
        wanted = {"logits"} | {_present(name) for name in self._past}
        missing = sorted(wanted - set(self._outputs)) + ([] if "input_ids" in self._inputs else ["input_ids"])
        unknown = sorted(set(self._inputs) - {"input_ids", "attention_mask", "position_ids", *self._past})
        if not self._past:
            missing.append("past_key_values.0.key")
        if missing or unknown:
            cause = f"its inputs and outputs are not those of a language model with a cache (missing {missing}, unknown {unknown})"
            raise Permanent("onnx-names", _OPERATION, cause, _AGAIN, path=self._folder / GRAPH)

    def _dtype(self, name: str) -> type[np.generic]:
        kind = self._inputs[name].type
        if kind not in _DTYPES:
            raise Permanent(
                "onnx-type", _OPERATION, f"its input {name} is a {kind}, which numpy can't hold", _AGAIN, path=self._folder / GRAPH
            )
        return _DTYPES[kind]

    def _json(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        value: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        return value

    def _empty_cache(self, rows: int) -> dict[str, OrtValue]:
        values = {}
        for name in self._past:
            shape = self._inputs[name].shape
            if len(shape) != 4 or not isinstance(shape[1], int) or not isinstance(shape[3], int):
                cause = f"the input {name} has the shape {shape}, which does not say the number of heads and their size"
                raise Permanent("onnx-cache-shape", _OPERATION, cause, _AGAIN, path=self._folder / GRAPH)
            empty = np.zeros((rows, shape[1], 0, shape[3]), dtype=self._dtype(name))
            values[name] = OrtValue.ortvalue_from_numpy(empty)
        return values

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`; arrays are cast to the integer type that the graph asks for."""
        arrays = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        feeds: dict[str, OrtValue] = dict(self._empty_cache(len(input_ids)) if cache is None else cache)
        for name, array in arrays.items():
            if name in self._inputs:
                feeds[name] = OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array, dtype=self._dtype(name)))
        outputs = dict(zip(self._outputs, self._session.run_with_ort_values(self._outputs, feeds), strict=True))
        return outputs["logits"].numpy().astype(np.float32, copy=False), {name: outputs[_present(name)] for name in self._past}

    def encode(self, text: str) -> list[int]:
        """See `Engine.encode`; reads `tokenizer.json` with the tokenizers library alone."""
        return list(self._loaded_tokenizer().encode(text).ids)

    def text(self, ids: list[int]) -> str:
        """See `Engine.text`."""
        return str(self._loaded_tokenizer().decode(ids, skip_special_tokens=True))

    def _loaded_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            path = self._folder / "tokenizer.json"
            if not path.is_file():
                cause = "there is no tokenizer.json, so the artifact can't be run without another folder"
                raise Permanent("tokenizer-not-found", "load the tokenizer", cause, "give the base a fast tokenizer", path=path)
            self._tokenizer = Tokenizer.from_file(str(path))
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
        return self._tokenizer


def _present(past: str) -> str:
    """The output that becomes the input `past` of the next step."""
    return past.replace("past_key_values.", "present.", 1)
