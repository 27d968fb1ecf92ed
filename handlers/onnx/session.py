"""onnxruntime sessions as the ONNX stages open them. Free of torch."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime

from handlers.onnx.graph import GraphFile
from handlers.onnx.graphset import Graph, Port

_NUMPY = {"float": "float32", "double": "float64"}


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A CPU session with at most `threads` threads that logs nothing below errors; RuntimeError when the graph is not valid."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def check_form(path: Path) -> None:
    """Check a graph against the standard; ValueError in one line when it breaks it.

    Called while the weights still lie in a file of their own: the checker would read them into memory twice.
    """
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ValueError(str(error).strip().splitlines()[0]) from None


def described(role: str, file: GraphFile, threads: int = 1) -> Graph:
    """A graph on disk as graphs.json has it; loads it once to ask for its inputs and outputs."""
    session = open_session(file.path, threads)
    inputs, outputs = (tuple(_port(value) for value in values) for values in (session.get_inputs(), session.get_outputs()))
    return Graph(role=role, file=file.path.name, data=file.data, inputs=inputs, outputs=outputs, nodes=file.nodes)


def _port(value: onnxruntime.NodeArg) -> Port:
    name = value.type.removeprefix("tensor(").removesuffix(")")
    return Port(name=value.name, dtype=_NUMPY.get(name, name), shape=tuple("" if size is None else size for size in value.shape))
