"""The kernels' arithmetic in numpy: what processors without VNNI make of products of bytes, and what is exact."""

from __future__ import annotations

import numpy as np


def exact(activations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(M, K) × (K, N) in whole numbers."""
    product: np.ndarray = activations.astype(np.int64) @ weights.astype(np.int64)
    return product


def pairwise(activations: np.ndarray, weights: np.ndarray, order: tuple[int, int, int, int] = (0, 1, 2, 3)) -> np.ndarray:
    """The same as `vpmaddubsw` and `vpmaddwd` compute it: uint8 × int8, two products are added in 16 bits, which saturate.

    Of each four weights the kernel takes the places `order` two by two.
    """
    missing = -activations.shape[1] % 4
    left = np.pad(activations.astype(np.int64), ((0, 0), (0, missing))).reshape(len(activations), -1, 4)[:, :, list(order)]
    right = np.pad(weights.astype(np.int64), ((0, missing), (0, 0))).reshape(-1, 4, weights.shape[1])[:, list(order)]
    total = np.zeros((len(activations), weights.shape[1]), np.int64)
    for first in (0, 2):
        pairs = sum(left[:, :, place, None] * right[None, :, place] for place in (first, first + 1))
        total += np.clip(pairs, -(1 << 15), (1 << 15) - 1).sum(axis=1)
    return total


def worst_activations(weights: np.ndarray) -> np.ndarray:
    """For each column of (K, N) two rows of uint8 that bring out its largest sums: 255 where it is positive, and where it is negative."""
    return np.concatenate([np.where(weights.T > 0, 255, 0), np.where(weights.T < 0, 255, 0)]).astype(np.uint8)


def rounded_to_blocks(rows: np.ndarray, block: int) -> np.ndarray:
    """Activations as accuracy level 4 rounds them on x86-64: int8 by blocks of a row, scale = max|x| / 127, back in float64."""
    missing = -rows.shape[1] % block
    blocks = np.pad(rows.astype(np.float32), ((0, 0), (0, missing))).reshape(len(rows), -1, block)
    scales = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(scales > 0, np.rint(blocks / scales), 0)
    return (values.astype(np.float64) * scales).reshape(len(rows), -1)[:, : rows.shape[1]]
