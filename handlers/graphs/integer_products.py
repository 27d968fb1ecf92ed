"""Products of integers in graphs, and whether they come out the same on every processor.

`python -m handlers.graphs.integer_products FOLDER` reports it to users in a sentence, with the exit code 1 if something may overflow;
validation asks the same of every ONNX folder. It is a bound from the weights, not a run. Processors without VNNI (AVX2, and AVX-512 before
Cascade Lake) multiply unsigned with signed bytes by `vpmaddubsw`, which adds two neighbouring products in 16 bits and saturates: full-range
weights then give wrong sums, on those processors and on no other, so a run on this machine proves nothing. Here every two weights that such
a kernel may add are looked at: it takes weights by fours along the axis that is summed over. Activations are taken as 0…255, which is what
quantizing over a range, fixed or found at run time, makes of them. Products of two unsigned factors are widened first.

What a runtime makes of a graph is more than its operators say. onnxruntime fuses products of dequantized factors into integer ones, looks
through operators between that leave values as they are, and makes int8 activations uint8 where they are quantized and dequantized; fp32
weights of Gemm and Conv it quantizes itself, to the whole range, beside quantized activations. Whatever may become such a product counts as
one, and what can't be bounded fails; tests/portability holds these rules against the runtime. Operators that take int8 activations have no
such kernel. MatMulNBits is not among them: the distances of its weights from the zero point and its activations stay small enough at every
accuracy level (tests/portability runs it in each kernel). Free of torch and onnxruntime.
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
import onnx_ir.passes.common as passes

from daemon.contract.jobs.figures import IntegerProducts
from handlers.graphs.weights import rounded_weights
from handlers.graphs.weights.quantized_values import OTHER, SIGNED, UNKNOWN, UNSIGNED, dequantizer, input_of, integers, type_of

LOWEST, HIGHEST = -(1 << 15), (1 << 15) - 1
"""What 16 bits hold."""
ACTIVATION = 255
"""The largest unsigned activation; the smallest is 0."""
_BLOCK = 1 << 22

_FP32 = "fp32"


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
    "MatMulInteger": (_Factors(0, 1, 2, 3),),
    "QLinearMatMul": (_Factors(0, 3, 2, 5),),
    "ConvInteger": (_Factors(0, 1, 2, 3, filters=True),),
    "QLinearConv": (_Factors(0, 3, 2, 5, filters=True),),
    "MatMulIntegerToFloat": (_Factors(0, 1, 4, 5),),
    "DynamicQuantizeMatMul": (_Factors(0, 1, None, 3),),
    "DynamicQuantizeLSTM": (_Factors(0, 1, None, 9), _Factors(0, 2, None, 11)),
    "QGemm": (_Factors(0, 3, 2, 5),),
    "QAttention": (_Factors(0, 1, 6, 7),),
}
"""Operators that multiply integers, of the standard and of onnxruntime."""
_FLOAT_OPERATORS = {"MatMul", "Gemm", "Conv", "FusedMatMul", "FusedGemm", "FusedConv"}
"""Operators that do so where both factors come out of a DequantizeLinear."""
_QUANTIZES_WEIGHTS = {"Gemm", "Conv", "FusedGemm", "FusedConv"}
"""Those whose fp32 weights onnxruntime quantizes itself beside activations that are quantized."""


@dataclass(frozen=True)
class IntegerProduct:
    """One product of integers."""

    name: str
    operator: str
    activations: str
    """"uint8", "int8" or "unknown"."""
    weights: str
    """Likewise, or "fp32" where the runtime quantizes them itself."""
    exact: bool | None
    """Whether it comes out the same everywhere; None where nothing in the graph tells."""
    largest: int | None = None
    """Largest |sum| of two products that a kernel may add in 16 bits; None where it adds none, or where the weights are not constant."""
    overflowing: float = 0.0
    """Share of the fours of weights in which two may overflow."""


@dataclass
class Portability:
    """What was found out about the integer products of a folder's graphs."""

    products: list[IntegerProduct] = field(default_factory=list)

    @property
    def figures(self) -> IntegerProducts | None:
        """For the report; None where no integers are multiplied."""
        if not self.products:
            return None
        kinds = Counter(f"{product.activations} x {product.weights}" for product in self.products)
        return IntegerProducts(
            products=len(self.products),
            kinds=dict(sorted(kinds.items())),
            largest_pair_sum=max((product.largest for product in self.products if product.largest is not None), default=None),
            pair_sum_limit=HIGHEST,
            overflowing_products=sum(product.exact is False for product in self.products),
            unknown_products=sum(product.exact is None for product in self.products),
        )

    @property
    def fault(self) -> str | None:
        """Why the folder may give other results on other processors; None if it can't."""
        wrong = [product for product in self.products if product.exact is False]
        if wrong:
            worst = max(wrong, key=lambda product: product.overflowing)
            return (
                f"{len(wrong)} of {len(self.products)} integer products overflow on processors without VNNI: these add two"
                " neighbouring products of uint8 activations and int8 weights in 16 bits, and in"
                f" {worst.overflowing:.1%} of the groups of weights of {worst.name} ({worst.operator}) the sum can reach"
                f" {worst.largest:,}, but the largest value in 16 bits is {HIGHEST:,}"
            )
        unknown = [product for product in self.products if product.exact is None]
        if unknown:
            return (
                f"the graph does not show whether {len(unknown)} of {len(self.products)} integer products overflow on processors without"
                f" VNNI: the weights of {unknown[0].name} ({unknown[0].operator}) are computed, of unknown type, or rounded by onnxruntime"
            )
        return None

    @property
    def needs(self) -> str:
        """The processor that the folder needs to give the same outputs as in the checks."""
        return "any x86-64 or ARM64 processor" if self.fault is None else "a processor with VNNI, or one that is not x86-64"


