"""What Core ML Tools 9 can't convert, or converts so that the program contradicts itself: operators of torch, converted here.

Called once before a conversion. Runs inside the toolchain.
"""

from __future__ import annotations

import functools
from typing import Any

from handlers.coreml import library


@functools.cache
def register() -> None:
    """Tell the converter."""
    library.coremltools()
    from coremltools.converters.mil import Builder as mb  # noqa: N813
    from coremltools.converters.mil.frontend.torch.ops import _get_inputs
    from coremltools.converters.mil.frontend.torch.torch_op_registry import register_torch_op
    from coremltools.converters.mil.mil import types
    from coremltools.converters.mil.mil.ops.defs._utils import promote_input_dtypes

    def alias(context: Any, node: Any) -> None:
        (x,) = _get_inputs(context, node, expected=1)
        context.add(mb.identity(x=x, name=node.name))

    def where(context: Any, node: Any) -> None:
        """Of two numbers or small tensors by a larger condition, the library declares the result as small as they are."""
        cond, a, b = _get_inputs(context, node, expected=3)
        cond = cond if types.is_bool(cond.dtype) else mb.cast(x=cond, dtype="bool")
        a, b = promote_input_dtypes([a, b])
        if not any(_covers(choice, cond) for choice in (a, b)):
            a = _spread(mb, types, a, cond)
        context.add(mb.select(cond=cond, a=a, b=b, name=node.name))

    register_torch_op(alias, override=True)
    names = ["where.self", "where.scalar", "where.scalarself", "where.scalarother"]
    register_torch_op(where, torch_alias=names, override=True)


def _covers(value: Any, cond: Any) -> bool:
    """Whether a value has all of the condition's places, so that the result is as large as it."""
    sizes = tuple(value.shape)[len(value.shape) - len(cond.shape) :] if len(value.shape) >= len(cond.shape) else None
    return sizes is not None and all(theirs == 1 or mine == theirs for mine, theirs in zip(sizes, cond.shape, strict=True))


def _spread(mb: Any, types: Any, value: Any, cond: Any) -> Any:
    """A value in the condition's shape."""
    zeros = mb.cast(x=cond, dtype=types.builtin_to_string(value.dtype))
    zeros = mb.mul(x=zeros, y=types.nptype_from_builtin(value.dtype)(0))
    return mb.add(x=zeros, y=value)
