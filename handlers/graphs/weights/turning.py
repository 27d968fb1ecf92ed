"""Transposes large matrices block by block. Free of torch and onnxruntime."""

from __future__ import annotations

import numpy as np

BLOCK = (16, 1024)
"""Rows and columns that are transposed at a time: a cache line of fp32, and as many lines as a first-level cache holds."""


def turned(matrix: np.ndarray) -> np.ndarray:
    """The transposed matrix in fp32, contiguous; block by block, since a stride of a whole row misses the cache with each element."""
    rows, columns = matrix.shape
    transposed = np.empty((columns, rows), np.float32)
    for row in range(0, rows, BLOCK[0]):
        for column in range(0, columns, BLOCK[1]):
            block = matrix[row : row + BLOCK[0], column : column + BLOCK[1]]
            transposed[column : column + BLOCK[1], row : row + BLOCK[0]] = block.astype(np.float32, copy=False).T
    return transposed
