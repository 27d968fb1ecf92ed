"""What all engines of ONNX folders share: which graphs there are, sessions, types of inputs, configuration, tokenizer.

Used by `onnx_engine` and `onnx_tasks`. A folder says in graphs.json which file has which role; in one without it, the files' usual
names say so. Free of torch and transformers, as a deployment would be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.folder.chain_signature import EMBEDDING, HIDDEN, NEXT
from handlers.graphs import graphset
from handlers.validate.engines.graphs.exported_folder import ExportedFolder
from handlers.validate.engines.registry import EngineSpec

GRAPH = "model.onnx"
USUAL = {
    "model": GRAPH,
    "encoder": "encoder_model.onnx",
    "decoder": "decoder_model.onnx",
    "decoder_with_past": "decoder_with_past_model.onnx",
    "decoder_merged": "decoder_model_merged.onnx",
}
"""Role → file in a folder without graphs.json."""
OPERATION = "run the ONNX graph"
AGAIN = "export the variant again"
_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}


def graph_files(folder: Path) -> dict[str, Path]:
    """Give role → file of the graphs of a folder. Permanent when graphs.json can't be read or names a file that is not there."""
    if not (folder / graphset.FILE).is_file():
        return {role: folder / name for role, name in USUAL.items() if (folder / name).is_file()}
    files = {graph.role: folder / graph.file for graph in graphset.read(folder).graphs}
    if lost := sorted(path.name for path in files.values() if not path.is_file()):
        raise Permanent(FaultCode.GRAPH_UNREADABLE, OPERATION, f"{graphset.FILE} names {lost[0]}, which is not there", AGAIN, path=folder)
    return files


def check_names(
    graph: LoadedGraph | LoadedChain, what: str, needed: Iterable[str], outputs: Iterable[str], optional: Iterable[str]
) -> None:
    """See `LoadedGraph.check_names`."""
    needed = list(needed)
    missing = sorted(set(outputs) - set(graph.outputs)) + [name for name in needed if name not in graph.inputs]
    unknown = sorted(set(graph.inputs) - {*needed, *optional, *graph.past})
    if missing or unknown:
        cause = f"its inputs and outputs are not those of {what} (missing {missing}, unknown {unknown})"
        raise Permanent(FaultCode.GRAPH_UNEXPECTED, OPERATION, cause, AGAIN, path=graph.path)


class LoadedGraph:
    """One session. Spinning threads lose more than they gain on a busy box, and would slow down the engine whose turn is next."""

    def __init__(self, path: Path, threads: int) -> None:
        self.path = path
        self.session: Any = self._session(path, threads)
        self.inputs = {node.name: node for node in self.session.get_inputs()}
        self.outputs = {node.name: node for node in self.session.get_outputs()}
        self.past = [name for name in self.inputs if name.startswith("past_key_values.")]

    def _session(self, path: Path, threads: int) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def check_names(self, what: str, needed: Iterable[str], outputs: Iterable[str], optional: Iterable[str] = ()) -> None:
        """Raise Permanent unless the graph takes the inputs `needed` and none but those, `optional` and its past, and gives `outputs`."""
        check_names(self, what, needed, outputs, optional)

    def dtype(self, name: str) -> type[np.generic]:
        """Give numpy's type of an input."""
        kind = self.inputs[name].type
        if kind not in _DTYPES:
            raise Permanent(
                FaultCode.GRAPH_UNEXPECTED, OPERATION, f"its input {name} is a {kind}, which numpy can't hold", AGAIN, path=self.path
            )
        return _DTYPES[kind]

    def value(self, name: str, array: np.ndarray) -> OrtValue:
        """Give an array as the input `name` takes it."""
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array, dtype=self.dtype(name)))

    def passed(self, name: str, value: OrtValue) -> OrtValue:
        """Give another graph's output as the input `name` takes it."""
        return value if value.data_type() == self.inputs[name].type else self.value(name, value.numpy())

    def empty_past(self, rows: int) -> dict[str, OrtValue]:
        """Give a cache of no tokens."""
        values = {}
        for name in self.past:
            shape = self.inputs[name].shape
            if len(shape) != 4 or not isinstance(shape[1], int) or not isinstance(shape[3], int):
                cause = f"the input {name} has the shape {shape}, which does not say the number of heads and their size"
                raise Permanent(FaultCode.GRAPH_UNEXPECTED, OPERATION, cause, AGAIN, path=self.path)
            values[name] = self.value(name, np.zeros((rows, shape[1], 0, shape[3])))
        return values

    def run(self, outputs: list[str], feeds: dict[str, OrtValue]) -> dict[str, OrtValue]:
        """Give name → value of the outputs asked for."""
        return dict(zip(outputs, self.session.run_with_ort_values(outputs, feeds), strict=True))

    def width(self, output: str) -> int | None:
        """Give size of an output's last axis, None where it is not fixed."""
        width = self.outputs[output].shape[-1]
        return width if isinstance(width, int) else None


