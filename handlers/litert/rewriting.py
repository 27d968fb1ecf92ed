"""What is changed in a program before it becomes a LiteRT model, so that LiteRT runs it faster. Free of LiteRT.

Called by `conversion`. A form that is not known here is left as it is: the result is the same, only slower.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten


def share_heads(module: GraphModule) -> int:
    """Multiply groups of heads by the keys or values that they share, in place of repeating these for every head; how many products.

    LiteRT's operator that repeats is slow: with it, a token takes several times as long.
    """
    changed = 0
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is _aten.matmul.default and _share(module.graph, node):
            changed += 1
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return changed


def _share(graph: torch.fx.Graph, product: Node) -> bool:
    """Change (1, heads, rows, a) @ (1, heads, a, b), where the second factor is one for each group of heads, repeated."""
    factor: Any = product.args[1]
    turned = _is(factor, _aten.transpose.int) and sorted(axis % 4 for axis in factor.args[1:]) == [2, 3]
    repeated = factor.args[0] if turned else factor
    shared = _before_repeating(repeated)
    if shared is None:
        return False
    groups, width = int(_shape(shared)[1]), int(_shape(factor)[2])
    heads, columns = int(_shape(repeated)[1]), int(_shape(factor)[3])
    with graph.inserting_before(product):
        rows = graph.call_function(_aten.reshape.default, (product.args[0], [1, groups, -1, width]))
        other = graph.call_function(_aten.transpose.int, (shared, 2, 3)) if turned else shared
        grouped = graph.call_function(_aten.matmul.default, (rows, other))
        made = graph.call_function(_aten.reshape.default, (grouped, [1, heads, -1, columns]))
    made.meta = dict(product.meta)
    product.replace_all_uses_with(made)
    return True


def _before_repeating(node: Any) -> Node | None:
    """(1, groups, …) of which `node` is made by giving each head of a group the same: unsqueeze, expand, reshape."""
    if not _is(node, _aten.reshape.default):
        return None
    expanded = node.args[0]
    if not _is(expanded, _aten.expand.default):
        return None
    wide = expanded.args[0]
    if not _is(wide, _aten.unsqueeze.default) or wide.args[1] != 2:
        return None
    before, after, flat = _shape(wide), _shape(expanded), _shape(node)
    repeats_heads = len(before) == 5 and [*before[:2], *before[3:]] == [*after[:2], *after[3:]]
    return wide.args[0] if repeats_heads and list(flat) == [after[0], after[1] * after[2], *after[3:]] else None


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def _shape(node: Node) -> Any:
    return node.meta["val"].shape
