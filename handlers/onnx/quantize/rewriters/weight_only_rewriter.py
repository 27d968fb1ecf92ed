"""Weights of a graph in 4 or 8 bits while its activations stay fp32: what onnx-int4 and onnx-int8-weight do to a graph.

Matrix products become onnxruntime's MatMulNBits, embedding tables GatherBlockQuantized. An output layer that is tied to the
embedding shares its values, scales and zero points, which lie in the file once: both operators pack a row's blocks alike, and a
Reshape takes the one's form to the other's. Called by `weight_only` and the stage `onnx-mixed`. Needs a runtime that has these operators.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from handlers.graphs.rewriting import Lookup, Product, Rewriter, array_of, release, shape_of
from handlers.graphs.weights.spool import Spool
from handlers.onnx.quantize.rewriters.block_quantization import Blocks, Scheme, quantize

DOMAIN = "com.microsoft"


class WeightOnlyRewriter(Rewriter):
    """Rewrites one graph in place; `blocks` holds what the weights became, without their bytes."""

    def __init__(self, model: ir.Model, scheme: Scheme, accuracy_level: int, threads: int = 1, spool: Spool | None = None) -> None:
        super().__init__(model, spool)
        self._threads = threads
        self._scheme = scheme
        self._level = accuracy_level
        self._tied: set[ir.Value] = set()
        self._made: dict[str, tuple[ir.Value, ir.Value, ir.Value | None]] = {}

    def scheme_of(self, weight: ir.Value) -> Scheme:
        """How a weight is quantized."""
        return self._scheme

    def quantized(self, weight: ir.Value, array: np.ndarray, scheme: Scheme) -> Blocks:
        """The blocks of a weight, whose values are `array`, (outputs, inputs)."""
        return quantize(array, scheme, self._threads)

    def prepare(self, tied: set[ir.Value]) -> None:
        self._tied = tied
        self.model.graph.opset_imports.setdefault(DOMAIN, 1)

    def _blocks(self, weight: ir.Value, scheme: Scheme, *, turn: bool) -> tuple[str, tuple[ir.Value, ir.Value, ir.Value | None]]:
        """(name, (values, scales, zero points)) of a weight as (outputs, inputs), made once however many nodes read it."""
        stem = f"{weight.name}.int{scheme.bits}{'.turned' if turn else ''}"
        if stem not in self._made:
            made = self.quantized(weight, array_of(weight).T if turn else array_of(weight), scheme)
            release(weight)
            zeros = None if made.zeros is None else self.constant(f"{stem}.zeros", made.zeros)
            self._made[stem] = self.constant(stem, made.values), self.constant(f"{stem}.scales", made.scales), zeros
        return stem, self._made[stem]

    def turn_lookup(self, lookup: Lookup) -> None:
        """Gather quantized rows and bring them back to fp32."""
        node, scheme = lookup.node, self.scheme_of(lookup.table).for_tables
        stem, (values, scales, zeros) = self._blocks(lookup.table, scheme, turn=False)
        name = f"{node.outputs[0].name}.int{scheme.bits}"
        columns = shape_of(lookup.table)[1]
        rows, count, size = shape_of(values)
        flat = self.constant(f"{stem}.shape", np.array([rows, count * size], np.int64))
        table = self.add(node, "Reshape", values, flat, name=f"{name}.table").outputs[0]
        result = self.add(
            node, "GatherBlockQuantized", table, lookup.rows, scales, *([] if zeros is None else [zeros]), name=f"{name}.rows",
            domain=DOMAIN, bits=scheme.bits, block_size=scheme.block_size, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
        if columns % scheme.block_size:  # the last block of a row holds more than the row
            bounds = [
                self.constant(f"{stem}.{what}", np.array([at], np.int64)) for what, at in (("first", 0), ("end", columns), ("axis", -1))
            ]
            result = self.add(node, "Slice", result.outputs[0], *bounds, name=f"{name}.cut")
        self.replace(node, result)

    def turn_product(self, product: Product) -> None:
        """Multiply by the quantized matrix."""
        node = product.node
        scheme = self.scheme_of(product.weight)
        scheme = scheme.for_tables if product.weight in self._tied and product.transposed else scheme
        _, (values, scales, zeros) = self._blocks(product.weight, scheme, turn=not product.transposed)
        outputs, inputs = shape_of(product.weight)[:: 1 if product.transposed else -1]
        name = f"{node.outputs[0].name}.int{scheme.bits}"
        result = self.add(
            node, "MatMulNBits", product.factor, values, scales, *([] if zeros is None else [zeros]), name=name, domain=DOMAIN,
            K=inputs, N=outputs, bits=scheme.bits, block_size=scheme.block_size, accuracy_level=self._level,
        )  # fmt: skip
        if product.bias is not None:
            result = self.add(node, "Add", result.outputs[0], product.bias, name=f"{name}.biased")
        self.replace(node, result)


def round_rows(model: ir.Model) -> None:
    """Round what every product of a graph multiplies to int8, with one scale a row: max|x| / 127.

    That is at least as coarse as any kernel of accuracy level 4: those of x86-64 have a scale for each block, some of ARM64 one for each
    row and a zero point. At level 1 such a graph shows what level 4 costs where its kernel can't be run.
    """
    constants: dict[str, ir.Value] = {}
    rounded: dict[tuple[ir.Value, int], ir.Value] = {}

    def constant(name: str, array: np.ndarray) -> ir.Value:
        if name not in constants:
            value = ir.Value(name=f"round_rows.{name}", const_value=ir.tensor(array), shape=ir.Shape(array.shape))
            model.graph.register_initializer(value)
            constants[name] = value
        return constants[name]

    for node in list(model.graph.all_nodes()):
        value = node.inputs[0] if node.op_type == "MatMulNBits" and node.domain == DOMAIN else None
        if value is None:
            continue
        place = (value, id(node.graph))
        if place not in rounded:
            last, levels = constant("last", np.array([-1], np.int64)), constant("levels", np.array(127, np.float32))
            least = constant("least", np.array(1e-30, np.float32))
            made: list[ir.Node] = []

            def add(operator: str, *inputs: ir.Value, made: list[ir.Node] = made, stem: str = f"{value.name}.{len(rounded)}") -> ir.Value:
                made.append(ir.node(operator, list(inputs), num_outputs=1))
                made[-1].outputs[0].name = f"{stem}.rounded.{len(made)}"
                return made[-1].outputs[0]

            largest = add("ReduceMax", add("Abs", value), last)
            scale = add("Div", add("Max", largest, least), levels)
            rounded[place] = add("Mul", add("Round", add("Div", value, scale)), scale)
            assert node.graph is not None
            node.graph.insert_before(node, made)
        node.replace_input_with(0, rounded[place])


def set_level(model: ir.Model, level: int) -> None:
    """Have all products of a graph computed at an accuracy level."""
    for node in model.graph.all_nodes():
        if node.op_type == "MatMulNBits" and node.domain == DOMAIN:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", level)
