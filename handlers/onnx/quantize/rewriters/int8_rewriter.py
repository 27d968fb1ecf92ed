"""Weights of a graph in int8, in standard ONNX operators: what the onnx-int8 stage does to a graph.

Matrix products become DynamicQuantizeLinear → MatMulInteger → two scales, as onnxruntime's `quantize_dynamic` writes
them: symmetric int8 weights with one scale an output column, uint8 activations whose range is taken at run time. The weights
are scaled so that no kernel can overflow (`quantize_matrix`): without that the answers depend on the processor. Beyond that tool it
takes Gemm without rewriting it first, stores embedding tables in int8 with one scale a row, and lets an output layer that is tied to
the embedding share its table. Weights are turned one at a time, so memory stays near the size of the result. Imports neither
torch nor onnxruntime.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.graphs.rewriting import Lookup, Product, Rewriter, array_of, release
from handlers.graphs.weights.spool import Spool

_BLOCK = 1 << 18
"""Elements turned at once: what stays in a processor's cache."""
OPERATION = "quantize the ONNX graph to int8"
LEVELS = 127
"""Steps from zero to a channel's largest value."""


@dataclass(frozen=True)
class IntegerWeight:
    """A matrix as int8 `values` in its stored layout and fp32 `scales`, one for each row or column of that layout."""

    stem: str
    """What the names of its parts begin with."""
    values: ir.Value
    scales: np.ndarray


