"""A graph as transformers.js loads it: its name, its file of weights, and the name of its first axis. Weights are copied as they are.

Called by the stages. A page reads whole files into memory, each of which has to be below 2 GiB, and its runtime addresses 4 GiB in all.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from handlers.graphs.attention import standard
from handlers.graphs.attention.fusing import is_fused, spell_out
from handlers.graphs.attention.rounded_cache import widen_cache
from handlers.graphs.graphset import Graph, Port
from handlers.graphs.signature import BATCH
from handlers.web import operators

FOLDER = "onnx"
STEMS = {"model": "model", "encoder": "encoder_model", "decoder_merged": "decoder_model_merged"}
"""Role of a graph → the name by which transformers.js asks for it."""
THEIR_BATCH = "batch_size"
"""The only axis of a cache that transformers.js does not take for empty at first."""
MOST_OF_A_FILE = 2_000_000_000
"""Bytes of one file of weights."""
MOST_IN_ALL = 3_800_000_000
"""Bytes of all graphs and weights that a page can open at once; the rest of its 4 GiB is for what they compute."""
_ALIGNMENT = 64


class TooLargeError(Exception):
    """A page can't open it; the message is a clause."""


@dataclass(frozen=True)
class Made:
    """One graph of the published folder."""

    graph: Graph
    chunks: int
    """Files of weights beside it."""


def write(source: Path, graph: Graph, folder: Path, suffix: str) -> Made:
    """Write a graph of `source` into `folder`, with the weights that are in files of their own. Raises TooLargeError."""
    name = f"{STEMS[graph.role]}{suffix}.onnx"
    proto = onnx.load(source / graph.file, load_external_data=False)
    fused = ir.load(source / graph.file)
    if is_fused(fused):  # not all of a browser's runtimes have the operator, and its library makes caches of floats alone
        proto = ir.to_proto(spell_out(widen_cache(fused)))
    elif standard.has_operator(fused.graph):  # nor this one of a newer operator set
        proto = ir.to_proto(standard.spell_out(fused))
    _rename_batch(proto.graph)
    operators.replace_lookups(proto)
    (folder / FOLDER).mkdir(exist_ok=True)
    data = _copy_weights(proto, source, folder / FOLDER, f"{name}_data")
    (folder / FOLDER / name).write_bytes(proto.SerializeToString())
    changed = {"file": f"{FOLDER}/{name}", "data": tuple(f"{FOLDER}/{file}" for file in data)}
    ports = {
        "inputs": tuple(map(_renamed, graph.inputs, proto.graph.input)), "outputs": tuple(map(_renamed, graph.outputs, proto.graph.output))
    }  # fmt: skip
    return Made(graph.model_copy(update={**changed, **ports}), len(data))


def _renamed(port: Port, value: onnx.ValueInfoProto) -> Port:
    shape = tuple(THEIR_BATCH if size == BATCH else size for size in port.shape)
    return port.model_copy(update={"shape": shape, "dtype": ir.DataType(value.type.tensor_type.elem_type).numpy().name})


def _rename_batch(graph: onnx.GraphProto) -> None:
    """In inputs, outputs and all between them, those of branches too."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_param = " ".join(THEIR_BATCH if word == BATCH else word for word in dimension.dim_param.split(" "))
    for node in graph.node:
        for attribute in node.attribute:
            for branch in (attribute.g, *attribute.graphs):
                if branch.node:
                    _rename_batch(branch)


def _outside(proto: onnx.ModelProto) -> Iterator[tuple[Any, str, int, int]]:
    """Tensor, file, place and length of the weights that lie in files of their own."""
    for tensor in onnx.external_data_helper._get_all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            length = entries.get("length") or str(_bytes_of(tensor))
            yield tensor, entries["location"], int(entries.get("offset", 0)), int(length)


def _bytes_of(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return int(count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _copy_weights(proto: onnx.ModelProto, source: Path, folder: Path, name: str) -> tuple[str, ...]:
    """Copy the weights that a graph reads, one after the other, into as few files as can be; the files' names."""
    files: list[str] = []
    maps: dict[str, mmap.mmap] = {}
    places: dict[tuple[str, int, int], tuple[str, int]] = {}
    target: Any = None
    try:
        for tensor, file, offset, length in _outside(proto):
            if length > MOST_OF_A_FILE:
                raise TooLargeError(f"its weight {tensor.name} has {length} bytes, and a page reads files of at most {MOST_OF_A_FILE}")
            if (file, offset, length) not in places:
                if target is None or target.tell() + length > MOST_OF_A_FILE:
                    files.append(f"{name}_{len(files)}" if files else name)
                    if target is not None:
                        target.close()
                    target = open(folder / files[-1], "wb")  # noqa: SIM115  # the next one follows before it is closed
                if file not in maps:
                    with open(source / file, "rb") as opened:
                        maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
                target.write(b"\0" * (-target.tell() % _ALIGNMENT))
                places[file, offset, length] = (files[-1], target.tell())
                target.write(memoryview(maps[file])[offset : offset + length])
            where, place = places[file, offset, length]
            del tensor.external_data[:]
            for key, value in (("location", where), ("offset", place), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
    finally:
        if target is not None:
            target.close()
        for mapped in maps.values():
            mapped.close()
    return tuple(files)
