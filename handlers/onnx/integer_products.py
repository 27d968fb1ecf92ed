"""Products of integers in graphs, and whether they come out the same on every processor: `python -m handlers.onnx.integer_products FOLDER`.

Called by validation for every ONNX folder, and by users, who get a sentence and the exit code 1 where something may overflow. It is a
bound from the weights, not a run. Processors without VNNI (AVX2, and AVX-512 before Cascade Lake) multiply unsigned with signed
bytes by `vpmaddubsw`, which adds two neighbouring products in 16 bits and saturates: full-range weights then give wrong sums, on those
processors and on no other, so that a run on the box at hand proves nothing. Here every two weights that such a kernel may add are looked
at. Activations are taken as 0…255, which is what quantizing over a range, fixed or found at run time, makes of them. Products of two
unsigned factors are widened first, and two signed ones have no such kernel: both are exact everywhere. Free of torch and onnxruntime.

MatMulNBits is not among them: onnxruntime multiplies the distance of its weights from their zero point, of 8 bits as magnitude
and sign, by activations of -127…127, so that two products stay below 2 × 127 × 128 (tests/portability runs it in each kernel).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

LOWEST, HIGHEST = -(1 << 15), (1 << 15) - 1
"""What 16 bits hold."""
ACTIVATION = 255
"""The largest unsigned activation; the smallest is 0."""
_BLOCK = 1 << 22

_SIGNED, _UNSIGNED, _OTHER, _UNKNOWN = "int8", "uint8", "other", "unknown"
_TYPES = {ir.DataType.INT8: _SIGNED, ir.DataType.UINT8: _UNSIGNED}


@dataclass(frozen=True)
class _Factors:
    """Where an operator has its factors and their zero points, whose types are theirs."""

    activation: int
    weight: int
    activation_zero: int | None
    weight_zero: int | None
    filters: bool = False
    """The weight is a convolution's: every axis but the first is summed over."""


_OPERATORS = {
    "MatMulInteger": _Factors(0, 1, 2, 3),
    "QLinearMatMul": _Factors(0, 3, 2, 5),
    "ConvInteger": _Factors(0, 1, 2, 3, filters=True),
    "QLinearConv": _Factors(0, 3, 2, 5, filters=True),
    "MatMulIntegerToFloat": _Factors(0, 1, 4, 5),
    "DynamicQuantizeMatMul": _Factors(0, 1, None, 3),
    "QGemm": _Factors(0, 3, 2, 5),
    "QAttention": _Factors(0, 1, 6, 7),
}
"""Operators that multiply integers, of the standard and of onnxruntime."""
_FLOAT_OPERATORS = {"MatMul", "Gemm", "Conv"}
"""Operators that do so where both factors come out of a DequantizeLinear: runtimes fuse them."""
_MOVES = {"Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze"}
"""Operators that leave elements as they are."""


@dataclass(frozen=True)
class IntegerProduct:
    """One product of integers."""

    name: str
    operator: str
    activations: str
    """"uint8", "int8" or "unknown"."""
    weights: str
    """Likewise."""
    largest: int | None
    """Largest |sum| of two products that a kernel may add in 16 bits; None where it adds none, or where the weights are not constant."""
    overflowing: float = 0.0
    """Share of the fours of weights in which two may overflow."""

    @property
    def exact(self) -> bool | None:
        """Whether it comes out the same everywhere; None where nothing in the graph tells."""
        if _UNKNOWN in (self.activations, self.weights):
            return None
        if (self.activations, self.weights) != (_UNSIGNED, _SIGNED):
            return True
        return None if self.largest is None else self.overflowing == 0


