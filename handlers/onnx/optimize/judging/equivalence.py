"""Compares every output of two graphs, except at padding.

Called by `acceptance`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from handlers.graphs.graphset import Port
from handlers.onnx.optimize.judging.random_inputs import RandomInputs

BOUND = 1e-5
"""Largest error in units of the largest value of an output: some ten times what another order of fp32 sums gives in a small model."""


class UnequalError(Exception):
    """A graph computes something else than the one before it."""


def difference(ports: Sequence[Port], before: Sequence[np.ndarray], after: Sequence[np.ndarray], case: RandomInputs) -> float:
    """Largest |after − before| over the largest |before|, over all outputs; UnequalError above BOUND.

    Outputs at padding are not compared, since the output of a token that attends to nothing is undefined; they must be finite.
    """
    return max((_compare(port, old, new, case) for port, old, new in zip(ports, before, after, strict=True)), default=0.0)


def _compare(port: Port, before: np.ndarray, after: np.ndarray, case: RandomInputs) -> float:
    where = f"{port.name} of {case.label}"
    if before.shape != after.shape:
        raise UnequalError(f"{where} has the shape {list(after.shape)} instead of {list(before.shape)}")
    if not np.isfinite(after).all() and np.isfinite(before).all():
        raise UnequalError(f"{where} holds values that are not finite")
    before, after = _where_real(port, before, case), _where_real(port, after, case)
    if before.dtype == bool or np.issubdtype(before.dtype, np.integer):
        if not np.array_equal(before, after):
            raise UnequalError(f"{where} holds other values")
        return 0.0
    scale = max(float(np.abs(before).max(initial=0.0)), 1e-9)
    error = float(np.abs(after - before).max(initial=0.0)) / scale
    if not error <= BOUND:
        raise UnequalError(f"{where} differs by {error:.2g} of its largest value, more than {BOUND:g}")
    return error


def _where_real(port: Port, array: np.ndarray, case: RandomInputs) -> np.ndarray:
    for place, axis in enumerate(port.shape):
        mask = case.real.get(axis) if place and isinstance(axis, str) else None
        if mask is not None and mask.shape == (array.shape[0], array.shape[place]):
            real: np.ndarray = np.moveaxis(array, place, 1)[mask]
            return real
    return array