def examine(models: Sequence[ir.Model]) -> Portability:
    """Return the integer products of all graphs, in their order. The models' functions are written out in place."""
    for model in models:
        if model.functions:
            passes.InlinePass()(model)
    return Portability([product for model in models for product in _products(model)])


def _products(model: ir.Model) -> Iterator[IntegerProduct]:
    for node in model.graph.all_nodes():
        for factors in _OPERATORS.get(node.op_type, ()):
            activation, weight = input_of(node, factors.activation), input_of(node, factors.weight)
            first = UNSIGNED if factors.activation_zero is None else type_of(activation, input_of(node, factors.activation_zero))
            second = type_of(weight, input_of(node, factors.weight_zero))
            if OTHER not in (first, second):
                yield _product(node, first, second, weight, mixed=(first, second) == (UNSIGNED, SIGNED), filters=factors.filters)
        if node.op_type in _FLOAT_OPERATORS:
            fused = _fused(node)
            if fused is not None:
                yield fused


def _fused(node: ir.Node) -> IntegerProduct | None:
    """Return the integer product that a runtime may make of a product in floats; None where it makes none."""
    activation, weight = (dequantizer(input_of(node, place)) for place in (0, 1))
    filters = node.op_type.endswith("Conv")
    if activation is None:
        return None  # of weights alone: they are dequantized
    first = type_of(input_of(activation, 0), input_of(activation, 2))
    if weight is None:
        constant = input_of(node, 1)
        if node.op_type not in _QUANTIZES_WEIGHTS or constant is None or constant.const_value is None:
            return None
        return IntegerProduct(_name(node), node.op_type, first, _FP32, None)
    second = type_of(input_of(weight, 0), input_of(weight, 2))
    if OTHER in (first, second):
        return None
    source = input_of(weight, 0)
    quantizer = source.producer() if source is not None else None
    computed = quantizer is not None and quantizer.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") and integers(source) is None
    if computed and UNKNOWN not in (first, second):
        return IntegerProduct(_name(node), node.op_type, first, second, True)  # two activations, both uint8 to the kernel
    return _product(node, first, second, input_of(node, 1), mixed=second == SIGNED and first != UNKNOWN, filters=filters)


def _name(node: ir.Node) -> str:
    return node.outputs[0].name or node.name or ""


def _product(node: ir.Node, first: str, second: str, weight: ir.Value | None, *, mixed: bool, filters: bool) -> IntegerProduct:
    """`mixed`: unsigned activations and signed weights, to the kernel."""
    if not mixed:
        return IntegerProduct(_name(node), node.op_type, first, second, None if UNKNOWN in (first, second) else True)
    matrix = integers(weight)
    if matrix is None or matrix.dtype != np.int8 or matrix.ndim < 2:
        return IntegerProduct(_name(node), node.op_type, first, second, None)
    if filters:
        # The order in which a convolution goes through its filters is the runtime's, so any two of a filter count as neighbours.
        largest, overflowing = _any_two(matrix.reshape(len(matrix), -1))
    else:
        rows = matrix if node.attributes.get_int("transB", 0) else np.swapaxes(matrix, -1, -2)
        largest, overflowing = _neighbours(rows.reshape(-1, rows.shape[-1]))
    return IntegerProduct(_name(node), node.op_type, first, second, overflowing == 0, largest, overflowing)