def quantize_matrix(weight: np.ndarray, channel: int, *, multiplied: bool = True, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 of an fp32 matrix, one scale for each index of axis `channel`: (int8 matrix, fp32 scales).

    value = round(w / scale), half to even; a channel of zeros, or of numbers almost as small, has scale 1. scale = max|w| / 127, and for
    a matrix that is `multiplied` at least p / 127, p the largest sum of two weights of one sign among four that follow each other.
    Processors without VNNI add the products of two such weights with uint8 activations in 16 bits, where 255 × 128 is the most that there
    is room for: rounded, two weights come to 128 at most. On trained models that costs a few per cent more error than the whole range.
    """
    values, scales = np.empty(weight.shape, np.int8), np.empty(weight.shape[channel], np.float32)
    step = max(1, _BLOCK // weight.shape[1 - channel])

    def turn(start: int) -> None:
        part = (slice(None),) * channel + (slice(start, start + step),)
        block = np.ascontiguousarray(weight[part] if channel else weight[part].T)
        scales[start : start + step] = block_scales = _scales(block, multiplied=multiplied)
        rounded = block / block_scales
        np.rint(rounded, out=rounded)
        np.copyto(values[part], rounded if channel else rounded.T, casting="unsafe")

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(turn, range(0, len(scales), step)):
            pass
    return values, scales


def _scales(block: np.ndarray, *, multiplied: bool) -> np.ndarray:
    """Of the columns of a matrix."""
    extent = np.maximum(block.max(axis=0), -block.min(axis=0)).astype(np.float32)
    scales = extent / np.float32(LEVELS)
    if multiplied:
        scales = np.maximum(scales, _largest_pairs(block) / np.float32(LEVELS / 2))
    if not np.isfinite(scales).all():
        raise ValueError("it holds values that are not finite")
    return np.where(scales >= np.finfo(np.float32).tiny, scales, np.float32(1))


def _largest_pairs(block: np.ndarray) -> np.ndarray:
    """For each column: half the largest |a + b| of two weights among four that follow each other.

    Half of it is finite for all that fp32 holds. Kernels take weights by fours and add them by twos; which of the four come together is
    theirs to choose. Of two weights of different signs the sum is no more than the larger one, which counts anyway.
    """
    halves = np.pad(block, ((0, -len(block) % 4), (0, 0))) * np.float32(0.5)
    first, second, third, fourth = (halves[place::4] for place in range(4))
    sums = first + second, third + fourth
    largest = np.zeros(block.shape[1], np.float32)
    for better, sign in ((np.maximum, 1), (np.minimum, -1)):
        most = better(first, second)
        most += better(third, fourth)
        for other in sums:
            better(most, other, out=most)
        np.maximum(largest, sign * better.reduce(most, axis=0), out=largest)
    return largest


class Int8Rewriter(Rewriter):
    """Tables and weights in int8; what becomes of a product is up to those that inherit."""

    def __init__(self, model: ir.Model, threads: int = 1, spool: Spool | None = None) -> None:
        super().__init__(model, spool)
        self._threads = threads
        self._weights: dict[str, IntegerWeight] = {}
        self._tied: set[ir.Value] = set()

    def prepare(self, tied: set[ir.Value]) -> None:
        self._tied = tied

    def integer(self, weight: ir.Value, channel: int, *, multiplied: bool = True) -> IntegerWeight:
        """The int8 form of a weight, made once however many nodes read it; `multiplied`: one of them is a product."""
        stem = f"{weight.name}.int8.{'rows' if channel == 0 else 'columns'}"
        if stem not in self._weights:
            try:
                values, scales = quantize_matrix(array_of(weight), channel, multiplied=multiplied, threads=self._threads)
            except ValueError as error:
                remedy = "leave the int8 variants out, or train the checkpoint again: products with such a weight have no meaning"
                raise Permanent(
                    FaultCode.NOT_FINITE, OPERATION, f"the weight {weight.name} can't be rounded to int8: {error}", remedy
                ) from error
            release(weight)
            self._weights[stem] = IntegerWeight(stem, self.constant(stem, values), scales)
        return self._weights[stem]

    def turn_lookup(self, lookup: Lookup) -> None:
        """Gather int8 rows and their scales, and multiply."""
        node, table = lookup.node, lookup.table
        integer = self.integer(table, 0, multiplied=table in self._tied)
        scales = self.constant(f"{integer.stem}.table_scale", integer.scales[:, None])
        stem = f"{node.outputs[0].name}.int8"
        rows = self.add(node, "Gather", integer.values, lookup.rows, name=f"{stem}.rows", axis=0)
        wide = self.add(node, "Cast", rows.outputs[0], name=f"{stem}.cast", to=int(ir.DataType.FLOAT))
        scale = self.add(node, "Gather", scales, lookup.rows, name=f"{stem}.scale", axis=0)
        self.replace(node, self.add(node, "Mul", wide.outputs[0], scale.outputs[0], name=f"{stem}.scaled"))


class IntegerRewriter(Int8Rewriter):
    """Products over integers, with ranges of activations taken at run time."""

    def __init__(self, model: ir.Model, threads: int = 1, spool: Spool | None = None) -> None:
        super().__init__(model, threads, spool)
        self._activations: dict[tuple[ir.Value, int], tuple[ir.Value, ir.Value, ir.Value]] = {}

    def _activation(self, value: ir.Value, before: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
        """(uint8 values, scale, zero point) of an activation, computed once in a graph however many products read it."""
        place = (value, id(before.graph))
        if place not in self._activations:
            name = f"{value.name}.uint8" if before.graph is self.model.graph else f"{before.outputs[0].name}.factor.uint8"
            node = self.add(before, "DynamicQuantizeLinear", value, name=name, outputs=3)
            self._activations[place] = (node.outputs[0], node.outputs[1], node.outputs[2])
        return self._activations[place]

    def turn_product(self, product: Product) -> None:
        """Multiply in integers, then bring the result back by the product of both scales."""
        node, channel = product.node, 0 if product.transposed else 1
        integer = self.integer(product.weight, channel)
        values, scale, zero = self._activation(product.factor, node)
        stem = f"{node.outputs[0].name}.int8"
        matrix = integer.values
        if product.transposed:
            matrix = self.add(node, "Transpose", matrix, name=f"{stem}.transposed", perm=[1, 0]).outputs[0]
        zeros = self.constant(f"{integer.stem}.zero_point", np.zeros(len(integer.scales), np.int8))
        column_scales = self.constant(f"{integer.stem}.scale", integer.scales)
        total = self.add(node, "MatMulInteger", values, matrix, zero, zeros, name=f"{stem}.sum")
        wide = self.add(node, "Cast", total.outputs[0], name=f"{stem}.cast", to=int(ir.DataType.FLOAT))
        scales = self.add(node, "Mul", scale, column_scales, name=f"{stem}.scales")
        result = self.add(node, "Mul", wide.outputs[0], scales.outputs[0], name=f"{stem}.scaled")
        if product.bias is not None:
            result = self.add(node, "Add", result.outputs[0], product.bias, name=f"{stem}.biased")
        self.replace(node, result)
