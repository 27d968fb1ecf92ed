"""Puts a model's weights into graphs that have none: each is read, widened and turned when the file is written. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO

import numpy as np
import onnx_ir as ir

from handlers.graphs.weights.shared_weights import initializers
from handlers.onnx.templates.sources import Finder, Source
from handlers.onnx.templates.weights import Weights

BLOCK = 16 << 20
"""Elements that are widened at once: 64 MiB."""
_NOWHERE = "weights"
"""The file that weights without values are said to be in: there is none of that name."""


def finder_of(weights: Weights) -> Finder:
    """What finds arrays among the tensors of floating point."""
    floating = sorted(name for name, info in weights.infos.items() if info.dtype.startswith(("F", "BF")))
    return Finder({name: weights.tensor(name) for name in floating})


def find_sources(model: ir.Model, finder: Finder) -> dict[str, Source]:
    """Initializer → the tensors that it comes from; what is not among them is a constant of the graph."""
    sources: dict[str, Source] = {}
    for value in initializers(model):
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and value.name:
            source = finder.find(tensor.numpy())
            if source is not None:
                sources[value.name] = source
    return sources


def resize(model: ir.Model, sources: Mapping[str, Source], small: int, size: int) -> dict[str, Source]:
    """Give a graph a vocabulary of `size` instead of `small`. ValueError where something else than shapes knows the old one."""

    def new(length: int) -> int:
        return size if length == small else length

    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS) and small in np.atleast_1d(attribute.value):
                raise ValueError(f"{node.op_type} has the vocabulary's size as {attribute.name}")
        for value in node.outputs:
            _resize(value, new)
    for value in (*model.graph.outputs, *initializers(model)):
        tensor = value.const_value if value.name not in sources else None
        if tensor is not None and (small in tensor.shape.numpy() or (tensor.dtype.is_integer() and small in tensor.numpy())):
            raise ValueError(f"the constant {value.name} holds the vocabulary's size")
        _resize(value, new)
    return {name: source.resized(new) for name, source in sources.items()}


def _resize(value: ir.Value, new: Callable[[int], int]) -> None:
    if value.shape is not None and value.const_value is None:
        value.shape = ir.Shape([new(size) if isinstance(size, int) else size for size in value.shape])


def empty(model: ir.Model, sources: Mapping[str, Source]) -> None:
    """Take the values of all weights, and all metadata, out of a graph; constants that lie in files are read into it."""
    model.metadata_props.clear()
    for value in initializers(model):
        source, tensor = sources.get(value.name or ""), value.const_value
        if source is None and isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.tensor(tensor.numpy().copy(), name=value.name)
        if source is not None:
            length = 4 * int(np.prod(source.shape, dtype=np.int64))
            value.const_value = ir.ExternalTensor(
                _NOWHERE, 0, length, ir.DataType.FLOAT, shape=ir.Shape(source.shape), name=value.name or "", base_dir="/nonexistent"
            )
            value.shape = ir.Shape(source.shape)


def fill(model: ir.Model, sources: Mapping[str, Source], weights: Weights) -> None:
    """Give a graph the weights of a model. ValueError or KeyError, when they are written, where the model has others."""
    for value in initializers(model):
        source = sources.get(value.name or "")
        if source is not None:
            value.const_value = _Filled(source, weights, value.name)


class _Filled(ir.LazyTensor):
    """A weight that is read when it is written, block by block."""

    def __init__(self, source: Source, weights: Weights, name: str | None) -> None:
        super().__init__(self._read, dtype=ir.DataType.FLOAT, shape=ir.Shape(source.shape), name=name)
        self._source, self._weights = source, weights

    def _read(self) -> ir.TensorProtocol:
        return ir.tensor(self._source.read(self._weights.tensor), name=self.name)

    def tobytes(self) -> bytes:
        """The values, for what shares a file with other graphs."""
        content: bytes = super().tobytes()
        self._weights.release(self._source.tensors)
        return content

    def tofile(self, file: IO[bytes]) -> None:
        """Write the values to a file. onnx_ir calls it for what lies in files of its own."""
        written = 0
        for block in self._source.blocks(self._weights.tensor, BLOCK):
            file.write(block.data)
            written += block.nbytes
        if written != self.nbytes:
            raise ValueError(f"{self.name} has {written} bytes, not {self.nbytes}")
        self._weights.release(self._source.tensors)
