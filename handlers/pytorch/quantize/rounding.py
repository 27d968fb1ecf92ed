"""Matrices in int8 with a scale a row, and in int4 with a scale for each group of a row: the numbers of pytorch-w8a8 and pytorch-w4a16.

Called by `compressed`. Scales are rounded to the dtype that they are stored in before a value is divided by them. The correction of errors
is GPTQ: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022,
arXiv:2210.17323. Columns are taken in the order of their inputs' size, with the groups' scales fixed beforehand, so that what is stored
does not depend on that order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

GROUPS = (128, 64, 32)
"""Sizes of a group that servers have kernels for, the largest first."""
LOW, HIGH = -8, 7
SHARES = tuple(1.08 - 0.04 * step for step in range(13))
"""Scales that are tried, as shares of the one that spans the group's largest value."""
DAMPING = 0.01
"""Added to the diagonal of what the inputs of a layer say, as a share of its mean."""
COLUMNS = 128
"""Columns after which the columns behind them are corrected."""
ROWS = 1 << 22
"""Elements whose scales are searched at once."""


def group_size_for(inputs: int, most: int) -> int | None:
    """The largest size of a group, `most` at most, that divides a row; None where none does."""
    return next((size for size in GROUPS if size <= most and inputs % size == 0), None)


def int8_rows(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(int8 values (outputs, inputs), scales (outputs, 1) in `dtype`) of an fp32 matrix."""
    scales = int8_scales(weight.abs().amax(dim=1, keepdim=True), dtype)
    return (weight / scales.float()).round_().clamp_(-127, 127).to(torch.int8), scales


def int8_scales(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The scales of rows whose largest magnitudes these are."""
    return _stored(largest / 127, dtype)


def int4_choices(largest: torch.Tensor, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """The scales that are tried for groups whose largest magnitudes these are, the one that spans the group first."""
    widest = largest / ((HIGH - LOW) / 2)
    yield _stored(widest, dtype)
    for share in SHARES:
        yield _stored(widest * share, dtype)


def int4_scales(weight: torch.Tensor, group: int, dtype: torch.dtype, importance: torch.Tensor | None = None) -> torch.Tensor:
    """Scales (outputs, groups) in `dtype` of an fp32 matrix: for each group that with the least squared error of rounding to nearest.

    `importance` (inputs) weighs the errors.
    """
    step = max(1, ROWS // weight.shape[1])
    return torch.cat([_searched(weight[first : first + step], group, dtype, importance) for first in range(0, len(weight), step)])


def _searched(weight: torch.Tensor, group: int, dtype: torch.dtype, importance: torch.Tensor | None) -> torch.Tensor:
    blocks = weight.view(len(weight), -1, group)
    weighed = None if importance is None else importance.view(1, -1, group)
    choices = int4_choices(blocks.abs().amax(dim=-1), dtype)
    best = next(choices)
    least = torch.full(best.shape, math.inf)
    for scales in choices:
        wide = scales.float()[..., None]
        errors = ((blocks / wide).round_().clamp_(LOW, HIGH) * wide - blocks).square_()
        total = (errors if weighed is None else errors * weighed).sum(dim=-1)
        better = total < least
        least, best = torch.where(better, total, least), torch.where(better, scales, best)
    return best


def _stored(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Scales as they are stored: rounded up, so that no value leaves the range, and never zero, which a row of zeros would give."""
    rounded = scales.to(dtype)
    above = torch.nextafter(rounded, torch.full_like(rounded, math.inf))
    return torch.where(rounded.float() < scales, above, torch.where(rounded == 0, torch.finfo(dtype).tiny, rounded))


def int4_nearest(weight: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """int8 values (outputs, inputs) from -8 to 7, each the nearest to its weight."""
    values = (weight.view(*scales.shape, group) / scales.float()[..., None]).round_().clamp_(LOW, HIGH)
    return values.view(weight.shape).to(torch.int8)


def int4_corrected(weight: torch.Tensor, scales: torch.Tensor, group: int, hessian: torch.Tensor) -> torch.Tensor | None:
    """int8 values (outputs, inputs) from -8 to 7; the error of each is corrected in the columns that are rounded after it.

    `hessian` (inputs, inputs) is the mean of xxᵀ over the layer's inputs x. None where it can't be factored.
    """
    order = hessian.diagonal().argsort(descending=True)
    factor = _inverse_factor(hessian[order][:, order])
    if factor is None:
        return None
    left, wide = weight[:, order], scales.float().T.contiguous()
    values = torch.empty_like(left, dtype=torch.int8)
    for first in range(0, left.shape[1], COLUMNS):
        last = min(first + COLUMNS, left.shape[1])
        block, errors = left[:, first:last].T.contiguous(), torch.empty(last - first, len(left))  # a column's values lie side by side
        for place in range(last - first):
            scale, exact = wide[order[first + place] // group], block[place]
            rounded = (exact / scale).round_().clamp_(LOW, HIGH)
            values[:, first + place] = rounded.to(torch.int8)
            errors[place] = (exact - rounded * scale) / factor[first + place, first + place]
            block[place:].addr_(factor[first + place, first + place : last], errors[place], alpha=-1)
        left[:, last:].addmm_(errors.T, factor[first:last, last:], alpha=-1)
    return values[:, order.argsort()]


def _inverse_factor(hessian: torch.Tensor) -> torch.Tensor | None:
    """The upper Cholesky factor of the inverse of a damped hessian; it is damped more where rounding made it indefinite."""
    mean = float(hessian.diagonal().mean())
    if not math.isfinite(mean) or mean <= 0:
        return None
    for damping in (DAMPING, 10 * DAMPING, 100 * DAMPING):
        lower, failed = torch.linalg.cholesky_ex(hessian + torch.eye(len(hessian)) * (damping * mean))
        if int(failed):
            continue
        factor: torch.Tensor
        factor, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not int(failed) and bool(torch.isfinite(factor).all()):
            return factor
    return None
