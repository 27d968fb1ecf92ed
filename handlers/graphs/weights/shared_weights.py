"""Several graphs, one file of weights: what two of them hold in common is written once.

Called by the onnx stage and by the stages that derive another form. Tensors are the same when type, shape and bytes are; they are
compared by digest, so that graphs that were exported apart share too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

ALIGNMENT = 4096
"""Of a tensor's place in the file, so that it can be mapped into memory by itself."""
INLINE_BYTES = 1024
"""Tensors up to this size stay in the graph: shapes and scalars, which shape inference wants to see."""


def write(models: Mapping[str, ir.Model], folder: Path, data_file: str) -> int:
    """Write each model as `folder/NAME` with its weights in `folder/DATA_FILE`; gives the bytes of weights that sharing saved.

    The models are left with their weights in that file.
    """
    places: dict[tuple[str, tuple[int, ...], str], tuple[int, int]] = {}
    saved = 0
    with open(folder / data_file, "wb") as stream:
        for model in models.values():
            for value in _large(model):
                tensor = value.const_value
                assert tensor is not None
                content = tensor.tobytes()
                shape = tuple(int(size) for size in tensor.shape.numpy())
                key = (tensor.dtype.name, shape, hashlib.sha256(content).hexdigest())
                if key in places:
                    saved += len(content)
                else:
                    stream.write(bytes(-stream.tell() % ALIGNMENT))
                    places[key] = (stream.tell(), len(content))
                    stream.write(content)
                offset, length = places[key]
                value.const_value = ir.ExternalTensor(
                    data_file, offset, length, tensor.dtype, shape=ir.Shape(shape), name=value.name or "", base_dir=folder
                )
    for name, model in models.items():
        ir.save(model, folder / name)
    return saved


def initializers(model: ir.Model) -> list[ir.Value]:
    """Of the graph and of its subgraphs."""
    return [value for graph in (model.graph, *model.graph.subgraphs()) for value in graph.initializers.values()]


def _large(model: ir.Model) -> list[ir.Value]:
    """Values of all initializers that are worth a place in the file."""
    return [value for value in initializers(model) if value.const_value is not None and value.const_value.nbytes > INLINE_BYTES]
