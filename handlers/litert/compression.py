"""Smaller forms of LiteRT's models: weights in 8 or 4 bits by ai-edge-quantizer, which LiteRT multiplies without unpacking them first.

Called by the stages. Runs inside the toolchain. Weights alone are rounded here; activations are rounded to 8 bits by the runtime, a row
at a time, so that no texts are needed to find their ranges.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_PRODUCT, _TABLE = "FULLY_CONNECTED", "EMBEDDING_LOOKUP"
FEW = 32
"""Rows below which a matrix is a classifier's head, which stays in 8 bits: there is next to nothing to save."""


@dataclass(frozen=True)
class Product:
    """An operator with a matrix of weights."""

    scope: str
    """By which the quantizer's recipes find it: the names of its outputs."""
    buffer: int
    """Where its weights lie in the file; signatures share them."""
    rows: int
    width: int


def int8(source: Path, target: Path) -> None:
    """Matrices and tables in 8 bits, a scale a row."""
    _quantize(source, target, _eight_bits())


def int4(source: Path, target: Path, block: int, head: int | None) -> Counter[int]:
    """Matrices in 4 bits, a scale a block of weights; tables and matrices of `head` rows in 8 bits, a scale a row.

    A matrix whose rows are no multiple of `block` gets smaller blocks, down to 32, or else a scale a row. Gives size of blocks → matrices;
    0 stands for whole rows.
    """
    from ai_edge_quantizer import algorithm_manager, qtyping, recipe

    rules = _eight_bits()
    blocks: dict[int, int] = {}
    for product in _products(source):
        if product.rows == head or product.rows < FEW:
            continue
        size = next((size for size in (block, 128, 64, 32) if size <= block and product.width % size == 0), 0)
        granularity = qtyping.QuantGranularity(f"BLOCKWISE_{size}" if size else "CHANNELWISE")
        scope = f"^{re.escape(product.scope)}$"
        # It cuts off the few largest weights where that lets the others be more exact.
        rules += recipe.dynamic_wi4c_afp32(
            regex=scope, operation_name=qtyping.TFLOperationName(_PRODUCT), granularity=granularity,
            algorithm_key=algorithm_manager.AlgorithmName.OCTAV,
        )  # fmt: skip
        blocks[product.buffer] = size
    _quantize(source, target, rules)
    return Counter(blocks.values())


def weights(path: Path) -> dict[str, int]:
    """Type → weights of more than one dimension that are stored so, those that signatures share counted once."""
    model, schema = _read(path)
    kinds = {value: name for name, value in vars(schema.TensorType).items() if isinstance(value, int)}
    stored = {
        int(tensor.buffer): (kinds[tensor.type].lower(), int(np.prod(tensor.shape)))
        for graph in model.subgraphs for tensor in graph.tensors if _stored(model, tensor)
    }  # fmt: skip
    counts: Counter[str] = Counter()
    for kind, count in stored.values():
        counts[kind] += count
    return dict(counts)


def _eight_bits() -> list[Any]:
    """The rules for matrices and tables. Other products with a constant factor are left out: LiteRT takes it on one side alone."""
    from ai_edge_quantizer import qtyping, recipe

    return [rule for kind in (_PRODUCT, _TABLE) for rule in recipe.dynamic_wi8c_afp32(operation_name=qtyping.TFLOperationName(kind))]


def _quantize(source: Path, target: Path, rules: Any) -> None:
    from ai_edge_quantizer import quantizer

    quantizer.Quantizer(str(source), rules).quantize().export_model(str(target))


def _products(path: Path) -> Iterator[Product]:
    model, schema = _read(path)
    kinds = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    for graph in model.subgraphs:
        for operator in graph.operators:
            kind = kinds[model.operatorCodes[operator.opcodeIndex].builtinCode]
            factor = graph.tensors[operator.inputs[1]] if kind == _PRODUCT else None
            if factor is not None and _stored(model, factor):
                names = [graph.tensors[place].name.decode() for place in operator.outputs]
                rows, width = (int(size) for size in factor.shape)
                yield Product("".join(f"{name};" for name in names), int(factor.buffer), rows, width)


def _stored(model: Any, tensor: Any) -> bool:
    """Whether the tensor is a matrix or more whose values lie in the file."""
    data = model.buffers[tensor.buffer].data
    return tensor.shape is not None and len(tensor.shape) > 1 and data is not None and len(data) > 0


def _read(path: Path) -> tuple[Any, Any]:
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.tools import flatbuffer_utils

    return flatbuffer_utils.read_model(str(path)), schema
