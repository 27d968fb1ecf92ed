"""Runs the three that are compared: the twin in PyTorch, the graph's float form, and the graph itself, over the same tokens.

Used by the comparison with the twin, in a process of its own. What a user's program feeds is fed by the engines that the checks use too;
the float form is the same engine over changed graphs. Imports onnxruntime, and torch and transformers for the twin.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from handlers.models.tasks import BY_NAME
from handlers.onnx.folder import genai_config
from handlers.validate.engines.onnx_causal import OnnxEngine
from handlers.validate.engines.onnx_folder import LoadedGraph
from handlers.validate.engines.onnx_tasks import OnnxEncoder, OnnxSeq2Seq
from handlers.validate.engines.registry import EngineSpec, load
from handlers.validate.twins.float_form import float_form
from handlers.validate.twins.messages import STEPS, Text
from handlers.validate.workers import drivers
from handlers.validate.workers.seq2seq_decoding import cached


class _FloatGraph(LoadedGraph):
    """A graph of a folder in its float form."""

    def _session(self, path: Path, threads: int) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # which would keep what weights are cast to
        return onnxruntime.InferenceSession(float_form(path), options, providers=["CPUExecutionProvider"])

    def empty_past(self, rows: int) -> dict[str, OrtValue]:
        """As in all graphs; onnxruntime-genai's don't say the size of a head, but their configuration does."""
        if (self.path.parent / genai_config.FILE).is_file():
            size = genai_config.read(self.path.parent)["model"]["decoder"]["head_size"]
            return {name: self.value(name, np.zeros((rows, self.inputs[name].shape[1], 0, size))) for name in self.past}
        return super().empty_past(rows)


class _FloatForm:
    """Beside an engine of ONNX folders: its graphs are float forms."""

    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        return _FloatGraph(path, threads)


class _FloatCausal(_FloatForm, OnnxEngine): ...


class _FloatSeq2Seq(_FloatForm, OnnxSeq2Seq): ...


class _FloatEncoder(_FloatForm, OnnxEncoder): ...


_FLOATS: Mapping[str, type[Any]] = {"causal": _FloatCausal, "seq2seq": _FloatSeq2Seq, "encoder": _FloatEncoder}
"""Kind of model → what runs a graph's float form."""


def of_graph(spec: EngineSpec, texts: Sequence[Text], *, in_float: bool) -> list[dict[str, np.ndarray]]:
    """For each text: way of running it → rows (P, V) at `Text.places`."""
    engine: Any = _FLOATS[BY_NAME[spec.task].kind](spec) if in_float else load(spec)
    found = [{way: rows[text.places(len(rows))] for way, rows in _ways(spec, engine, text).items()} for text in texts]
    del engine
    gc.collect()
    return found


def of_twin(spec: EngineSpec, engine: Any, texts: Sequence[Text]) -> list[np.ndarray]:
    """Rows (P, V) of each text at `Text.places` by a model in PyTorch, in one pass."""
    driver, found = drivers.drive(spec, engine), list[np.ndarray]()
    for text in texts:
        started = text.start > 0
        rows = engine.step(*_fed(text, 0, len(text.ids)), None)[0][0] if started else driver.rows(text.ids, text.targets, text.types)
        found.append(rows[text.places(len(rows))])
    return found


def _ways(spec: EngineSpec, engine: Any, text: Text) -> dict[str, np.ndarray]:
    kind = BY_NAME[spec.task].kind
    if kind == "encoder":
        return {"": drivers.drive(spec, engine).rows(text.ids, text.targets, text.types)}
    if kind == "seq2seq":
        return {way: cached(engine, [text.ids], [text.targets], way, "right")[0] for way in engine.ways}
    count = len(text.ids)
    rows, cache = list[np.ndarray](), None
    borders = [0, *range(max(1, count - STEPS), count + 1)]
    for first, last in pairwise(borders):
        logits, cache = engine.step(*_fed(text, first, last), cache)
        rows.append(logits[0])
    return {"": np.concatenate(rows)}


def _fed(text: Text, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, mask and positions of some tokens of a text, those before them in the cache."""
    places = np.arange(first, last)[None]
    return np.array([text.ids[first:last]]), np.ones((1, last), np.int64), places + text.start