def _neighbours(rows: np.ndarray) -> tuple[int, float]:
    """(largest |sum| of two products, share of fours that overflow) of int8 weights (outputs, inputs), any two of each four."""
    step, largest, over, fours = max(1, _BLOCK // max(1, rows.shape[1])), 0, 0, 0
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.int16)
        if part.shape[1] % 4:
            part = np.pad(part, ((0, 0), (0, -part.shape[1] % 4)))
        for weights, limit in ((np.maximum(part, 0), HIGHEST), (np.maximum(-part, 0), -LOWEST)):
            first, second, third, fourth = (weights[:, place::4] for place in range(4))
            pairs = np.maximum(np.maximum(first, second) + np.maximum(third, fourth), np.maximum(first + second, third + fourth))
            largest = max(largest, ACTIVATION * int(pairs.max(initial=0)))
            over += int((pairs > limit // ACTIVATION).sum())
            fours += pairs.size
    return largest, 2 * over / max(1, fours)


def _any_two(rows: np.ndarray) -> tuple[int, float]:
    """Return the same of filters, whichever two of a filter's weights come together; the share is that of filters."""
    ordered = np.sort(np.pad(rows.astype(np.int32), ((0, 0), (2, 0))), axis=-1)
    highest = np.maximum(ordered[:, -2:], 0).sum(-1) * ACTIVATION
    lowest = np.minimum(ordered[:, :2], 0).sum(-1) * ACTIVATION
    largest = max(int(highest.max(initial=0)), int(-lowest.min(initial=0)))
    return largest, float(((highest > HIGHEST) | (lowest < LOWEST)).mean()) if len(rows) else 0.0


ENDS = "exit codes: 0 right on every processor, 1 something may overflow, 2 it can't be told"


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the folder or graph that the command line names; gives the exit code (`ENDS`)."""
    about = "Check that ONNX models in int8 give the same result on processors without VNNI."
    parser = argparse.ArgumentParser(prog="python -m handlers.graphs.integer_products", description=about, epilog=ENDS)
    parser.add_argument("path", type=Path, help="folder with ONNX graphs, or one graph")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.add_argument("--source", type=Path, help="folder that this one was derived from: compare the weights too, for --json")
    parser.add_argument("--nearest", action="store_true", help="with --source: the weights were rounded to the nearest step")
    options = parser.parse_args(arguments)
    try:
        models = _loaded(options.path)
        weights = _weights(options.path, models, options.source, nearest=options.nearest) if options.source else None
        portability = examine([model for _, model in models])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        products = portability.figures
        answer = {"needs": portability.needs, "integer_products": products.written() if products else None, "fault": portability.fault}
        print(json.dumps({**answer, "weights": weights}))
    elif portability.products:
        print(portability.fault or f"{len(portability.products)} integer products, none overflows 16 bits: right on {portability.needs}")
    else:
        print("no int8 products: nothing can overflow, and nothing else was checked")
    return 1 if portability.fault else 0


def _weights(path: Path, models: list[tuple[str, ir.Model]], source: Path, *, nearest: bool) -> str | None:
    """Return why the weights of a folder are not its source's; None where they are, as far as both have graphs of the same name."""
    if not any((source / name).is_file() for name, _ in models):
        return None
    known = dict(_loaded(source))
    differences = (rounded_weights.difference(model, known[name], nearest=nearest) for name, model in models if name in known)
    return next((difference for difference in differences if difference), None)


def _loaded(path: Path) -> list[tuple[str, ir.Model]]:
    """The graph at a path, or those of a folder, each with its file's name; ValueError with a sentence for the user if there are none."""
    if not path.exists():
        raise ValueError(f"{path} is not there")
    paths = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
    if not paths:
        below = sorted({file.parent.name for file in path.glob("*/*.onnx")})
        there = f": {', '.join(below)}" if below else ""
        raise ValueError(f"{path} holds no ONNX graph; name the folder of one variant{there}")
    models = []
    for file in paths:
        try:
            model = ir.load(file)
        except Exception as error:  # whatever the libraries that read it raise
            words = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{file} can't be read as an ONNX graph: {words}; export or copy it again") from error
        if not len(model.graph):
            raise ValueError(f"{file} holds no operators: it is empty or cut short; export or copy it again")
        models.append((file.name, model))
    return models


if __name__ == "__main__":
    sys.exit(main())
