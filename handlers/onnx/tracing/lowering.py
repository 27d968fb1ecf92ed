"""Spares the ONNX exporter the decomposition of programs that need none: there are ONNX functions for what most models are made of.

`ExportedProgram.run_decompositions` traces a program twice more, which takes longer than the export itself. Inside `lightly`, a program of
which no operator has to be decomposed is only tidied: operators that change nothing are removed; conversions, logical operators, composite
views and arithmetic in place are replaced by operators that the translation knows. All other programs are decomposed as before. Used by the
exporters, which decompose a program after all if its translation fails. Imports torch alone.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.export import ExportedProgram

_ATEN: Any = torch.ops.aten
_OPERATOR = type(_ATEN.add.Tensor)
_SIZES = ("_operator", "math", "torch")
"""Modules of the functions that compute with sizes."""
_SAME = {
    _ATEN.alias.default, _ATEN.detach.default, _ATEN.detach_.default, _ATEN.dropout.default, _ATEN.lift_fresh_copy.default,
}  # fmt: skip
"""Operators that give their first input as it is, where nothing is trained."""
_CONVERSIONS = {_ATEN.to.dtype, _ATEN.to.dtype_layout, _ATEN.to.device, _ATEN.to.other, _ATEN.type_as.default}
_SPELT = {
    _ATEN.__and__.Tensor: _ATEN.bitwise_and.Tensor, _ATEN.__or__.Tensor: _ATEN.bitwise_or.Tensor,
    _ATEN.min.other: _ATEN.minimum.default, _ATEN.max.other: _ATEN.maximum.default,
}  # fmt: skip
"""Operator → the one that a decomposition replaces it by."""
_TAKEN_APART = {
    _ATEN.contiguous.default, _ATEN.flatten.using_ints, _ATEN.chunk.default, _ATEN.numpy_T.default, _ATEN.reshape.default,
}  # fmt: skip
"""Composite views that `tidy` replaces; but for `reshape`, whose translation gives what that of its parts would."""
_IN_PLACE: dict[Any, Any] = {
    _ATEN.add_.Tensor: _ATEN.add.Tensor, _ATEN.sub_.Tensor: _ATEN.sub.Tensor, _ATEN.mul_.Tensor: _ATEN.mul.Tensor,
    _ATEN.div_.Tensor: _ATEN.div.Tensor,
}  # fmt: skip
"""Operator that writes over its first input → the one that computes the same and writes to no input."""
_CHECKS = {
    _ATEN._assert_async.default, _ATEN._assert_async.msg, _ATEN._assert_scalar.default, _ATEN._assert_tensor_metadata.default,
    _ATEN.sym_constrain_range_for_size.default,
}  # fmt: skip
"""Operators that compute nothing: they fail where a size or a value is not what was assumed."""


def obstacle(program: ExportedProgram, decomposed: Container[object]) -> str:
    """Which operator of a program has to be decomposed, or what else of it is not for `tidy`; "" where nothing is.

    `decomposed` are the operators that the translation does not know as they are.
    """
    graph = program.graph
    outputs = [node for node in graph.output_node().all_input_nodes if node.op == "placeholder"]
    if outputs:
        return f"the input {outputs[0].name} is an output too"
    given: Any = graph.output_node().args[0]
    repeated = [output.name for output, count in Counter(given).items() if count > 1]
    if repeated:
        return f"{repeated[0]} is an output twice"
    for node in graph.nodes:
        target: Any = node.target
        if node.op in ("placeholder", "output") or target in _CHECKS:
            continue
        if node.op != "call_function" or not (isinstance(target, _OPERATOR) or getattr(target, "__module__", "") in _SIZES):
            return str(target)
        if target is _ATEN.dropout.default and node.args[2]:
            return f"{target} in training"
        if target is _ATEN.chunk.default and any(isinstance(size, torch.SymInt) for size in _parts(node)[1]):
            return f"{target} of an axis without a fixed size"
        if any(target in known for known in (_SAME, _CONVERSIONS, _SPELT, _TAKEN_APART)):
            continue
        if not isinstance(target, _OPERATOR):
            continue
        kept = _out_of_place(node) if target._schema.is_mutable else target
        if kept is None or kept in decomposed or _is_composite_view(kept):
            return str(target)
    return ""


def _out_of_place(node: torch.fx.Node) -> Any:
    """The operator that computes what an operator writes over its first input; None for what is no plain arithmetic in one dtype, and where
    somebody else may see that input change."""
    known = _IN_PLACE.get(node.target)
    changed: Any = node.args[0]
    if known is None or changed.op != "call_function":
        return None
    dtype, other = changed.meta["val"].dtype, node.args[1]
    if other.meta["val"].dtype != dtype if isinstance(other, torch.fx.Node) else not dtype.is_floating_point:
        return None
    made: Any = changed.args[0] if changed.target is operator.getitem else changed
    near = [made.target, *(user.target for user in changed.users if user is not node)]
    apart = all(
        isinstance(target, _OPERATOR) and target not in _SAME and target not in _CONVERSIONS and not _is_view(target) for target in near
    )
    return known if apart else None


def _is_view(target: Any) -> bool:
    return any(argument.alias_info is not None for argument in target._schema.arguments)


def _is_composite_view(target: Any) -> bool:
    """Whether an operator is composed of others and may give a view of its input: a decomposition always replaces it by its parts, even if
    the translation knows it."""
    return _is_view(target) and target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def _parts(node: torch.fx.Node) -> tuple[int, list[Any]]:
    """The axis that a `chunk` is along, and the sizes of the parts: all but the last one are alike."""
    given: Any = node.args
    axis = given[2] if len(given) > 2 else 0
    return axis, [part.shape[axis] for part in node.meta["val"]]


def _flattened(node: torch.fx.Node, known: Mapping[str, torch.fx.Node]) -> list[Any]:
    """The sizes that a `flatten` gives, with nodes for those that are not fixed: of `known` sizes where they are among them."""
    source: Any = node.args[0]
    sizes = source.meta["val"].shape
    given: Any = node.args
    start, end = (value % len(sizes) for value in (given[1] if len(given) > 1 else 0, given[2] if len(given) > 2 else -1))

    def size(axis: int) -> Any:
        if not isinstance(sizes[axis], torch.SymInt):
            return sizes[axis]
        if str(sizes[axis]) in known:
            return known[str(sizes[axis])]
        with node.graph.inserting_before(node):
            size_node = node.graph.call_function(_ATEN.sym_size.int, (source, axis))
        size_node.meta["val"] = sizes[axis]
        return size_node

    joined = sizes[start : end + 1]
    whole = -1 if any(isinstance(extent, torch.SymInt) for extent in joined) else math.prod(joined)
    return [*map(size, range(start)), whole, *map(size, range(end + 1, len(sizes)))]


def tidy(program: ExportedProgram) -> None:
    """Rewrite a program without an obstacle, in place. Nodes that are outputs keep their names, which the program's signature tells."""
    graph = program.graph
    sizes = dict[str, torch.fx.Node]()
    order = {node: number for number, node in enumerate(graph.nodes)}
    # Before anything is rewritten: who sees what an operator writes over is told by the program as it was.
    written = {node: _out_of_place(node) for node in graph.nodes if isinstance(node.target, _OPERATOR) and node.target._schema.is_mutable}
    for node in list(graph.nodes):
        target: Any = node.target
        if isinstance(node.meta.get("val"), torch.SymInt):
            sizes.setdefault(str(node.meta["val"]), node)
        if target in _CHECKS:
            graph.erase_node(node)
        elif target in _SPELT:
            node.target = _SPELT[target]
        elif target is _ATEN.flatten.using_ints:
            node.target, node.args = _ATEN.reshape.default, (node.args[0], _flattened(node, sizes))
        elif target is _ATEN.contiguous.default:  # a `view` may rely on the layout
            node.target, node.kwargs = _ATEN.clone.default, {"memory_format": torch.contiguous_format, **node.kwargs}
        elif target is _ATEN.numpy_T.default:
            node.target, node.args = _ATEN.permute.default, (node.args[0], list(reversed(range(node.meta["val"].ndim))))
        elif target is _ATEN.chunk.default:
            axis, parts = _parts(node)
            node.target, node.args = _ATEN.split.Tensor, (node.args[0], parts[0], axis)
        elif target in _SAME or target in _CONVERSIONS:
            source: Any = node.args[0]
            dtype = node.meta["val"].dtype
            if dtype != source.meta["val"].dtype:
                node.target, node.args, node.kwargs = _ATEN._to_copy.default, (source,), {"dtype": dtype}
            elif any(user.op == "output" for user in node.users):
                node.target, node.args, node.kwargs = _ATEN.clone.default, (source,), {}
            else:
                node.replace_all_uses_with(source)
                graph.erase_node(node)
        elif node in written:
            node.target, changed = written[node], node.args[0]
            for user in list(changed.users):
                if order[user] > order[node]:
                    user.replace_input_with(changed, node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


@contextlib.contextmanager
def lightly() -> Iterator[Counter[str]]:
    """Inside, programs that need no decomposition are only tidied. Gives how many programs were handled in which way: "" for those that
    were tidied, else the obstacle."""
    counts = Counter[str]()
    original: Callable[..., ExportedProgram] = ExportedProgram.run_decompositions

    def run_decompositions(self: ExportedProgram, table: Any = None, **more: Any) -> ExportedProgram:
        try:
            why = obstacle(self, table)
        except Exception as error:  # arguments that are given in another way, no table
            why = f"{type(error).__name__}: {error}"
        counts[why] += 1
        if why:
            return original(self, table, **more)
        tidy(self)
        return self

    with mock.patch.object(ExportedProgram, "run_decompositions", run_decompositions):
        yield counts