@dataclass
class Portability:
    """What was found out about the integer products of a folder's graphs."""

    products: list[IntegerProduct] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, object] | None:
        """For the report; None where no integers are multiplied."""
        if not self.products:
            return None
        kinds = Counter(f"{one.activations} x {one.weights}" for one in self.products)
        return {
            "products": len(self.products),
            "kinds": dict(sorted(kinds.items())),
            "largest_pair_sum": max((one.largest for one in self.products if one.largest is not None), default=None),
            "pair_sum_limit": HIGHEST,
            "overflowing_products": sum(one.exact is False for one in self.products),
            "unknown_products": sum(one.exact is None for one in self.products),
        }

    @property
    def fault(self) -> str | None:
        """Why the folder can't be vouched for on other processors; None where it can."""
        wrong = [one for one in self.products if one.exact is False]
        if wrong:
            worst = max(wrong, key=lambda one: one.overflowing)
            return (
                f"{len(wrong)} of {len(self.products)} integer products overflow on processors without VNNI: there two neighbouring"
                f" products of uint8 activations and int8 weights are added in 16 bits, and in {worst.overflowing:.1%} of the places of"
                f" {worst.name} ({worst.operator}) they come to more (up to {worst.largest:,} of {HIGHEST:,})"
            )
        unknown = [one for one in self.products if one.exact is None]
        if unknown:
            return (
                f"nothing in the graph tells whether {len(unknown)} of {len(self.products)} integer products overflow on processors without"
                f" VNNI: {unknown[0].name} ({unknown[0].operator}) has weights that are computed, or of no known type"
            )
        return None

    @property
    def needs(self) -> str:
        """What processor the folder needs to give the answers that were checked."""
        return "any x86-64 or ARM64 processor" if self.fault is None else "a processor with VNNI, or one that is not x86-64"


def examine(models: Sequence[ir.Model]) -> Portability:
    """The integer products of all graphs, in their order."""
    return Portability([product for model in models for product in _products(model)])


def _products(model: ir.Model) -> Iterator[IntegerProduct]:
    for node in model.graph.all_nodes():
        factors = _OPERATORS.get(node.op_type)
        if factors is not None:
            activation, weight = _input(node, factors.activation), _input(node, factors.weight)
            first = _UNSIGNED if factors.activation_zero is None else _type(activation, _input(node, factors.activation_zero))
            second = _type(weight, _input(node, factors.weight_zero))
        elif node.op_type in _FLOAT_OPERATORS and node.domain == "":
            factors = _Factors(0, 1, None, None, filters=node.op_type == "Conv")
            sources = [_dequantizer(_input(node, place)) for place in (0, 1)]
            if sources[0] is None or sources[1] is None:
                continue
            first, second = (_type(_input(one, 0), _input(one, 2)) for one in sources if one is not None)
            weight = _input(node, 1)
        else:
            continue
        if _OTHER not in (first, second):
            yield _product(node, first, second, weight, filters=factors.filters)


def _product(node: ir.Node, first: str, second: str, weight: ir.Value | None, *, filters: bool) -> IntegerProduct:
    name = node.outputs[0].name or node.name or ""
    matrix = _constant(weight) if (first, second) == (_UNSIGNED, _SIGNED) else None
    if matrix is None:
        return IntegerProduct(name, node.op_type, first, second, None)
    if filters:
        # The order in which a convolution goes through its filters is the runtime's, so any two of a filter count as neighbours.
        return IntegerProduct(name, node.op_type, first, second, *_any_two(matrix.reshape(len(matrix), -1)))
    rows = matrix if node.attributes.get_int("transB", 0) else np.swapaxes(matrix, -1, -2)
    return IntegerProduct(name, node.op_type, first, second, *_neighbours(rows.reshape(-1, rows.shape[-1])))


