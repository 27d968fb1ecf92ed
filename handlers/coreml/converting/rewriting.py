"""Rewrites a program of torch.export so that half precision does it no harm and the Neural Engine can take it; what it computes stays.

Called by the conversion, on the graph of one program. Each function looks for one pattern, and leaves a graph that has none of it as it is.

- What follows from positions or sizes alone is evaluated ahead of time (`folding`).
- The mean of squares in a norm overflows in half precision from values of 256 on. The largest value is divided out first.
- A mask's smallest fp32 number is an infinity in half precision, and so are two of them that are added.
- Sizes that are read from an input while it runs become sizes that follow from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from handlers.coreml.converting.folding import Folding, attributes, shape
from handlers.graphs.graphset import Graph

aten = torch.ops.aten

HIDDEN = -3e4
"""What hides a position instead of the smallest number: nothing is left of it after a softmax, and twice it is a number too."""
_SMALLEST = 1e-4
"""The largest value of a row is taken for no less than this; the root of epsilon counts for more then."""
_SAME = (aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.contiguous.default, aten.alias.default, aten.clone.default)
_HIDES = (aten.where, aten.full, aten.full_like, aten.masked_fill, aten.scalar_tensor, aten.new_full)
_SPREADS = (aten.where.ScalarOther, aten.where.self, aten.where.ScalarSelf, aten.where.Scalar, aten.add.Tensor, aten.mul.Tensor)
_ASSERTS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range")


def rewrite(module: GraphModule, graph: Graph, largest: Mapping[str, int], length: int) -> dict[str, int]:
    """Rewrite the graph in place, for a program with room for `length` tokens; how often each pattern was found.

    `largest`: free axis → its largest size.
    """
    _drop_assertions(module)
    _plain_logic(module)
    counts = {"shared": _shared(module), "norms": _norms(module), "masks": _masks(module), **Folding(module, graph, largest, length).fold()}
    counts |= {"true": _true(module), "sizes": _sizes(module)}
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.graph.lint()
    module.recompile()
    return counts


def _drop_assertions(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.op == "call_function" and any(name in str(node.target) for name in _ASSERTS):
            module.graph.erase_node(node)


def _plain_logic(module: GraphModule) -> None:
    """Python's "and" and "or" of truth values by the names that converters know."""
    names = {aten.__and__.Tensor: aten.logical_and.default, aten.__or__.Tensor: aten.logical_or.default}
    for node in module.graph.nodes:
        if node.target in names and node.meta["val"].dtype is torch.bool:
            node.target = names[node.target]


def _shared(module: GraphModule) -> int:
    """Weights that are the same numbers, as a head and its table of tokens, are one."""
    count, kept = 0, dict[tuple[int, ...], list[tuple[Node, torch.Tensor]]]()
    for node, tensor in list(attributes(module)):
        if not isinstance(tensor, torch.nn.Parameter) or tensor.ndim < 2:
            continue
        alike = kept.setdefault(tuple(tensor.shape), [])
        same = next((twin for twin, other in alike if torch.equal(other, tensor)), None)
        if same is None:
            alike.append((node, tensor))
        else:
            node.replace_all_uses_with(same)
            count += 1
    module.graph.eliminate_dead_code()
    return count


def _norms(module: GraphModule) -> int:
    """x · rsqrt(mean(x²) + ε) as y · rsqrt(mean(y²) + (√ε / s)²) with y = x / s, s the largest |x|: all of it between 0 and about 1."""
    count = 0
    for node in [root for root in module.graph.nodes if root.target is aten.rsqrt.default]:
        squares = _mean_of_squares(node)
        if squares is None:
            continue
        x, epsilon = squares
        products = [user for user in node.users if user.target is aten.mul.Tensor]
        others = [next((operand for operand in user.all_input_nodes if operand is not node), None) for user in products]
        if len(products) != len(node.users) or any(other is None or _source(other) is not _source(x) for other in others):
            continue
        for product in products:
            with module.graph.inserting_before(product):
                scaled = _scaled_norm(module, x, epsilon)
            scaled.meta = dict(product.meta)
            product.replace_all_uses_with(scaled)
        count += 1
    module.graph.eliminate_dead_code()
    return count


