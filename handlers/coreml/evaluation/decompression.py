"""Weights that a package stores in few bits, as the numbers that they stand for.

Called by the evaluator when it opens a program, and by the comparison of weights with the merged model. The numbers are in fp32; the
program says whether they are rounded to half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from handlers.coreml.evaluation.blobs import Blob
from handlers.coreml.evaluation.package import Bound

PREFIX = "constexpr_"
STORED = {"constexpr_blockwise_shift_scale": "data", "constexpr_lut_to_dense": "indices"}
"""Operator → its input that holds the numbers."""
Given = Mapping[str, np.ndarray]


def blockwise(given: Given) -> np.ndarray:
    """(data - offset) × scale, a scale and an offset for each block of numbers along each axis."""
    data, scale = given["data"].astype(np.float32), given["scale"].astype(np.float32)
    # Each axis becomes two, the blocks and what is in them, so that nothing is repeated in memory.
    split = [size for whole, blocks in zip(data.shape, scale.shape, strict=True) for size in (blocks, whole // blocks)]
    wide = [size for blocks in scale.shape for size in (blocks, 1)]
    values = data.reshape(split)
    if "offset" in given:
        values = values - given["offset"].astype(np.float32).reshape(wide)
    return (values * scale.reshape(wide)).reshape(data.shape)


def looked_up(given: Given) -> np.ndarray:
    """The entries of lookup tables, one table for each block of indices along each axis; entries of one number each."""
    indices, tables = given["indices"], given["lut"].astype(np.float32)
    if tables.shape[-1] != 1:
        raise NotImplementedError("tables with vectors")
    blocks, entries = tables.shape[:-2], tables.shape[-2]
    split = [size for whole, count in zip(indices.shape, blocks, strict=True) for size in (count, whole // count)]
    ahead = [2 * place for place in range(len(blocks))]
    behind = [2 * place + 1 for place in range(len(blocks))]
    grouped = indices.reshape(split).transpose(*ahead, *behind).reshape(int(np.prod(blocks)), -1).astype(np.int64)
    values = np.take_along_axis(tables.reshape(-1, entries), grouped, axis=1)
    values = values.reshape([split[place] for place in (*ahead, *behind)])
    return values.transpose(np.argsort([*ahead, *behind])).reshape(indices.shape)


DECOMPRESSED: dict[str, Callable[[Given], np.ndarray]] = {
    "constexpr_blockwise_shift_scale": blockwise, "constexpr_lut_to_dense": looked_up,
}  # fmt: skip
"""Operator → what its numbers stand for."""


def stored_as(bound: Bound, types: Mapping[str, str]) -> str:
    """The type of what an operator decompresses; `types`: those of values by name."""
    return types[bound] if isinstance(bound, str) else bound.dtype if isinstance(bound, Blob) else str(bound.dtype)
