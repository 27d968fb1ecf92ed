"""Reads a Core ML package from disk: what goes in and out, its states, and its operators in order.

Called by the evaluator, by the comparison of weights, and by the stages that look at what they wrote. It reads the messages of the model's
file (mlmodel/format/MIL.proto of coremltools) and its weights itself, and not by the classes that wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handlers.coreml import library
from handlers.coreml.evaluation.blobs import BITS, DTYPES, Blob, Unreadable, unpacked

MAIN = "main"
_NAMES = {
    "BOOL": "bool", "STRING": "string", "FLOAT16": "float16", "FLOAT32": "float32", "FLOAT64": "float64", "INT4": "int4", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT1": "uint1", "UINT2": "uint2", "UINT3": "uint3", "UINT4": "uint4",
    "UINT6": "uint6", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
}  # fmt: skip
_MODEL = "com.apple.CoreML"


@dataclass(frozen=True)
class Type:
    """Type and sizes of a value; None for a size that is free."""

    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of that shape is of this type."""
        return len(shape) == len(self.shape) and all(mine in (None, size) for mine, size in zip(self.shape, shape, strict=True))


Bound = str | Blob | np.ndarray
"""What an operator takes: the name of a value, or the value itself."""


@dataclass(frozen=True)
class Operator:
    """One operator."""

    kind: str
    inputs: Mapping[str, tuple[Bound, ...]]
    outputs: tuple[tuple[str, Type], ...]
    value: Blob | np.ndarray | None = None
    """Of a constant."""


@dataclass(frozen=True)
class Program:
    """What a package computes."""

    path: Path
    inputs: Mapping[str, Type]
    states: Mapping[str, Type]
    outputs: tuple[str, ...]
    operators: tuple[Operator, ...]
    shapes: Mapping[str, tuple[tuple[int, ...], ...]]
    """Input → the shapes that it may have, the smallest first. Inputs whose shapes are listed have the same number of them, and those of
    the same place belong together."""
    specification: int
    """Of the file: 9 is that of iOS 18 and macOS 15."""


def read(path: Path) -> Program:
    """The program of a package. Raises Unreadable."""
    root = path / "Data"
    model = _model(path, root)
    functions = model.mlProgram.functions
    if model.WhichOneof("Type") != "mlProgram" or MAIN not in functions:
        raise Unreadable("it holds no ML program")
    function = functions[MAIN]
    if function.opset not in function.block_specializations:
        raise Unreadable("its program has no operators")
    block = function.block_specializations[function.opset]
    weights = root / _MODEL
    given = {port.name: port.type for port in function.inputs}
    states = {name: _type(kind.stateType.wrappedType) for name, kind in given.items() if kind.WhichOneof("type") == "stateType"}
    return Program(
        path=path, inputs={name: _type(kind) for name, kind in given.items() if name not in states}, states=states,
        outputs=tuple(block.outputs), operators=tuple(_operator(message, weights) for message in block.operations),
        shapes={port.name: _shapes(port.type.multiArrayType) for port in model.description.input},
        specification=int(model.specificationVersion),
    )  # fmt: skip


def _model(path: Path, root: Path) -> Any:
    model = library.proto().Model()
    try:
        manifest = json.loads((path / "Manifest.json").read_bytes())
        entry = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
        model.ParseFromString((root / entry).read_bytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"its files can't be read ({type(error).__name__}: {str(error)[:200]})") from error
    except Exception as error:  # protobuf raises a type of its own for bytes that are no message
        raise Unreadable(f"its model can't be read ({str(error)[:200]})") from error
    return model


def _shapes(kind: Any) -> tuple[tuple[int, ...], ...]:
    if kind.WhichOneof("ShapeFlexibility") == "enumeratedShapes":
        listed = [tuple(int(size) for size in choice.shape) for choice in kind.enumeratedShapes.shapes]
        return tuple(sorted(listed, key=lambda shape: (np.prod(shape), shape)))
    return (tuple(int(size) for size in kind.shape),)


def _type(kind: Any) -> Type:
    if kind.WhichOneof("type") != "tensorType":
        raise Unreadable(f"it holds a value of the kind {kind.WhichOneof('type')}, which is not known here")
    tensor = kind.tensorType
    name = next(
        entry.name for entry in type(tensor).DESCRIPTOR.fields_by_name["dataType"].enum_type.values if entry.number == tensor.dataType
    )
    if name not in _NAMES:
        raise Unreadable(f"it holds a value of the type {name}, which is not known here")
    sizes = tuple(int(axis.constant.size) if axis.WhichOneof("dimension") == "constant" else None for axis in tensor.dimensions)
    return Type(_NAMES[name], sizes)


def _operator(message: Any, weights: Path) -> Operator:
    if message.blocks:
        raise Unreadable(f"it has an operator {message.type} with a program of its own, which is not known here")
    outputs = tuple((port.name, _type(port.type)) for port in message.outputs)
    inputs = {
        name: tuple(_bound(binding, weights) for binding in argument.arguments) for name, argument in message.inputs.items()
    }  # fmt: skip
    value = _value(message.attributes["val"], weights) if message.type == "const" else None
    return Operator(str(message.type), inputs, outputs, value)


def _bound(binding: Any, weights: Path) -> Bound:
    if binding.WhichOneof("binding") == "name":
        return str(binding.name)
    return _value(binding.value, weights)


def _value(value: Any, weights: Path) -> Blob | np.ndarray:
    kind = _type(value.type)
    shape = tuple(size or 0 for size in kind.shape)
    if value.WhichOneof("value") == "blobFileValue":
        stored = str(value.blobFileValue.fileName).removeprefix("@model_path/")
        if kind.dtype == "string" or Path(stored).is_absolute() or ".." in Path(stored).parts:
            raise Unreadable(f"it names a weight file {stored!r}, which is not one of the package")
        return Blob(weights / stored, int(value.blobFileValue.offset), kind.dtype, shape)
    tensor = value.immediateValue.tensor
    field = tensor.WhichOneof("value")
    if field is None:
        return np.zeros(shape, DTYPES.get(kind.dtype, np.str_))
    values = getattr(tensor, field).values
    if field == "bytes":
        return unpacked(np.frombuffer(values, np.uint8), kind.dtype, shape)
    dtype = DTYPES.get(kind.dtype, np.str_ if kind.dtype == "string" else np.int8 if kind.dtype in BITS else None)
    array = np.array(list(values), dtype)
    # One number may stand for all.
    return np.broadcast_to(array.reshape(()), shape) if array.size == 1 else array.reshape(shape)
