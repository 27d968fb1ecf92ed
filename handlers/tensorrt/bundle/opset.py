"""Graphs as TensorRT's parser takes them: the standard's operators alone, of an operator set that is old enough.

Called by the stages of the bundle. An operator set is lowered only where that changes nothing but a number: every operator that the graph
uses must have had the same meaning then. onnx checks the result, types included; the stage then runs it beside the graph that it was
made of. The attention of opset 23 has no older form: where ckptd has put it into that operator, it is spelt out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import defs

from handlers.graphs.attention import standard
from handlers.graphs.attention.finding import OPERATOR

STANDARD = ("", "ai.onnx")
_OTHERS = frozenset({"GroupNormalization", "QuantizeLinear", "DequantizeLinear", "QLinearMatMul", "Attention"})
"""Operators whose newer versions mean something else, or whose defaults do; the newer versions of the others take more types only."""


class NotTaken(Exception):
    """TensorRT's parser would not take the graph; `cause` and `remedy` are clauses."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.cause, self.remedy = cause, remedy


def check(model: onnx.ModelProto, name: str) -> None:
    """Raises NotTaken where a graph has operators that are none of the standard's."""
    foreign = sorted({f"{node.domain}:{node.op_type}" for node in _nodes(model) if node.domain not in STANDARD})
    if foreign:
        raise NotTaken(
            f"{name} has operators of a runtime's own ({', '.join(foreign[:4])}), which TensorRT does not know",
            'set onnx.optimize to "basic", which keeps to the standard',
        )


def with_older_attention(model: onnx.ModelProto, newest: int) -> onnx.ModelProto:
    """The graph with attention spelt out, if `newest` has no operator for it; else the graph itself."""
    if newest >= standard.OPSET or all(node.op_type != OPERATOR for node in model.graph.node):
        return model
    spelt = standard.spell_out(ir.from_proto(model))
    return model if standard.has_operator(spelt.graph) else ir.to_proto(spelt)


def lowered(model: onnx.ModelProto, newest: int, name: str) -> int | None:
    """Make the graph one of the operator set `newest` in place, where it is of a newer one; gives the number that it had, else None.

    Raises NotTaken where an operator means something else there, or does not exist.
    """
    known = next(imported for imported in model.opset_import if imported.domain in STANDARD)
    before = int(known.version)
    if before <= newest:
        return None
    wrong = sorted({node.op_type for node in _nodes(model) if node.domain in STANDARD and not _same(node, before, newest)})
    if wrong:
        raise NotTaken(
            f"{name} is of opset {before} and uses {', '.join(wrong[:4])}, which opset {newest} does not have in this form",
            f"set export.opset to {newest} or lower, or tensorrt.newest_opset to what your TensorRT takes",
        )
    known.version = newest
    return before


def checked(path: Path) -> None:
    """Raises NotTaken where the graph in a file breaks the standard of its operator set, types included."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        said = " ".join(str(error).split())[:300]
        raise NotTaken(f"{path.name} is no valid graph of the older operator set ({said})", "set export.opset to 18") from None


def _same(node: onnx.NodeProto, before: int, after: int) -> bool:
    try:
        old, new = (defs.get_schema(node.op_type, version, node.domain) for version in (after, before))
    except defs.SchemaError:
        return False
    if old.since_version == new.since_version:
        return True
    return node.op_type not in _OTHERS and {attribute.name for attribute in node.attribute} <= set(old.attributes)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Of the graph, of the graphs inside its nodes, and of its functions."""
    waiting = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                waiting += inner.node
