"""Evaluates ahead of time what a program computes of sizes and positions alone, in fp32 and without the operators that devices lack.

Called by the conversion, on the graph of one program. What follows from a token's position alone (the angles of a rotary embedding, the
distances of a relative one) becomes a table with a row for each position: half precision knows an angle of 1,000 to within a quarter.
What follows from sizes alone (masks, positions of an encoder) becomes a constant that is cut to the size. Weights are never folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from handlers.graphs.graphset import Graph

aten = torch.ops.aten
POSITIONS = "position_ids"
TABLE = "table"
"""What the names of tables begin with."""
_CURVED = (aten.cos.default, aten.sin.default, aten.log.default, aten.exp.default, aten.pow.Tensor_Scalar, aten.pow.Scalar)
_SIZED = (aten.sym_size, aten.new_ones, aten.new_zeros, aten.new_full, aten.zeros_like, aten.ones_like, aten.full_like)
"""What reads of its input its sizes alone."""
_MADE = (*_SIZED, aten.arange, aten.zeros, aten.ones, aten.full, aten.scalar_tensor, aten.lift_fresh_copy)
_SHORT = 3
"""Tokens of the smaller size at which what was folded is tried."""


class Folding:
    """One graph, with the largest size of each of its free axes."""

    def __init__(self, module: GraphModule, graph: Graph, largest: Mapping[str, int], length: int) -> None:
        self._module, self._largest, self._length = module, largest, length
        self._inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        names = {
            str(size): name for node, port in zip(self._inputs, graph.inputs, strict=True)
            for size, name in zip(shape(node), port.shape, strict=True) if isinstance(name, str)
        }  # fmt: skip
        self._axes: Mapping[str, str] = names
        """Symbol of torch.export → free axis."""
        self._positions = next((node for node, port in zip(self._inputs, graph.inputs, strict=True) if port.name == POSITIONS), None)
        self._masks = [node for node, port in zip(self._inputs, graph.inputs, strict=True) if "mask" in port.name]
        self._count = 0

    def fold(self) -> dict[str, int]:
        """Rewrite the graph in place; how often each pattern was found."""
        counts = {}
        for name, step in (
            ("positions", self._own_positions), ("masks read", self._own_masks), ("tables", self._tables), ("constants", self._constants),
        ):  # fmt: skip
            counts[name] = step()
            self._module.graph.eliminate_dead_code()
        return counts

    # What is found

    def _own_positions(self) -> int:
        """Positions that are counted from the first one are those that are given, since tokens follow each other."""
        count = 0
        for node in self._of(self._positions):
            if node.target is not aten.add.Tensor or len(shape(node)) != 1 or not free(shape(node)):
                continue
            runs = [torch.arange(start, start + size, dtype=torch.int32)[None] for start, size in ((0, 5), (3, 4), (7, 1))]
            if all(torch.equal(self._value(node, {self._positions: run}, run.shape[1]).long(), run[0].long()) for run in runs):
                count += self._replace(node, aten.select.int, self._positions, 0, 0)
        return count

    def _own_masks(self) -> int:
        """A mask that is read at all of its places in turn is the mask itself."""
        count = 0
        for mask in self._masks:
            for node in self._of(mask):
                sizes = shape(node)
                if node.target is not aten.index.Tensor or sum(not isinstance(size, int) or size != 1 for size in sizes) != 1:
                    continue
                source = node.args[0]
                tried = [(torch.arange(size)[None] % 3).bool().to(torch.int32) for size in (7, 4)]
                same = all(
                    torch.equal(self._value(node, {mask: example}, example.shape[1]).reshape(-1), example[0].bool()) for example in tried
                )
                if same and shape(source) == (1, sizes[-1]):
                    with self._module.graph.inserting_before(node):
                        for _ in range(len(sizes) - 2):
                            source = self._module.graph.call_function(aten.unsqueeze.default, (source, 1))
                    source.meta = dict(node.meta)  # type: ignore[union-attr]
                    node.replace_all_uses_with(source)  # type: ignore[arg-type]
                    count += 1
        return count

    def _tables(self) -> int:
        """What follows from a token's position by more than sums and comparisons, as rows of a table."""
        if self._positions is None:
            return 0
        count, curved = 0, set[Node]()
        depending = self._of(self._positions)
        for node in depending:
            if node.target in _CURVED or any(operand in curved for operand in node.all_input_nodes):
                curved.add(node)
        for node in depending:
            sizes = shape(node)
            if node not in curved or all(user in curved for user in node.users) or len(free(sizes)) != 1:
                continue
            axis = free(sizes)[0]
            whole, some = (torch.arange(*run, dtype=torch.int32)[None] for run in ((0, self._length), (2, 2 + _SHORT)))
            table, rows = (self._value(node, {self._positions: run}, run.shape[1]).movedim(axis, 0) for run in (whole, some))
            if table.shape[0] == self._length and torch.equal(table[2 : 2 + _SHORT], rows):
                count += self._looked_up(node, table, axis)
        return count

    def _constants(self) -> int:
        """What follows from sizes alone, cut to the size."""
        count, made = 0, set[Node]()
        alone = self._of(None)
        for node in alone:
            if getattr(node.target, "overloadpacket", None) in _MADE or any(operand in made for operand in node.all_input_nodes):
                made.add(node)
        for node in alone:
            value = node.meta.get("val")
            if node not in made or all(user in made for user in node.users) or not isinstance(value, torch.Tensor):
                continue
            axes = free(shape(node))
            whole, part = self._value(node, {}, None), self._value(node, {}, _SHORT)
            if torch.equal(part, whole[tuple(slice(size) for size in part.shape)]):
                count += self._cut(node, whole, axes)
        return count

    # What is put there

    def _looked_up(self, node: Node, table: torch.Tensor, axis: int) -> int:
        rest = list(table.shape[1:])
        stored = self._stored(node, table.reshape(len(table), -1))
        graph = self._module.graph
        with graph.inserting_before(node):
            places = graph.call_function(aten.select.int, (self._positions, 0, 0))
            rows = graph.call_function(aten.index_select.default, (stored, 0, places))
            result = graph.call_function(aten.view.default, (rows, [-1, *rest]))
            if axis:
                order = [*range(1, axis + 1), 0, *range(axis + 1, len(rest) + 1)]
                result = graph.call_function(aten.permute.default, (result, order))
        result.meta = dict(node.meta)
        node.replace_all_uses_with(result)
        return 1

    def _cut(self, node: Node, whole: torch.Tensor, axes: Sequence[int]) -> int:
        sizes = {str(size): placeholder for placeholder in self._inputs for size in shape(placeholder) if not isinstance(size, int)}
        for axis in axes:  # one more than is ever cut, or torch.export would take the largest size for a case of its own
            whole = torch.cat([whole, whole.narrow(axis, whole.shape[axis] - 1, 1)], axis)
        result = self._stored(node, whole)
        with self._module.graph.inserting_before(node):
            for axis in axes:
                source = sizes[str(shape(node)[axis])]
                place = next(at for at, size in enumerate(shape(source)) if str(size) == str(shape(node)[axis]))
                size = self._module.graph.call_function(aten.sym_size.int, (source, place))
                size.meta["val"] = shape(source)[place]
                result = self._module.graph.call_function(aten.slice.Tensor, (result, axis, 0, size))
        result.meta = dict(node.meta)
        node.replace_all_uses_with(result)
        return 1

    def _stored(self, node: Node, tensor: torch.Tensor) -> Node:
        name = f"{TABLE}_{self._count}"
        self._count += 1
        tensor = tensor.to(torch.int32) if tensor.dtype == torch.int64 else tensor
        self._module.register_buffer(name, tensor.contiguous())
        with self._module.graph.inserting_before(node):
            return self._module.graph.get_attr(name)

    def _replace(self, node: Node, function: Any, *given: Any) -> int:
        with self._module.graph.inserting_before(node):
            made = self._module.graph.call_function(function, given)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        return 1

    # What depends on what

    def _of(self, source: Node | None) -> list[Node]:
        """The calls that depend on the input `source` and on no other one nor on weights; sizes of inputs do not count."""
        reads: dict[Node, set[Node]] = {}
        for node in self._module.graph.nodes:
            if node.op == "placeholder" or (node.op == "get_attr" and isinstance(_attribute(self._module, node), torch.nn.Parameter)):
                reads[node] = {node}
            elif getattr(node.target, "overloadpacket", None) in _SIZED:
                reads[node] = set()
            else:
                reads[node] = set().union(*(reads[operand] for operand in node.all_input_nodes))
        wanted = set() if source is None else {source}
        return [node for node, read in reads.items() if node.op == "call_function" and read == wanted]

    def _value(self, node: Node, given: Mapping[Any, torch.Tensor], size: int | None) -> torch.Tensor:
        """What a node gives for inputs, the others being zeros; `size`: of all free axes, None for the largest of each."""
        needed, left = set[Node](), [node]
        while left:
            current = left.pop()
            if current not in needed:
                needed.add(current)
                left += current.all_input_nodes
        interpreter = Interpreter(self._module)
        known: dict[Node, Any] = interpreter.env
        for current in self._module.graph.nodes:
            if current in needed:
                known[current] = self._fed(current, given, size) if current.op == "placeholder" else interpreter.run_node(current)
        value: torch.Tensor = known[node]
        return value

    def _fed(self, node: Node, given: Mapping[Any, torch.Tensor], size: int | None) -> torch.Tensor:
        if node in given:
            return given[node]
        sizes = [extent if isinstance(extent, int) else size or self._largest[self._axes[str(extent)]] for extent in shape(node)]
        return torch.zeros(sizes, dtype=node.meta["val"].dtype)


def shape(node: Any) -> tuple[Any, ...]:
    """Sizes of what a node gives, numbers or symbols; none where it gives no tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def free(sizes: Sequence[Any]) -> list[int]:
    """The axes that are no numbers."""
    return [place for place, size in enumerate(sizes) if not isinstance(size, int)]


def attributes(module: GraphModule) -> Iterator[tuple[Node, Any]]:
    """The tensors that a graph reads, each with its node."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            yield node, _attribute(module, node)


def _attribute(module: GraphModule, node: Node) -> Any:
    owner: Any = module
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    return owner
