"""Smaller forms of programs: products and tables in 8 or 4 bits by torchao, in the form that XNNPACK and ExecuTorch's kernels take.

Called by the stage. Runs inside the toolchain. A program is a graph without modules, and torchao quantizes modules: so the operators that
multiply by a weight, or look it up, become modules first.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
FOUR: Any = torch.int4  # type: ignore[attr-defined]
_KINDS = {_aten.linear.default: (1, 0), _aten.embedding.default: (0, 1)}
"""Operator → places of its weight and of its input among its arguments."""


class Table(torch.nn.Embedding):
    """Rows by numbers, which ExecuTorch's kernel for 8-bit tables wants as int64."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.to(torch.int64))


def quantize(program: GraphModule, group: int, head: int | None) -> dict[str, int]:
    """Round the weights of products and tables; form → weights that have it.

    Products get 4-bit weights in groups of `group` (0: 8-bit weights, a scale a row), and activations that are rounded to 8 bits as they
    come, a scale a token. Products with `head` rows, and those whose rows are no multiple of a group, get 8-bit weights. Tables get 8 bits
    and a scale a row.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization import (
            Int8DynamicActivationIntxWeightConfig as Product,
        )
        from torchao.quantization import IntxWeightOnlyConfig as Lookup
        from torchao.quantization import quantize_
        from torchao.quantization.granularity import PerAxis, PerGroup

    by_row, rounded = PerAxis(0), dict[str, int]()
    for module in list(_modules(program)):
        rows, columns = module.weight.shape
        if isinstance(module, torch.nn.Embedding):
            kind, config = "table_int8", Lookup(weight_dtype=torch.int8, granularity=by_row)
        elif not group or rows == head or columns % group:
            kind, config = "int8", Product(weight_dtype=torch.int8, weight_granularity=by_row)
        else:
            kind, config = "int4", Product(weight_dtype=FOUR, weight_granularity=PerGroup(group))
        quantize_(module, config, filter_fn=lambda other, _, module=module: other is module)
        rounded[kind] = rounded.get(kind, 0) + rows * columns
    program.delete_all_unused_submodules()
    return rounded


def left(program: GraphModule) -> int:
    """Weights of two or more dimensions that a program reads as they are."""
    read = {str(node.target): node for node in program.graph.nodes if node.op == "get_attr"}
    return sum(tensor.numel() for tensor in (_tensor(program, node) for node in read.values()) if tensor.dim() > 1)


_PREFIX = "rounded_"


def _modules(program: GraphModule) -> Iterator[torch.nn.Embedding | torch.nn.Linear]:
    """A module for each operator that has a weight of its own, in its place."""
    graph = program.graph
    for number, node in enumerate([call for call in graph.nodes if call.target in _KINDS]):
        weight, given = (node.args[place] for place in _KINDS[node.target])
        if not isinstance(weight, Node) or weight.op != "get_attr":
            continue
        module = _module(program, node, weight)
        name = f"{_PREFIX}{number}"
        program.add_submodule(name, module)
        with graph.inserting_before(node):
            called = graph.call_module(name, (given,))
        called.meta = dict(node.meta)
        node.replace_all_uses_with(called)
        graph.erase_node(node)
        yield module
    graph.eliminate_dead_code()
    program.recompile()


def _module(program: GraphModule, node: Node, weight: Node) -> torch.nn.Embedding | torch.nn.Linear:
    tensor = _tensor(program, weight)
    rows, columns = tensor.shape
    if node.target is _aten.embedding.default:
        table = Table(rows, columns, device="meta")
        table.weight = torch.nn.Parameter(tensor, requires_grad=False)
        return table
    bias = node.args[2] if len(node.args) > 2 else None
    product = torch.nn.Linear(columns, rows, bias=bias is not None, device="meta")
    product.weight = torch.nn.Parameter(tensor, requires_grad=False)
    if isinstance(bias, Node):
        product.bias = torch.nn.Parameter(_tensor(program, bias), requires_grad=False)
    return product


def _tensor(program: GraphModule, node: Node) -> torch.Tensor:
    value: Any = program
    for part in str(node.target).split("."):
        value = getattr(value, part)
    tensor: torch.Tensor = value.detach()
    return tensor
