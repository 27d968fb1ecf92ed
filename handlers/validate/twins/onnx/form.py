"""Folders of ONNX graphs, onnxruntime's and onnxruntime-genai's, as the comparison with the twin reads and runs them.

Named by `Limits.twin` of their variants. The float form is the engine that the checks use too, over changed graphs. Imports onnxruntime.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime import OrtValue

from handlers.folder import genai_config
from handlers.models.tasks import BY_NAME
from handlers.validate.engines.graphs.onnx_causal import OnnxEngine
from handlers.validate.engines.graphs.onnx_folder import LoadedGraph
from handlers.validate.engines.graphs.onnx_media import OnnxMedia
from handlers.validate.engines.graphs.onnx_tasks import OnnxEncoder, OnnxSeq2Seq
from handlers.validate.engines.registry import load
from handlers.validate.twins.graph_folder import GraphFolder
from handlers.validate.twins.messages import Order, Text
from handlers.validate.twins.onnx import stored
from handlers.validate.twins.onnx.float_form import float_form, rounds_as_it_runs
from handlers.validate.twins.passes import of_engine
from handlers.validate.twins.weights import Stored
from handlers.validate.workers import drivers
from handlers.validate.workers.protocol import PaddedBatch

STRUCTURE = 2e-3
"""Largest |Δ| between a graph's float form and its twin, in standard deviations of the outputs: both compute in fp32, and sound graphs stay
below 1e-5."""
IN_HALVES = 3e-2
"""The same where a graph's tables, norms and constants are halves, while the twin's are not: sound ones stay below 3e-3,
and T5, whose logits are far from 0, below 0.013."""


class OnnxForm(GraphFolder):
    """A folder of graphs."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.limit = IN_HALVES if order.arithmetic == "half" else STRUCTURE
        self.told_positions = order.engine == "onnx"

    def _stored_in(self, path: Path, role: str) -> Sequence[Stored]:
        return stored.read(path, role)

    def _halves_in(self, path: Path) -> Iterable[bytes]:
        return stored.halves(path)

    def outputs(self, texts: Sequence[Text], *, in_float: bool) -> list[dict[str, np.ndarray]]:
        """See `Form.outputs`."""
        engine: Any = self._in_float() if in_float else load(self._spec)
        rows = of_engine(self._spec, engine, texts)
        del engine
        gc.collect()
        return rows

    def padding_error(self, batch: PaddedBatch, side: str) -> float | None:
        """See `Form.padding_error`."""
        if not any(rounds_as_it_runs(onnx.load(path, load_external_data=False)) for path in self._files.values()):
            return None
        return drivers.drive(self._spec, self._in_float()).padding(batch.prompts, batch.continuations, batch.types, side)

    def _in_float(self) -> Any:
        return _FLOATS[BY_NAME[self._spec.task].engine](self._spec)


class PageForm(OnnxForm):
    """A folder for a page in a browser. Here onnxruntime runs its graphs, which onnxruntime-web is built of; the check runs the page."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.model_copy(update={"engine": "onnx"}))


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
    """A part of a class beside an engine of ONNX folders: its graphs are float forms."""

    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        return _FloatGraph(path, threads)


class _FloatCausal(_FloatForm, OnnxEngine): ...


class _FloatSeq2Seq(_FloatForm, OnnxSeq2Seq): ...


class _FloatEncoder(_FloatForm, OnnxEncoder): ...


class _FloatMedia(_FloatForm, OnnxMedia): ...


_FLOATS: Mapping[str, type[Any]] = {
    "causal": _FloatCausal, "seq2seq": _FloatSeq2Seq, "encoder": _FloatEncoder, "media-encoder": _FloatMedia,
}  # fmt: skip
"""`Task.engine` → what runs a graph's float form."""