def _mean_of_squares(node: Node) -> tuple[Node, float] | None:
    """x and ε, where the node is rsqrt(mean(x², last axis) + ε)."""
    total = node.args[0]
    if not isinstance(total, Node) or total.target is not aten.add.Tensor or not isinstance(total.args[1], float | int):
        return None
    mean: Any = total.args[0]
    if mean.target is not aten.mean.dim or list(mean.args[1]) != [-1] or not mean.args[2]:
        return None
    power: Any = mean.args[0]
    if power.target is not aten.pow.Tensor_Scalar or power.args[1] != 2:
        return None
    return power.args[0], float(total.args[1])


def _scaled_norm(module: GraphModule, x: Node, epsilon: float) -> Node:
    def call(function: Any, *given: Any) -> Node:
        return module.graph.call_function(function, given)

    largest = call(aten.clamp_min.default, call(aten.amax.default, call(aten.abs.default, x), [-1], True), _SMALLEST)
    y = call(aten.div.Tensor, x, largest)
    root = call(aten.mul.Tensor, call(aten.reciprocal.default, largest), epsilon**0.5)
    mean = call(aten.mean.dim, call(aten.mul.Tensor, y, y), [-1], True)
    return call(aten.mul.Tensor, y, call(aten.rsqrt.default, call(aten.add.Tensor, mean, call(aten.mul.Tensor, root, root))))


def _masks(module: GraphModule) -> int:
    """What hides positions, as HIDDEN."""
    count = 0
    for node in module.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "overloadpacket", None) in _HIDES:
            given = tuple(HIDDEN if isinstance(argument, float) and argument < HIDDEN else argument for argument in node.args)
            count += given != node.args
            node.args = given
    for _, tensor in attributes(module):
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel() == 1 and float(tensor) < HIDDEN:
            tensor.data = torch.full_like(tensor, HIDDEN)
            count += 1
    return count


def _true(module: GraphModule) -> int:
    """A logical and with what is true everywhere is what it is combined with."""
    known = {node: bool(tensor.all()) for node, tensor in attributes(module) if getattr(tensor, "dtype", None) is torch.bool}
    for node in module.graph.nodes:
        if node.target is aten.slice.Tensor and node.args[0] in known:
            known[node] = known[node.args[0]]
    count = 0
    for node in list(module.graph.nodes):
        if node.target not in (aten.bitwise_and.Tensor, aten.logical_and.default):
            continue
        left, right = node.args
        kept = right if known.get(left) else left if known.get(right) else None
        if kept is not None and len(shape(kept)) == len(shape(node)):
            node.replace_all_uses_with(kept)
            count += 1
    module.graph.eliminate_dead_code()
    return count


def _sizes(module: GraphModule) -> int:
    """A free size in a reshape is what is left by the others; an expansion that its readers would make themselves is left out."""
    count = 0
    for node in list(module.graph.nodes):
        sizes = shape(node)
        if node.target in (aten.view.default, aten.reshape.default, aten._unsafe_view.default):
            if any(isinstance(size, Node) for size in node.args[1]) and sum(not isinstance(size, int) for size in sizes) == 1:
                node.args = (node.args[0], [size if isinstance(size, int) else -1 for size in sizes])
                count += 1
        elif node.target is aten.expand.default and sizes:
            before = shape(node.args[0])
            spread = len(before) == len(sizes) and all(_spreads(user) for user in node.users)
            if sizes == before or spread:
                node.replace_all_uses_with(node.args[0])
                count += 1
    module.graph.eliminate_dead_code()
    return count


def _spreads(node: Node) -> bool:
    """Whether a node, and what reads it until it is added to scores, spreads what it is given to the others' sizes."""
    if node.target in (aten.add.Tensor, aten.mul.Tensor):
        return any(shape(operand) == shape(node) and operand.target is not aten.expand.default for operand in node.all_input_nodes)
    return node.target in _SPREADS and all(_spreads(user) for user in node.users)


def _source(node: Node) -> Node:
    """Where a value comes from that was only cast since."""
    while node.target in _SAME and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def patterns(counts: Mapping[str, int]) -> str:
    """What was rewritten, in words for a log."""
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "nothing"
