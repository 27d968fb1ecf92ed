"""Rewrite rules of our own: what onnxscript's fusions do not know of the graphs that torch's exporter writes.

Used by `fusions`. Each rule is a pattern of nodes, what must be true of it, and what takes its place.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import pattern

RMS_NORM_OPSET = 23
"""From here on the standard has RMSNormalization."""


class _TanhGelu(pattern.RewriteRuleClassBase):
    """GELU's approximation by tanh as torch decomposes it: ½x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))), operands either way round."""

    def pattern(self, op: Any, x: Any) -> Any:
        inner = op.Mul(op.Add(x, op.Mul(op.Pow(x, 3.0), 0.044715)), math.sqrt(2 / math.pi))
        return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))

    def rewrite(self, op: Any, x: Any) -> Any:
        return op.FastGelu(x, _domain="com.microsoft")


class _SpelltOutNorm(pattern.RewriteRuleClassBase):
    """An RMS norm in standard operators, in the form that onnxruntime fuses by itself when it loads a graph."""

    def pattern(self, op: Any, x: Any, scale: Any) -> Any:
        return op.SimplifiedLayerNormalization(x, scale, _allow_other_attributes=True, _outputs=["normed"])

    def rewrite(self, op: Any, x: Any, scale: Any, normed: ir.Value) -> Any:
        node = normed.producer()
        assert node is not None and node.graph is not None
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        if node.graph.opset_imports.get("", 0) >= RMS_NORM_OPSET:
            return op.RMSNormalization(x, scale, axis=-1, epsilon=epsilon)
        square = op.Pow(x, op.Constant(value_float=2.0))
        mean = op.ReduceMean(square, op.Constant(value_ints=[-1]), keepdims=1)
        return op.Mul(op.Div(x, op.Sqrt(op.Add(mean, op.Constant(value_float=epsilon)))), scale)


class _Division(pattern.RewriteRuleClassBase):
    """x · (1 / y) is x / y: a node less, and the form of a norm that onnxruntime fuses by itself."""

    def pattern(self, op: Any, x: Any, y: Any) -> Any:
        return op.Mul(x, op.Reciprocal(y))

    def rewrite(self, op: Any, x: Any, y: Any) -> Any:
        return op.Div(x, y)


class _Unflattened(pattern.RewriteRuleClassBase):
    """A Gemm over flattened rows, whose result gets the batch back, is a product and a sum that never lose it."""

    def pattern(self, op: Any, x: Any, flat: Any, weight: Any, shape: Any) -> Any:
        bias = pattern.Var("bias", can_match_none=True)
        product = op.Gemm(op.Reshape(x, flat), weight, bias, _allow_other_attributes=True, _outputs=["product"])
        return op.Reshape(product, shape, _outputs=["result"])

    def check(self, op: Any, x: Any, weight: Any, product: Any, result: Any, **_: Any) -> Any:
        node = product.producer()
        if node is None or x.shape is None or weight.shape is None or result.shape is None or len(result.shape) != 3 or len(x.shape) < 3:
            return False
        factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        turned = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
        width = math.prod(size for size in x.shape[2:] if isinstance(size, int))
        rows = all(isinstance(size, int) for size in x.shape[2:]) and width == weight.shape[0] and x.shape[:2] == result.shape[:2]
        return rows and factors == [1.0, 1.0] and turned == [0, 0] and result.shape[2] == weight.shape[1]

    def rewrite(self, op: Any, x: ir.Value, weight: ir.Value, bias: ir.Value | None = None, **_: Any) -> Any:
        assert x.shape is not None and weight.shape is not None
        rows = x if len(x.shape) == 3 else op.Reshape(x, op.Constant(value_ints=[0, 0, weight.shape[0]]))
        product = op.MatMul(rows, weight)
        return product if bias is None else op.Add(product, bias)


GELU = pattern.RewriteRuleSet([_TanhGelu.rule()], commute=True)
SPELL_OUT = pattern.RewriteRuleSet([_SpelltOutNorm.rule()])
DIVISION = pattern.RewriteRuleSet([_Division.rule()], commute=True)
UNFLATTEN = pattern.RewriteRuleSet([_Unflattened.rule()])
