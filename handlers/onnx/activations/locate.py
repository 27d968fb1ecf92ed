"""Finds activations inside an exported graph by their values, and makes them outputs: nothing is exported twice.

Called by the onnx-activations stage. Names inside a graph say little and change with the exporter; but the value that torch's
hooks saw is somewhere in the graph, and random inputs distinguish it from all others. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from handlers.graphs.comparison import TOLERANCE
from handlers.onnx.activations.calls import Call, error

_AT_ONCE = 64
"""Values fetched in one run, so that few of them are in memory together."""
_FLOATS = (None, ir.DataType.FLOAT, ir.DataType.FLOAT16)


class NotInGraphError(Exception):
    """The graph holds no value that equals these activations, `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(f"the graph holds no value that equals {', '.join(names)}")


def find(model: ir.Model, wanted: Mapping[str, np.ndarray], call: Call, scratch: Path, threads: int) -> dict[str, ir.Value]:
    """The graph's value for each wanted array, which is torch's for the call; the nearest one within tolerance.

    Writes the graph into `scratch`, weights included. Raises NotInGraphError.
    """
    candidates = [value for node in model.graph for value in node.outputs if _possible(value)]
    session = _exposed(model, candidates, scratch, threads)
    best: dict[str, tuple[float, ir.Value]] = {}
    past = {
        value.name: np.zeros((len(call.mask), value.shape[1], 0, value.shape[3]), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values.")
    }
    for start in range(0, len(candidates), _AT_ONCE):
        group = candidates[start : start + _AT_ONCE]
        for value, array in zip(group, session.run([value.name for value in group], {**call.feeds, **past}), strict=True):
            for name, reference in wanted.items():
                if array.shape == reference.shape and array.dtype.kind == "f":
                    distance = error(name, array, reference, call.mask)
                    if distance <= TOLERANCE and distance < best.get(name, (np.inf, value))[0]:
                        best[name] = (distance, value)
    lost = [name for name in wanted if name not in best]
    if lost:
        raise NotInGraphError(lost)
    return {name: best[name][1] for name in wanted}


def _possible(value: ir.Value) -> bool:
    """Whether a value may be an activation: floating point, of rank 3 or 4, as far as the graph says."""
    return bool(value.name) and value.dtype in _FLOATS and (value.shape is None or len(value.shape) in (3, 4))


def _exposed(model: ir.Model, candidates: Sequence[ir.Value], scratch: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session of the graph in which all candidates are outputs, and nothing is fused away."""
    before = list(model.graph.outputs)
    known = set(before)
    model.graph.outputs.extend(value for value in candidates if value not in known)
    path = scratch / "exposed.onnx"
    try:
        ir.save(model, path, external_data=f"{path.name}.data")
    finally:
        del model.graph.outputs[len(before) :]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for written in (path, path.with_name(f"{path.name}.data")):
        written.unlink(missing_ok=True)  # the session has read it
    return session


def add_outputs(model: ir.Model, values: Mapping[str, ir.Value], shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Give the graph an output of each name, behind an Identity, so that inner names stay and two outputs may be one value."""
    for name, value in values.items():
        node = ir.node("Identity", [value], name=f"output.{name}")
        (output,) = node.outputs
        output.name, output.type, output.shape = name, ir.TensorType(ir.DataType.FLOAT), ir.Shape(list(shapes[name]))
        model.graph.append(node)
        model.graph.outputs.append(output)
