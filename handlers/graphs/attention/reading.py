"""Small questions to the nodes of a graph, and the error where the answer is no. Free of torch and onnxruntime."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

SWAPPED = (0, 2, 1, 3)
"""Swaps the axes of heads and tokens."""


class OtherFormError(Exception):
    """Something is computed in another way than those that are known here; the message says what."""


def size(value: ir.Value, axis: int) -> int:
    """Return the size of an axis. OtherFormError where it is not known."""
    length = value.shape[axis] if value.shape is not None and len(value.shape) > axis else None
    if not isinstance(length, int):
        raise OtherFormError(f"the size of {value.name} is not known")
    return length


def made_by(value: ir.Value | None, operator: str) -> ir.Node:
    """Return the node that a value comes from. OtherFormError where it is not of this operator."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != operator:
        raise OtherFormError(f"{value.name if value is not None else 'an input'} does not come from {operator}")
    return node


def first_input(node: ir.Node) -> ir.Value:
    """Return what a node reads first."""
    return operands(node)[0]


def operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return what a node reads. OtherFormError where it leaves out one of its inputs."""
    values = tuple(value for value in node.inputs if value is not None)
    if len(values) != len(node.inputs) or not values:
        raise OtherFormError(f"{node.op_type} has no {len(values) + 1}. input")
    return values


def pair(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Return the two inputs of a node. OtherFormError where it has more or fewer."""
    inputs = operands(node)
    if len(inputs) != 2:
        raise OtherFormError(f"{node.op_type} has {len(inputs)} inputs")
    return inputs[0], inputs[1]


def numbers(value: ir.Value | None) -> list[Any] | None:
    """Return the content of a constant, flat; None for what is computed, or is a large weight."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return list(tensor.numpy().reshape(-1).tolist()) if tensor is not None and tensor.size < 16 else None


def swaps_heads(node: ir.Node | None) -> bool:
    """Return whether a node swaps the axes of heads and tokens."""
    return node is not None and node.op_type == "Transpose" and tuple(node.attributes.get_ints("perm", ())) == SWAPPED


def unscaled(value: ir.Value | None) -> tuple[ir.Value, float]:
    """Return a value before it was multiplied or divided by numbers, and what it was multiplied by in all."""
    if value is None:
        raise OtherFormError("an input is left out")
    node = value.producer()
    if node is not None and node.op_type in ("Mul", "Div"):
        for place in (0, 1) if node.op_type == "Mul" else (0,):
            number = numbers(node.inputs[1 - place])
            if number is not None and len(number) == 1:
                inner, factor = unscaled(node.inputs[place])
                return inner, factor * (number[0] if node.op_type == "Mul" else 1 / number[0])
    return value, 1.0
