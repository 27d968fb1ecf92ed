"""Products with fp32 weights on processors for which torch's usual library, MKL, has no fast code: there oneDNN computes them.

Used where a model is run by torch to be compared with, never where its speed is measured. MKL takes its wide kernels on Intel's own
processors alone; oneDNN, which torch brings along too, chooses by what the processor can do. Both compute in fp32 and sum in another order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from daemon.contract import cpu

_LINEAR: Any = torch._C._nn.linear
"""What `torch.nn.functional.linear` is."""
_LEAST = 128
"""Inputs of a weight from which on the other library's call is worth its own cost. Not its outputs: a weight that is read in blocks of rows
is then multiplied as it is in one piece."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Kinds of weights that are nothing but their values."""
NEAR = 1e-5
"""Largest |Δ|, relative to the largest result, by which the other library may differ in the trial."""


def faster() -> contextlib.AbstractContextManager[Any]:
    """Compute products with weights (out, in) float32 by oneDNN inside, in this thread, if that is the faster one here."""
    product = _onednn()
    return contextlib.nullcontext() if product is None else _Products(product)


class _Products(TorchFunctionMode):
    """Takes the place of `linear` where several rows meet a large weight."""

    def __init__(self, product: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._product = product

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not _LINEAR or kwargs:
            return func(*args, **(kwargs or {}))
        rows, weight, bias = (*args, None)[:3]
        if type(weight) not in _PLAIN:
            return func(*args)
        fits = weight.dtype == rows.dtype == torch.float32 and weight.is_contiguous() and not weight.is_meta
        if not fits or weight.shape[1] < _LEAST or rows.numel() <= weight.shape[1]:
            return func(*args)
        return self._product(rows.contiguous(), weight, bias)


@functools.cache
def _onednn() -> Callable[..., torch.Tensor] | None:
    """oneDNN's product (rows (…, in), weight (out, in), bias) → (…, out); None where MKL is as fast, or oneDNN does not do as it should."""
    here = cpu.here()
    if here.architecture != "x86_64" or here.vendor == "GenuineIntel" or not torch.backends.mkldnn.is_available():
        return None

    def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
        return result

    # It is what torch's own compiler calls, and no public name: whatever another version makes of it, the usual way is there.
    try:
        generator = torch.Generator().manual_seed(0)
        rows, weight, bias = (torch.randn(shape, generator=generator) for shape in ((2, 3, 64), (48, 64), (48,)))
        for term in (None, bias):
            wanted, result = torch.nn.functional.linear(rows, weight, term), product(rows, weight, term)
            if result.shape != wanted.shape or not float((result - wanted).abs().max()) <= NEAR * float(wanted.abs().max()):
                return None
    except (RuntimeError, AttributeError, TypeError):
        return None
    return product
