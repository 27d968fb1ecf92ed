"""What of a graph the runtime of web pages can't run, in operators that it can: onnxruntime's lookup of quantized rows.

Called by `layout`. transformers.js 4 loads onnxruntime-web's build for WebGPU ("asyncify"), and that has no GatherBlockQuantized for
processors, while its other builds have. The rows are taken apart by the standard's operators instead, from the same stored weights, to the
same values: nibbles are whole numbers that fp32 holds exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LOOKUP = "GatherBlockQuantized"


def replace_lookups(model: onnx.ModelProto) -> int:
    """Replace them all; gives their number. One of a form that is not ours stays."""
    known = {initializer.name: initializer for graph in _graphs(model.graph) for initializer in graph.initializer}
    return sum(_replace(graph, known) for graph in list(_graphs(model.graph)))


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for branch in (attribute.g, *attribute.graphs):
                if branch.node:
                    yield from _graphs(branch)


def _replace(graph: onnx.GraphProto, known: dict[str, TensorProto]) -> int:
    nodes, count = list(graph.node), 0
    made: list[onnx.NodeProto] = []
    for node in nodes:
        scales = known.get(node.input[2]) if node.op_type == LOOKUP else None
        if scales is None or scales.data_type != TensorProto.FLOAT or _number(node, "gather_axis", 0) != 0:
            made.append(node)
        else:
            made += _Lookup(graph, node, scales.dims[1]).nodes
            count += 1
    if count:
        del graph.node[:]
        graph.node.extend(made)
    return count


def _number(node: onnx.NodeProto, name: str, usual: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), usual)


class _Lookup:
    """The nodes that stand for one lookup, and their constants, which the graph gets."""

    def __init__(self, graph: onnx.GraphProto, node: onnx.NodeProto, blocks: int) -> None:
        self._graph, self._stem, self.nodes = graph, node.name or node.output[0], list[onnx.NodeProto]()
        table, rows, scales, *zeros = node.input
        bits, block = _number(node, "bits", 4), _number(node, "block_size", 128)
        shape = self._add("Shape", rows)
        values = self._numbers(self._add("Gather", table, rows, axis=0), shape, bits)
        values = self._as(values, shape, [blocks, block])
        if zeros:
            zero = self._numbers(self._add("Gather", zeros[0], rows, axis=0), shape, bits)
            parts = [self._constant(name, [at]) for name, at in (("first", 0), ("end", blocks), ("axis", -1))]
            zero = self._as(self._add("Slice", zero, *parts), shape, [blocks, 1])
        else:
            zero = self._constant("zero", 1 << (bits - 1), np.float32)
        scale = self._as(self._add("Gather", scales, rows, axis=0), shape, [blocks, 1])
        made = self._add("Mul", self._add("Sub", values, zero), scale)
        self._as(made, shape, [blocks * block], name=node.output[0])

    def _numbers(self, rows: str, shape: str, bits: int) -> str:
        """Stored bytes as numbers in fp32, two of each where they have four bits: the lower half goes first."""
        numbers = self._add("Cast", rows, to=TensorProto.FLOAT)
        if bits == 8:
            return numbers
        base = self._constant("base", 16, np.float32)
        high = self._add("Floor", self._add("Div", numbers, base))
        low = self._add("Sub", numbers, self._add("Mul", high, base))
        pair = [self._as(half, shape, [-1, 1]) for half in (low, high)]
        return self._as(self._add("Concat", *pair, axis=-1), shape, [-1])

    def _as(self, value: str, shape: str, last: list[int], name: str = "") -> str:
        """The value with the shape of the rows that are asked for, and `last` behind it."""
        whole = self._add("Concat", shape, self._constant("last_" + "_".join(map(str, last)), last), axis=0)
        return self._add("Reshape", value, whole, name=name)

    def _add(self, operator: str, *inputs: str, name: str = "", **attributes: int) -> str:
        output = name or f"{self._stem}.plain.{len(self.nodes)}"
        made = helper.make_node(operator, list(inputs), [output], name=f"{self._stem}.plain.node.{len(self.nodes)}")
        made.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(made)
        return output

    def _constant(self, name: str, value: int | list[int], dtype: type[np.generic] = np.int64) -> str:
        whole = f"{self._stem}.plain.{name}"
        if not any(initializer.name == whole for initializer in self._graph.initializer):
            self._graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), whole))
        return whole
