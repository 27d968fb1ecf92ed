"""Matrices in 4 or 8 bits, a scale for each block of a row: the numbers of onnx-int4 and onnx-int8-weight.

Called by `weight_only`. Rounding to nearest, half-quadratic and k-quant values are computed by onnxruntime's own quantizers; here
they are brought to one layout, that of the operators MatMulNBits and GatherBlockQuantized, and back. Works on some rows at a
time, so memory stays near the size of the result. torch is imported for "hqq" alone, whose quantizer is written in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from onnxruntime.capi import _pybind_state as kernels

Algorithm = Literal["rtn", "hqq", "k-quant"]
_STEP_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Scheme:
    """How weights are quantized; `symmetric` acts on "rtn" alone, the others choose zero points themselves."""

    bits: Literal[4, 8]
    block_size: int = 32
    symmetric: bool = True
    algorithm: Algorithm = "rtn"

    @property
    def for_tables(self) -> Scheme:
        """The scheme of tables that are looked up: the operator takes whole zero points only, which "hqq" does not give."""
        return Scheme(self.bits, self.block_size, self.symmetric) if self.algorithm == "hqq" else self


@dataclass(frozen=True)
class Blocks:
    """A matrix (rows, columns) in blocks along its rows."""

    values: np.ndarray
    """uint8 (rows, blocks, bytes of a block); of 4-bit values the first is in the low half of the byte."""
    scales: np.ndarray
    """fp32 (rows, blocks)."""
    zeros: np.ndarray | None
    """Packed like `values`, uint8 (rows, bytes); fp32 (rows, blocks); or None, which means 2^(bits-1)."""
    bits: int
    block_size: int
    columns: int

    @property
    def nbytes(self) -> int:
        """Bytes of values, scales and zero points."""
        return self.values.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)


def quantize(weight: np.ndarray, scheme: Scheme, threads: int = 1) -> Blocks:
    """An fp32 matrix (rows, columns) in blocks along its columns axis."""
    way = _WAYS[scheme.algorithm]
    step = max(1, _STEP_ELEMENTS // weight.shape[1])
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(lambda start: way(weight[start : start + step], scheme), range(0, len(weight), step)))
    zeros = [part[2] for part in parts if part[2] is not None]
    values, scales = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    return Blocks(
        values, scales, np.concatenate(zeros) if zeros else None,
        scheme.bits, scheme.block_size, weight.shape[1],
    )  # fmt: skip


def dequantize(blocks: Blocks) -> np.ndarray:
    """The fp32 matrix (rows, columns) that the operators compute with: (value − zero point) · scale."""
    rows, count = blocks.scales.shape
    values = _unpacked(blocks.values.reshape(rows, -1), blocks.bits).reshape(rows, count, blocks.block_size).astype(np.float32)
    if blocks.zeros is None:
        zeros = np.full((rows, count), 1 << (blocks.bits - 1), np.float32)
    elif blocks.zeros.dtype == np.uint8:
        zeros = _unpacked(blocks.zeros, blocks.bits)[:, :count].astype(np.float32)
    else:
        zeros = blocks.zeros
    wide = (values - zeros[..., None]) * blocks.scales[..., None]
    matrix: np.ndarray = wide.reshape(rows, -1)[:, : blocks.columns]
    return matrix


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    return packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)


def _packed(values: np.ndarray, bits: int) -> np.ndarray:
    """uint8 (rows, n) values below 2^bits as bytes (rows, ceil(n · bits / 8))."""
    if bits == 8:
        return values
    even = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
    packed: np.ndarray = (even[:, ::2] | (even[:, 1::2] << 4)).astype(np.uint8)
    return packed


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _nearest(weight: np.ndarray, scheme: Scheme) -> _Parts:
    """Rounded to nearest, by onnxruntime's formula and to its very bits. Reads a weight by columns, as a graph has it: (columns, rows)."""
    rows, columns = weight.shape
    turned = np.ascontiguousarray(weight.T, np.float32)
    if columns % scheme.block_size:
        turned = np.pad(turned, ((0, -columns % scheme.block_size), (0, 0)))
    if scheme.symmetric:
        return _nearest_symmetric(turned, scheme)
    count, each = len(turned) // scheme.block_size, 8 // scheme.bits
    values = np.zeros((rows, count, scheme.block_size // each), np.uint8)
    scales = np.zeros((rows, count), np.float32)
    zeros = np.zeros((rows, -(-count // each)), np.uint8)
    kernel = kernels.quantize_matmul_4bits if scheme.bits == 4 else kernels.quantize_matmul_8bits
    kernel(values, turned, scales, zeros, scheme.block_size, rows, len(turned), False)
    return values, scales, zeros


def _nearest_symmetric(turned: np.ndarray, scheme: Scheme) -> _Parts:
    """Of (columns, rows): the block's value of largest size becomes −2^(bits-1). onnxruntime's kernel takes several times as long."""
    size, half = scheme.block_size, 1 << (scheme.bits - 1)
    count, rows = len(turned) // size, turned.shape[1]
    packed = np.empty((count, size * scheme.bits // 8, rows), np.uint8)
    scales = np.empty((count, rows), np.float32)
    wide, values = np.empty((size, rows), np.float32), np.empty((size, rows), np.uint8)
    for number in range(count):
        block, scale = turned[number * size : (number + 1) * size], scales[number]
        highest, lowest = block.max(0), block.min(0)
        np.divide(np.where(highest > -lowest, highest, lowest), np.float32(-half), out=scale)
        with np.errstate(divide="ignore", over="ignore"):
            factors = np.float32(1) / scale
        factors[~np.isfinite(factors)] = 0  # nothing but zeros, or values next to it
        np.multiply(block, factors, out=wide)
        np.add(wide, np.float32(half + 0.5), out=wide)  # the cast cuts what is behind the point
        np.minimum(wide, np.float32(2 * half - 1), out=wide)
        np.copyto(values, wide, casting="unsafe")
        if scheme.bits == 8:
            packed[number] = values
        else:
            np.left_shift(values[1::2], 4, out=packed[number])
            np.bitwise_or(packed[number], values[0::2], out=packed[number])
    return np.ascontiguousarray(packed.transpose(2, 0, 1)), np.ascontiguousarray(scales.T), None


def _k_quant(weight: np.ndarray, scheme: Scheme) -> _Parts:
    """k-quant's values, block by block where they are nearer than those of rounding: it errs on blocks of one repeated value."""
    from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor_k_quant_cpu

    rows, size = len(weight), scheme.block_size
    padded = np.pad(np.ascontiguousarray(weight, np.float32), ((0, 0), (0, -weight.shape[1] % size)))
    with np.errstate(all="ignore"):  # such a block divides by zero on the way
        values, scales, zeros = quant_tensor_k_quant_cpu(padded, scheme.bits, size)
    count = padded.shape[1] // size
    values, scales, zeros = values.reshape(rows, count, size), scales.reshape(rows, count), zeros.reshape(rows, count)
    plain = _nearest(weight, Scheme(scheme.bits, size, symmetric=False))
    plain_values, plain_zeros = (_unpacked(part.reshape(rows, -1), scheme.bits) for part in (plain[0], plain[2]) if part is not None)
    plain_values, plain_zeros = plain_values.reshape(rows, count, size), plain_zeros[:, :count]
    wanted = padded.reshape(rows, count, size)
    errors = [
        np.square((ints - points[..., None].astype(np.float32)) * factors[..., None] - wanted).sum(-1)
        for ints, points, factors in ((values, zeros, scales), (plain_values, plain_zeros, plain[1]))
    ]
    nearer = errors[0] < errors[1]
    chosen = np.where(nearer[..., None], values, plain_values).astype(np.uint8)
    points = np.where(nearer, zeros, plain_zeros).astype(np.uint8)
    packed = _packed(chosen.reshape(rows, -1), scheme.bits)
    return packed.reshape(rows, count, -1), np.where(nearer, scales, plain[1]).astype(np.float32), _packed(points, scheme.bits)


def _half_quadratic(weight: np.ndarray, scheme: Scheme) -> _Parts:
    import torch

    logging.getLogger().addHandler(logging.NullHandler())  # else the import would make itself the root logger's configuration
    from onnxruntime.quantization.matmul_nbits_quantizer import HQQWeightOnlyQuantConfig, HQQWeightOnlyQuantizer

    rows, size = len(weight), scheme.block_size
    quantizer: Any = HQQWeightOnlyQuantizer(HQQWeightOnlyQuantConfig(block_size=size, bits=scheme.bits))
    values, scales, zeros = quantizer.quantize_internal(
        torch.from_numpy(np.ascontiguousarray(weight, np.float32)), bits=scheme.bits, group_size=size
    )
    packed = _packed(values.numpy().astype(np.uint8), scheme.bits)
    count = scales.shape[1]
    return packed.reshape(rows, count, -1), scales.float().numpy().copy(), zeros.float().numpy().copy()


_WAYS: dict[str, Callable[[np.ndarray, Scheme], _Parts]] = {"rtn": _nearest, "k-quant": _k_quant, "hqq": _half_quadratic}
