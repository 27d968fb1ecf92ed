"""onnxruntime sessions as the ONNX stages open them. Free of torch.

A session that is only asked for answers can do without onnxruntime's own copy of the weights: see `MappedWeights`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from handlers.graphs.graph_file import GraphFile
from handlers.graphs.graphset import Graph, Port
from handlers.graphs.weights import pages

_NUMPY = {"float": "float32", "double": "float64"}
_LARGE = 256 << 20
"""Bytes of a file whose pages are released."""
_ERRORS = tuple(
    kind for kind in vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, RuntimeError)
)  # fmt: skip
"""What onnxruntime raises; they have no class in common."""
_PAUSE = 0.02
"""Seconds: what is read in them is what is held."""
_MAPPED = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT64, ir.DataType.INT8, ir.DataType.UINT8})


class MappedWeights:
    """Weights in files, mapped once for all sessions that are opened with it, so that a second graph costs no second copy.

    Such sessions compute with the files' pages, which the kernel may take back; products of many rows are up to a quarter slower than with
    the copy that onnxruntime otherwise makes in the order that its kernels like. Nor are constants computed beforehand: a table that is
    also the head's weight would be turned around, a second copy of the model's largest weight.

    With `timed` they are: its sessions are raced against each other, and a graph that computes constants is as fast as it is for others.
    With `packed`, sessions have that copy too, and nothing else of the weights once they are open; no pages are released while they run.

    With `releasing`, pages of large files are released while a session runs, so that the process never holds many of them: they stay in the
    page cache as long as there is room, and are mapped again when they are read again. Times measured meanwhile are not those of the graph.
    """

    def __init__(self, *, releasing: bool = False, timed: bool = False, packed: bool = False) -> None:
        self._files: dict[str, np.memmap] = {}
        self._releasing = releasing or packed
        self.packed = packed
        self.left_out = () if timed else ("ConstantFolding",)
        """Optimizations of onnxruntime that its sessions do without."""

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Release pages every few milliseconds meanwhile, if that was asked for and is worth it."""
        files = [file for file in self._files.values() if self._releasing and file.size > _LARGE]
        if not files:
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(target=_release, args=(files, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def of(self, path: Path) -> dict[str, onnxruntime.OrtValue]:
        """Name → value of the initializers of the graph at `path` that lie in files, in types that numpy has."""
        values = {}
        for initializer in onnx.load(path, load_external_data=False).graph.initializer:
            if initializer.data_location == onnx.TensorProto.EXTERNAL and initializer.data_type in _MAPPED:
                tensor = ir.serde.deserialize_tensor(initializer, path.parent)
                assert isinstance(tensor, ir.ExternalTensor)
                values[initializer.name] = onnxruntime.OrtValue.ortvalue_from_numpy(self._array(tensor))
        return values

    def _array(self, tensor: ir.ExternalTensor) -> np.ndarray:
        """Return the tensor as a view of its file: the tensor's own map would stay as long as its graph, a cycle of references."""
        name = str(tensor.path)
        if name not in self._files:
            self._files[name] = np.memmap(name, np.uint8, mode="r")
        return np.ndarray(tensor.shape.numpy(), tensor.dtype.numpy(), self._files[name], tensor.offset or 0)


def _release(files: Sequence[np.memmap], ended: threading.Event) -> None:
    waiting = True
    while waiting:
        waiting = not ended.wait(_PAUSE)
        for file in files:
            pages.release(file)


class _MappedSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # it has no types
    """Holds its weights as long as it lives: onnxruntime itself knows only where they are."""

    def __init__(self, path: Path, options: onnxruntime.SessionOptions, weights: MappedWeights) -> None:
        self._weights, self._held = weights, weights.of(path)
        if not weights.packed:
            options.add_session_config_entry("session.disable_prepacking", "1")
        for name, value in self._held.items():
            options.add_initializer(name, value)
        with weights.released() if weights.packed else contextlib.nullcontext():
            super().__init__(str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=weights.left_out)

    def run(self, *given: Any, **named: Any) -> Any:
        """See `onnxruntime.InferenceSession.run`."""
        with contextlib.nullcontext() if self._weights.packed else self._weights.released():
            return super().run(*given, **named)


def open_session(path: Path, threads: int, weights: MappedWeights | None = None) -> onnxruntime.InferenceSession:
    """Return a CPU session with at most `threads` threads that logs nothing below errors; RuntimeError when the graph is not valid.

    With `weights` it shares them, and makes no copy of its own.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        if weights is not None:
            return _MappedSession(path, options, weights)
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _ERRORS as error:
        raise RuntimeError(str(error)) from error


def check_form(path: Path) -> None:
    """Check a graph against the standard; ValueError in one line when it breaks it.

    Called while the weights still lie in a file of their own: the checker would read them into memory twice.
    """
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ValueError(str(error).strip().splitlines()[0]) from None


def described_alone(role: str, file: GraphFile) -> Graph:
    """Return the same as the graph itself says it, without opening a session: for graphs whose inputs and outputs are known to be sound."""
    graph = ir.load(file.path).graph
    inputs, outputs = (tuple(_stated(value) for value in values) for values in (graph.inputs, graph.outputs))
    return Graph(role=role, file=file.path.name, data=file.data, inputs=inputs, outputs=outputs, nodes=file.nodes)


def _stated(value: ir.Value) -> Port:
    assert value.dtype is not None and value.shape is not None
    sizes = tuple(size if isinstance(size, int) else size.value or "" for size in value.shape)
    return Port(name=value.name or "", dtype=value.dtype.numpy().name, shape=sizes)


def described(role: str, file: GraphFile, threads: int = 1) -> Graph:
    """Return a graph on disk as graphs.json has it; loads it once to ask for its inputs and outputs."""
    session = open_session(file.path, threads, MappedWeights())
    inputs, outputs = (tuple(_port(value) for value in values) for values in (session.get_inputs(), session.get_outputs()))
    return Graph(role=role, file=file.path.name, data=file.data, inputs=inputs, outputs=outputs, nodes=file.nodes)


def _port(value: onnxruntime.NodeArg) -> Port:
    name = value.type.removeprefix("tensor(").removesuffix(")")
    return Port(name=value.name, dtype=_NUMPY.get(name, name), shape=tuple("" if size is None else size for size in value.shape))
