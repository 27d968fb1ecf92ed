"""What the engine of a folder of graphs, or of what was made of them, says of the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from handlers.graphs import graphset
from handlers.models.tasks import BY_NAME
from handlers.validate.engines import registry
from handlers.validate.engines.registry import EngineSpec


def load(engine: str, folder: Path) -> Any:
    """A folder, opened as a check does."""
    return registry.load(EngineSpec(engine=engine, folder=str(folder), task=graphset.read(folder).task, threads=2))


def outputs(engine: str, folder: Path, way: str) -> list[np.ndarray]:
    """What a folder says: in one pass, in steps, for rows of unequal lengths. `way`: how an encoder-decoder is run."""
    model, kind = load(engine, folder), BY_NAME[graphset.read(folder).task].kind
    ids = np.random.default_rng(3).integers(5, 90, (2, 9))
    mask = np.ones_like(ids)
    mask[1, :4] = 0
    try:
        if kind == "encoder":
            mask = mask[:, ::-1]
            arrays = map(np.asarray, model.run(ids, mask, ids * 0))
            return [array[mask.astype(bool)] if array.shape[:2] == ids.shape else array for array in arrays]
        rows = []
        if kind == "seq2seq":
            state = model.start(ids, mask[:, ::-1])
            for tokens in (ids[:, :3], ids[:, 3:4], ids[:, 4:5]):
                logits, state = model.step(tokens, state, way)
                rows.append(logits)
            return rows
        positions, cache = np.maximum(np.cumsum(mask, axis=1) - 1, 0), None
        for start, end in ((0, 6), (6, 8), (8, 9)):
            logits, cache = model.step(ids[:, start:end], mask[:, :end], positions[:, start:end], cache)
            rows.append(logits[mask[:, start:end].astype(bool)])
        beside, _ = model.step(ids[:1, 4:], mask[:1, 4:], positions[:1, 4:] - 4, None)  # a second text beside the first one
        return [*rows, beside]
    finally:
        if engine == "web":
            model.page.close()
