"""ONNX graphs as OpenVINO's models: a decoder keeps its cache to itself, as OpenVINO GenAI and optimum-intel expect it.

Called by the stages. Runs inside the toolchain.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from handlers.graphs.graphset import Graph, Port
from handlers.openvino import library

BEAM = "beam_idx"
"""Input (rows,) int32: which row of the cache each row goes on with. What searches with beams reorders the cache by it."""


def file_of(graph: Graph) -> str:
    """Name of a graph's file, as optimum-intel and OpenVINO GenAI name it."""
    return f"openvino_{Path(graph.file).stem}.xml"


def convert(path: Path) -> Any:
    """The graph in an ONNX file as a model; raises what OpenVINO raises.

    OpenVINO takes a path as a list that commas separate, so that it gets the file's own name, which has none, from inside its folder.
    """
    with contextlib.chdir(path.parent):
        return library.openvino().convert_model(path.name)


def leave_out_what_is_only_read(model: Any) -> set[str]:
    """Take out outputs that are inputs as they came, and return their names: optimum-intel expects from the later steps' decoder the part
    of the cache that grows alone (optimum/intel/openvino/modeling_seq2seq.py, `OVDecoder.forward`)."""
    outputs = [output for output in model.outputs if _is_an_input(output.get_node().input_value(0).get_node())]
    for output in outputs:
        model.remove_result(output.get_node())
    return {name for output in outputs for name in output.get_names()}


def make_stateful(model: Any, past: list[str]) -> None:
    """Turn the inputs `past` and the outputs that follow them into the model's own state, reordered by an input `beam_idx`.

    Without a state the cache has no tokens and as many rows as `input_ids`: what begins a text reads it like what goes on with one.
    """
    ov = library.openvino()
    ops = ov.opset13
    beam = ops.parameter(name=BEAM, dtype=ov.Type.i32, shape=ov.PartialShape([-1]))
    beam.output(0).get_tensor().add_names({BEAM})
    model.add_parameters([beam])
    for name in past:
        before = model.input(name)
        readers = list(before.get_target_inputs())
        rows = ops.gather(before, beam, ops.constant(np.int64(0)))
        for reader in readers:
            reader.replace_source_output(rows.output(0))
    model.validate_nodes_and_infer_types()
    from openvino._offline_transformations import apply_make_stateful_transformation

    apply_make_stateful_transformation(model, {name: name.replace("past_key_values.", "present.", 1) for name in past})
    _begin_empty(model, ops, ov)


def _is_an_input(node: Any) -> bool:
    while node.get_type_name() == "Identity":
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Parameter")


def _begin_empty(model: Any, ops: Any, ov: Any) -> None:
    rows = ops.gather(ops.shape_of(model.input("input_ids"), output_type="i64"), ops.constant([0]), ops.constant(np.int64(0)))
    for node in model.get_ops():
        if node.get_type_name() != "ReadValue":
            continue
        _, heads, _, width = (size.get_min_length() for size in node.get_output_partial_shape(0))
        sizes = [rows, *(ops.constant(np.array([size], np.int64)) for size in (heads, 0, width))]
        shape = ops.concat(sizes, axis=0)
        nothing = ops.constant(0.0, dtype=node.get_output_element_type(0))
        node.set_arguments([ops.broadcast(nothing, shape)])
    model.validate_nodes_and_infer_types()


def described(graph: Graph, data: str, without: set[str], *, stateful: bool) -> Graph:
    """How graphs.json describes the model that was made of a graph. `without`: outputs that were left out."""
    if not stateful:
        outputs = tuple(port for port in graph.outputs if port.name not in without)
        return graph.model_copy(update={"file": file_of(graph), "data": (data,), "nodes": 0, "outputs": outputs})
    inputs = (
        *(port for port in graph.inputs if not port.name.startswith("past_key_values.")),
        Port(name=BEAM, dtype="int32", shape=("batch",)),
    )
    outputs = tuple(port for port in graph.outputs if not port.name.startswith("present."))
    return graph.model_copy(update={"file": file_of(graph), "data": (data,), "nodes": 0, "inputs": inputs, "outputs": outputs})
