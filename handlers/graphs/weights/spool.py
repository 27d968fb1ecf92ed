"""The quantized weights of a large graph, on disk until the graph is written: so that they never lie in memory together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

FROM_BYTES = 4 << 30
"""Bytes of fp32 weights from which on it is worth writing them twice."""
LARGE = 1 << 20
"""Bytes of an array that is."""


class Spool:
    """A file to which arrays are appended; it can go once the graph is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0

    def tensor(self, array: np.ndarray, name: str) -> ir.TensorProtocol:
        """The array as a tensor of a graph, read from the file each time it is asked for. Raises OSError on a full disk."""
        if array.nbytes < LARGE:
            return ir.tensor(array, name=name)
        place, dtype, shape = self._end, array.dtype, array.shape
        with open(self._path, "ab") as stream:
            stream.write(np.ascontiguousarray(array).data)
        self._end += array.nbytes

        def read() -> ir.TensorProtocol:
            return ir.tensor(np.fromfile(self._path, dtype, int(np.prod(shape)), offset=place).reshape(shape), name=name)

        return ir.LazyTensor(read, dtype=ir.DataType.from_numpy(dtype), shape=ir.Shape(shape), name=name)


def spool_for(weight_bytes: int, temporary: Path) -> Spool | None:
    """One in the folder `temporary` for a graph with so many bytes of weights; None where they may lie in memory."""
    return Spool(temporary / "weights") if weight_bytes >= FROM_BYTES else None
