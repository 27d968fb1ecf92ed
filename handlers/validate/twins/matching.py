"""Which parameter of the merged model a stored weight is: the one whose numbers it has, whatever its name.

Used by the comparison with the twin. A weight may be a parameter, a parameter turned, several below each other (query, key and value in one
product), or rows of one (a product that was taken apart). Nothing is taken from names: a weight that lies in another layer's place is
matched with the layer that it came from, and shows in the outputs. numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from handlers.validate.twins.weights import Stored

PROBES = 24
"""Rows by which weights are compared."""
NEAR = 0.6
"""Smallest cosine between a stored row and the parameter's: 4 bits leave more than 0.97, and rows that have nothing to do with each other
have some 1/√C."""
SURE = 0.9
"""Cosine from which on rows are each other's without looking for nearer ones."""
_AT_ONCE = 256
"""Rows that are compared at once."""
_TOGETHER = 3
"""Rows that follow each other and are looked for together."""


@dataclass(frozen=True)
class Segment:
    """Some rows of a stored weight, and the rows of a parameter that they are."""

    parameter: str
    turned: bool
    """The parameter's columns are meant."""
    first: int
    """Row of the stored weight."""
    start: int
    """Row of the parameter, of its columns where `turned`."""
    count: int


def match(weight: Stored, parameters: Mapping[str, np.ndarray], skipped: Sequence[str] = ()) -> list[Segment] | None:
    """Give the segments that make up a stored weight; None where some rows of it are near no parameter's.

    `parameters`: name → (R, C) or (…, R, C), of which all but the last axis are rows. `skipped`: those that are taken already, which are
    chosen only where no other is as near.
    """
    candidates = _candidates(weight, parameters)
    whole = [(name, turned, matrix) for name, turned, matrix in candidates if matrix.shape == weight.shape]
    probes = np.unique(np.linspace(0, weight.shape[0] - 1, PROBES).round().astype(int))
    rows = weight.part(probes).values
    scored = sorted(
        ((float(np.median(cosines(rows, matrix[probes]))), name not in skipped, name, turned) for name, turned, matrix in whole),
        reverse=True,
    )
    if scored and scored[0][0] >= NEAR:
        equals = [match for match in scored if match[0] >= scored[0][0] - 1e-6]
        _, _, name, turned = max(equals, key=lambda match: match[1])
        return [Segment(name, turned, 0, 0, weight.shape[0])]
    return _pieces(weight, [candidate for candidate in candidates if candidate not in whole])


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of each row with its counterpart; 1 where both are zero."""
    lengths = np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1)
    both = lengths[0] * lengths[1]
    products = np.einsum("rc,rc->r", first, second.astype(np.float32))
    cosine: np.ndarray = np.where(both > 0, products / np.maximum(both, 1e-30), np.maximum(*lengths) == 0)
    return cosine


def _candidates(weight: Stored, parameters: Mapping[str, np.ndarray]) -> list[tuple[str, bool, np.ndarray]]:
    candidates = []
    for name, array in parameters.items():
        if array.ndim < 2:
            continue
        rows = array.reshape(-1, array.shape[-1])
        if rows.shape[1] == weight.shape[1]:
            candidates.append((name, False, rows))
        if rows.shape[0] == weight.shape[1] and array.ndim == 2:
            candidates.append((name, True, rows.T))
    return candidates


def _pieces(weight: Stored, candidates: Sequence[tuple[str, bool, np.ndarray]]) -> list[Segment] | None:
    """Give parameters, or rows of them, below each other."""
    segments: list[Segment] = []
    row, total = 0, weight.shape[0]
    while row < total:
        wanted = weight.part(slice(row, min(total, row + _TOGETHER))).values
        best = _going_on(wanted, segments, candidates, total) or _nearest(wanted, row, total, candidates)
        if best is None:
            return None
        matrix = next(rows for name, turned, rows in candidates if (name, turned) == (best.parameter, best.turned))
        segment = _as_far_as_it_goes(weight, best, matrix)
        if segment is None:
            return None
        segments.append(segment)
        row += segment.count
    return segments


def _nearest(wanted: np.ndarray, row: int, total: int, candidates: Sequence[tuple[str, bool, np.ndarray]]) -> Segment | None:
    """Give where rows that follow each other, from `row` of `total` on, are nearest to a parameter's."""
    best: tuple[float, Segment] | None = None
    for name, turned, matrix in candidates:
        if len(matrix) < len(wanted):
            continue
        # The sum of cosines of so many rows in a row, at each place where they could begin.
        lengths = np.maximum(np.linalg.norm(matrix, axis=1), 1e-30)
        each = (matrix @ wanted.T) / lengths[:, None] / np.maximum(np.linalg.norm(wanted, axis=1), 1e-30)
        starts = len(matrix) - len(wanted) + 1
        sums = sum(each[place : place + starts, place] for place in range(len(wanted))) / len(wanted)
        start = int(np.argmax(sums))
        if best is None or sums[start] > best[0]:
            best = float(sums[start]), Segment(name, turned, row, start, min(total - row, len(matrix) - start))
    return None if best is None or best[0] < NEAR else best[1]


def _going_on(
    wanted: np.ndarray, segments: Sequence[Segment], candidates: Sequence[tuple[str, bool, np.ndarray]], total: int
) -> Segment | None:
    """Give rows that lie behind the last segment, at once or with as many others between: the next expert's. Spares looking everywhere."""
    if not segments:
        return None
    last = segments[-1]
    matrix = next(rows for name, turned, rows in candidates if (name, turned) == (last.parameter, last.turned))
    for start in (last.start + last.count, last.start + 2 * last.count):
        if start + len(wanted) <= len(matrix) and cosines(wanted, matrix[start : start + len(wanted)]).min() >= SURE:
            row = last.first + last.count
            return Segment(last.parameter, last.turned, row, start, min(total - row, len(matrix) - start))
    return None


def _as_far_as_it_goes(weight: Stored, segment: Segment, matrix: np.ndarray) -> Segment | None:
    """Give a segment with the rows that are the parameter's: those that follow may be of another part of it (one expert of many)."""
    places = np.unique(np.linspace(0, segment.count - 1, PROBES).round().astype(int))
    if float(np.median(cosines(weight.part(segment.first + places).values, matrix[segment.start + places]))) >= NEAR:
        return segment
    count = 0
    while count < segment.count:
        size = min(_AT_ONCE, segment.count - count)
        rows = weight.part(slice(segment.first + count, segment.first + count + size)).values
        near = cosines(rows, matrix[segment.start + count : segment.start + count + size]) >= NEAR
        if not near.all():
            count += int(np.argmin(near))
            break
        count += size
    return replace(segment, count=count) if count >= _TOGETHER else None
