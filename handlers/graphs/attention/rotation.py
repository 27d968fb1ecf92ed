"""Finds rotary embeddings: x · cos + (−x₂, x₁) · sin, where x₁ and x₂ are the halves of x (https://arxiv.org/abs/2104.09864)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import onnx_ir as ir

from handlers.graphs.attention.reading import OtherFormError, first_input, made_by, numbers, pair, size, unscaled


@dataclass(frozen=True)
class Rotation:
    """What is turned, (B, N, S, H), and the cosines and sines of the angles, (B or 1, S, H), whose second half repeats the first."""

    inner: ir.Value
    cosine: ir.Value
    sine: ir.Value


def find(value: ir.Value) -> Rotation | None:
    """Return how a value was turned by its positions; None where it was not, or in a way that is not known here."""
    with contextlib.suppress(OtherFormError):
        left, right = pair(made_by(value, "Add"))
        for straight, crossed in ((left, right), (right, left)):
            with contextlib.suppress(OtherFormError):
                return _rotation_of(straight, crossed)
    return None


def _rotation_of(straight: ir.Value, crossed: ir.Value) -> Rotation:
    inner, cosine = pair(made_by(straight, "Mul"))
    swapped, sine = pair(made_by(crossed, "Mul"))
    negative, lower = pair(made_by(swapped, "Concat"))
    upper = first_input(made_by(negative, "Neg"))
    half = size(inner, 3) // 2
    if _slice(lower, inner)[:2] != (0, half) or _slice(upper, inner)[0] != half or size(upper, 3) != half:
        raise OtherFormError("it is not turned by halves")
    return Rotation(inner, *(_angles(angles, size(inner, 3)) for angles in (cosine, sine)))


def _slice(value: ir.Value, of: ir.Value) -> tuple[int, int]:
    """Beginning and end of a slice of the last axis."""
    node = made_by(value, "Slice")
    first, last, axis, step = ((numbers(operand) or [None])[0] for operand in (*node.inputs[1:], None)[:4])
    if node.inputs[0] is not of or axis not in (3, -1) or step not in (1, None) or not isinstance(first, int) or not isinstance(last, int):
        raise OtherFormError("it is not a half of the same")
    return first, last


def _angles(value: ir.Value, width: int) -> ir.Value:
    """Cosines or sines before they got an axis for the heads of this width. OtherFormError unless their halves are sure to be equal."""
    node = made_by(value, "Unsqueeze")
    if numbers(node.inputs[1]) != [1]:
        raise OtherFormError("its angles differ by head")
    angles = first_input(node)
    inner, _ = unscaled(angles)
    function = inner.producer()
    if function is None or function.op_type not in ("Cos", "Sin"):
        raise OtherFormError("its angles are not known")
    left, right = pair(made_by(first_input(function), "Concat"))
    if left is not right:
        raise OtherFormError("its angles do not repeat")
    if angles.shape is None or len(angles.shape) != 3 or size(angles, 2) != width:
        raise OtherFormError("its angles are not those of whole heads")
    return angles
