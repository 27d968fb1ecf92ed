"""ONNX graphs as protobuf messages: their nodes, subgraphs included, and the constants that they read.

Used by `stored` and `float_form`. Constants are found through what moves or casts them, as exporters write it. Imports onnx alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

MICROSOFT = "com.microsoft"
HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_PACKED = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
_MOVES = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators through which a constant stays the same numbers."""


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Give the attributes of a node by name."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


@dataclass
class Scope:
    """One graph, with what it and those around it define."""

    graph: onnx.GraphProto
    folder: Path
    outer: Scope | None = None
    tensors: dict[str, onnx.TensorProto] = field(init=False)
    makers: dict[str, onnx.NodeProto] = field(init=False)

    def __post_init__(self) -> None:
        self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        self.makers = {name: node for node in self.graph.node for name in node.output if name}

    def find(self, name: str) -> tuple[Scope, onnx.TensorProto | onnx.NodeProto] | None:
        """Give what defines a value, and where; None for an input of the graph."""
        scope: Scope | None = self
        while scope is not None:
            made = scope.tensors.get(name) or scope.makers.get(name)
            if made is not None:
                return scope, made
            scope = scope.outer
        return None

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Give the node that gives a value."""
        origin = self.find(name)
        return origin[1] if origin and isinstance(origin[1], onnx.NodeProto) else None

    def readers(self, name: str) -> list[onnx.NodeProto]:
        """Give the nodes of this graph that read a value."""
        return [node for node in self.graph.node if name in node.input]

    def root(self, name: str) -> str | None:
        """Give the tensor that a value is, moved or cast; None where it is computed, or an input."""
        origin = self.find(name)
        while origin is not None:
            scope, made = origin
            if isinstance(made, onnx.TensorProto):
                return str(made.name)
            if made.op_type == "Constant":
                return str(made.output[0])
            if made.op_type not in _MOVES:
                return None
            origin = scope.find(made.input[0])
        return None

    def constant(self, name: str) -> np.ndarray | None:
        """Give the numbers of a value that is a tensor, moved or cast; None where it is computed, or an input."""
        origin = self.find(name) if name else None
        if origin is None:
            return None
        scope, made = origin
        if isinstance(made, onnx.TensorProto):
            return _numbers(made, scope.folder)
        settings = attributes(made)
        if made.op_type == "Constant":
            value = next(iter(settings.values()))
            return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
        if made.op_type not in _MOVES:
            return None
        array_or_none = scope.constant(made.input[0])
        return None if array_or_none is None else _moved(made, settings, array_or_none, scope)

    def __iter__(self) -> Iterator[tuple[Scope, onnx.NodeProto]]:
        """Yield all nodes, those of subgraphs with their own scope."""
        for node in self.graph.node:
            yield self, node
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    yield from Scope(attribute.g, self.folder, self)


def _numbers(tensor: onnx.TensorProto, folder: Path) -> np.ndarray:
    """Give a tensor's numbers; those in a file beside the graph stay there until they are read."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if tensor.data_location != onnx.TensorProto.EXTERNAL or tensor.data_type in _PACKED:
        array: np.ndarray = numpy_helper.to_array(tensor, str(folder))
        return array
    place = {entry.key: entry.value for entry in tensor.external_data}
    return np.memmap(folder / place["location"], kind, "r", int(place.get("offset", 0)), tuple(tensor.dims))


def _moved(node: onnx.NodeProto, settings: dict[str, Any], array: np.ndarray, scope: Scope) -> np.ndarray | None:
    kind = node.op_type
    if kind == "Transpose":
        return array.transpose(settings.get("perm", range(array.ndim)[::-1]))
    if kind == "Cast":
        return array.astype(onnx.helper.tensor_dtype_to_np_dtype(settings["to"]))
    if kind == "Identity":
        return array
    if kind == "Flatten":
        axis = settings.get("axis", 1)
        return array.reshape(int(np.prod(array.shape[:axis])), -1)
    others = scope.constant(node.input[1]) if len(node.input) > 1 else np.asarray(settings.get("axes", ()))
    if others is None:
        return None
    places = tuple(int(size) for size in np.atleast_1d(others))
    if kind == "Reshape":
        return array.reshape([array.shape[place] if size == 0 else size for place, size in enumerate(places)])
    if kind == "Squeeze":
        return array.squeeze(places or None)
    return np.expand_dims(array, places)
