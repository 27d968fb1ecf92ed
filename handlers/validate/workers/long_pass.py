"""A long text in pieces, each read by a language model on top of those before it.

Called by the drivers. numpy alone. Of all outputs only a few rows are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from handlers.validate.engines.registry import Engine


def causal(engine: Engine, ids: Sequence[int], pieces: Sequence[int], keep: Sequence[int]) -> np.ndarray:
    """Give logits (len(keep), V) at the positions `keep`, ascending, of a text that a language model reads in steps of `pieces` tokens."""
    if not hasattr(engine, "reserve"):
        return _rows(engine, ids, pieces, keep)
    engine.reserve(len(ids))
    try:
        return _rows(engine, ids, pieces, keep)
    finally:
        engine.reserve(0)


def _rows(engine: Any, ids: Sequence[int], pieces: Sequence[int], keep: Sequence[int]) -> np.ndarray:
    mask, cache, rows = np.ones((1, len(ids)), np.int64), None, list[np.ndarray]()
    for start, stop, wanted in steps(pieces, keep):
        row, positions = np.array([ids[start:stop]], np.int64), np.arange(start, stop, dtype=np.int64)[None]
        if hasattr(engine, "kept"):
            logits, cache = engine.kept(row, mask[:, :stop], positions, cache, wanted)
            rows.append(logits[0])
        else:
            logits, cache = engine.step(row, mask[:, :stop], positions, cache)
            rows.append(logits[0, wanted].copy())
    return np.concatenate(rows)


def steps(pieces: Sequence[int], keep: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (first position, position behind the last one, places in it that are kept) of each piece."""
    start = 0
    for size in pieces:
        yield start, start + size, [place - start for place in keep if start <= place < start + size]
        start += size