def _neighbours(rows: np.ndarray) -> tuple[int, float]:
    """(largest |sum| of two products, share of fours that overflow) of int8 weights (outputs, inputs), any two of each four."""
    step, largest, over, fours = max(1, _BLOCK // max(1, rows.shape[1])), 0, 0, 0
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.int16)
        groups = np.pad(part, ((0, 0), (0, -part.shape[1] % 4))).reshape(len(part), -1, 4)
        highest = np.sort(np.maximum(groups, 0), axis=-1)[..., 2:].sum(-1, dtype=np.int32) * ACTIVATION
        lowest = np.sort(np.minimum(groups, 0), axis=-1)[..., :2].sum(-1, dtype=np.int32) * ACTIVATION
        largest = max(largest, int(highest.max(initial=0)), int(-lowest.min(initial=0)))
        over += int(((highest > HIGHEST) | (lowest < LOWEST)).sum())
        fours += highest.size
    return largest, over / max(1, fours)


def _any_two(rows: np.ndarray) -> tuple[int, float]:
    """The same of filters, whichever two of a filter's weights come together; the share is that of filters."""
    ordered = np.sort(np.pad(rows.astype(np.int32), ((0, 0), (2, 0))), axis=-1)
    highest = np.maximum(ordered[:, -2:], 0).sum(-1) * ACTIVATION
    lowest = np.minimum(ordered[:, :2], 0).sum(-1) * ACTIVATION
    largest = max(int(highest.max(initial=0)), int(-lowest.min(initial=0)))
    return largest, float(((highest > HIGHEST) | (lowest < LOWEST)).mean()) if len(rows) else 0.0


def _input(node: ir.Node, place: int | None) -> ir.Value | None:
    return node.inputs[place] if place is not None and place < len(node.inputs) else None


def _type(value: ir.Value | None, zero: ir.Value | None) -> str:
    """Of a quantized value: its own type where the graph says it, else that of its zero point, which is the same."""
    for one in (value, zero):
        if one is None:
            continue
        dtype = one.const_value.dtype if one.const_value is not None else one.dtype
        if dtype is not None:
            return _TYPES.get(dtype, _OTHER)
        producer = one.producer()
        if producer is None:
            continue
        if producer.op_type == "DynamicQuantizeLinear":
            return _UNSIGNED
        if producer.op_type == "QuantizeLinear":
            stated = ir.DataType(producer.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8)
            return _type(None, _input(producer, 2)) if _input(producer, 2) is not None else _TYPES.get(stated, _OTHER)
        if producer.op_type in _MOVES:
            return _type(producer.inputs[0], None)
    return _UNKNOWN


def _dequantizer(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear that a value comes from, its elements in whatever order; None where it comes from anything else."""
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type in _MOVES:
        return _dequantizer(producer.inputs[0])
    return producer if producer is not None and producer.op_type == "DequantizeLinear" else None


def _constant(value: ir.Value | None) -> np.ndarray | None:
    """The integers of a weight, seen through a DequantizeLinear and what moves elements; None where they are computed."""
    if value is None or value.const_value is not None:
        return None if value is None or value.const_value is None else value.const_value.numpy()
    producer = value.producer()
    if producer is None or producer.op_type not in ("DequantizeLinear", "Transpose", "Identity"):
        return None
    before = _constant(producer.inputs[0])
    if before is None or producer.op_type != "Transpose":
        return before
    return before.transpose(producer.attributes.get_ints("perm", list(reversed(range(before.ndim)))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the folder that the command line names: 0 when its sums are exact everywhere, 1 when not, 2 when there is no graph."""
    parser = argparse.ArgumentParser(prog="python -m handlers.onnx.integer_products", description="Do integer products overflow elsewhere?")
    parser.add_argument("folder", type=Path, help="folder with ONNX graphs")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    options = parser.parse_args(arguments)
    paths = sorted(options.folder.glob("*.onnx"))
    if not paths:
        print(f"{options.folder} holds no ONNX graph; name the folder of one variant", file=sys.stderr)
        return 2
    found = examine([ir.load(path) for path in paths])
    if options.json:
        print(json.dumps({"needs": found.needs, "integer_products": found.figures, "fault": found.fault}))
    else:
        print(found.fault or f"{len(found.products)} integer products, none overflows 16 bits: right on {found.needs}")
    return 1 if found.fault else 0


if __name__ == "__main__":
    sys.exit(main())