class LoadedChain:
    """The graphs of a decoder that is one graph after another, in the manner of `LoadedGraph`: the first's inputs and the last's outputs,
    with the pasts and presents of all."""

    def __init__(self, graphs: Sequence[LoadedGraph]) -> None:
        self._graphs = graphs
        self.path = graphs[0].path
        self.inputs = {name: node for graph in graphs for name, node in graph.inputs.items() if name != HIDDEN}
        self.outputs = {name: node for graph in graphs for name, node in graph.outputs.items() if name != NEXT}
        self.past = [name for graph in graphs for name in graph.past]

    def check_names(self, what: str, needed: Iterable[str], outputs: Iterable[str], optional: Iterable[str] = ()) -> None:
        """As `LoadedGraph.check_names`; each graph but the last must also hand its vectors on to one that takes them."""
        for graph in self._graphs[:-1]:
            if NEXT not in graph.outputs:
                raise Permanent(
                    FaultCode.GRAPH_UNEXPECTED, OPERATION, f"it gives no {NEXT} for the next graph of the chain", AGAIN, path=graph.path
                )
        for graph in self._graphs[1:]:
            if HIDDEN not in graph.inputs:
                raise Permanent(
                    FaultCode.GRAPH_UNEXPECTED, OPERATION, f"it takes no {HIDDEN} from the graph before it", AGAIN, path=graph.path
                )
        check_names(self, what, needed, outputs, optional)

    def value(self, name: str, array: np.ndarray) -> OrtValue:
        return next(graph for graph in self._graphs if name in graph.inputs).value(name, array)

    def empty_past(self, rows: int) -> dict[str, OrtValue]:
        return {name: value for graph in self._graphs for name, value in graph.empty_past(rows).items()}

    def run(self, outputs: list[str], feeds: dict[str, OrtValue]) -> dict[str, OrtValue]:
        values: dict[str, OrtValue] = {}
        for graph in self._graphs:
            if NEXT in values:
                feeds = feeds | {HIDDEN: graph.passed(HIDDEN, values[NEXT])}
            wanted = [name for name in graph.outputs if name in outputs or name == NEXT]
            values |= graph.run(wanted, {name: feeds[name] for name in graph.inputs})
        return {name: values[name] for name in outputs}

    def width(self, output: str) -> int | None:
        return self._graphs[-1].width(output)


class OnnxFolder(ExportedFolder):
    """An ONNX folder, or one like it."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._files = graph_files(self._folder)

    def _graph(self, role: str, threads: int) -> LoadedGraph:
        """Give the graph with a role; Permanent where the folder has none."""
        if role not in self._files:
            cause = f"the folder holds no {USUAL[role]}"
            raise Permanent(FaultCode.GRAPH_UNREADABLE, OPERATION, cause, AGAIN, path=self._folder)
        return self._opened(self._files[role], threads)

    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        return LoadedGraph(path, threads)

    def _decoder(self, threads: int) -> LoadedGraph | LoadedChain:
        """Give the decoder: one graph, or a chain of all of the folder's graphs in their order."""
        if EMBEDDING not in self._files:
            return self._graph("model", threads)
        return LoadedChain([self._opened(path, threads) for path in self._files.values()])


def present(past: str) -> str:
    """Give the output that becomes the input `past` of the next step."""
    return past.replace("past_key_values.", "present.", 1)


def floats(value: OrtValue) -> np.ndarray:
    """Give an output in float32."""
    array: np.ndarray = value.numpy().astype(np.float32, copy=False)
    return array
