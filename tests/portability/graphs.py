"""Graphs of one product that go wrong wherever sums end at 16 bits, made by the stages' own rewriters, and what is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from handlers.onnx.quantize.int8_static import StaticRewriter
from handlers.onnx.quantize.rewriters.block_quantization import Scheme, dequantize, quantize
from handlers.onnx.quantize.rewriters.int8_rewriter import IntegerRewriter
from handlers.onnx.quantize.rewriters.weight_only_rewriter import WeightOnlyRewriter

INPUTS, OUTPUTS = 258, 96
ROWS = (1, 5, 16)
"""Rows of a call: one takes other code in the runtime than several."""


def hostile_weights() -> np.ndarray:
    """(INPUTS, OUTPUTS) fp32 near their column's largest value, most of one sign: any two of them fill 16 bits when they may."""
    rng = np.random.default_rng(0)
    size = rng.uniform(0.6, 1, (INPUTS, OUTPUTS)) * np.where(rng.random((INPUTS, OUTPUTS)) < 0.9, 1, -1)
    size[:, ::3] *= -1
    size[:, 1::3] = rng.standard_normal((INPUTS, len(range(1, OUTPUTS, 3))))
    weights: np.ndarray = size.astype(np.float32)
    return weights


def activations() -> list[np.ndarray]:
    """Calls of different numbers of rows; most values lie in the upper half of their range."""
    rng = np.random.default_rng(1)
    calls = [np.abs(rng.standard_normal((rows, INPUTS))).astype(np.float32) + np.float32(0.5) for rows in ROWS]
    for call in calls:
        call[:, ::50] *= -1
    return calls


def plain(weights: np.ndarray) -> ir.Model:
    """y = x · weights, in fp32."""
    inputs, outputs = weights.shape
    signature = f"(float[n,{inputs}] x) => (float[n,{outputs}] y)"
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {signature} {{ y = MatMul(x, w) }}')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return ir.serde.deserialize_model(proto)


def dynamic(weights: np.ndarray) -> ir.Model:
    """As onnx-int8 writes it."""
    model = plain(weights)
    IntegerRewriter(model).rewrite()
    return model


def static(weights: np.ndarray, low: float, high: float) -> ir.Model:
    """As onnx-int8-static writes it."""
    model = plain(weights)
    StaticRewriter(model, {"x": (low, high)}).rewrite()
    return model


def blocks(weights: np.ndarray, scheme: Scheme, level: int) -> ir.Model:
    """As onnx-int4 and onnx-int8-weight write it."""
    model = plain(weights)
    WeightOnlyRewriter(model, scheme, level).rewrite()
    return model


def store(model: ir.Model, folder: Path, name: str, calls: list[np.ndarray]) -> None:
    """A graph and its inputs as `answers.py` takes them."""
    folder.mkdir(exist_ok=True)
    ir.save(model, folder / f"{name}.onnx")
    for number, call in enumerate(calls):
        np.savez(folder / f"{name}.{number}.npz", x=call)


def initializer(model: ir.Model, ending: str) -> np.ndarray:
    """The one initializer whose name ends so."""
    (value,) = (value for name, value in model.graph.initializers.items() if name.endswith(ending))
    assert value.const_value is not None
    return value.const_value.numpy()


def right_answer(model: ir.Model, call: np.ndarray, low: float | None = None, high: float | None = None) -> np.ndarray:
    """What the integer graph comes to without an overflow, in float64; the range is the call's own where none is given."""
    weights, scales = (initializer(model, ending).astype(np.float64) for ending in (".int8.columns", ".columns.scale"))
    low = min(0.0, float(call.min())) if low is None else low
    high = max(0.0, float(call.max())) if high is None else high
    scale = np.float32((np.float32(high) - np.float32(low)) / np.float32(255))
    zero = np.clip(np.rint(-np.float32(low) / scale), 0, 255)
    values = np.clip(np.rint(call / scale) + zero, 0, 255)
    answer: np.ndarray = ((values - zero) @ weights) * scale * scales
    return answer


def dequantized(weights: np.ndarray, scheme: Scheme) -> np.ndarray:
    """(inputs, outputs): what the blocks stand for."""
    values: np.ndarray = dequantize(quantize(np.ascontiguousarray(weights.T), scheme)).T.astype(np.float64)
    return values
