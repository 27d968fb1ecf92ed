"""Runs what is compared over the same tokens: the twin in PyTorch in one pass, and an artifact as a user's program feeds it.

Used by the comparison with the twin, in a process of its own. What is fed is fed by the engines that the checks use too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from handlers.models.tasks import BY_NAME
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.twins.messages import STEPS, Text
from handlers.validate.workers import drivers
from handlers.validate.workers.seq2seq_decoding import cached


def of_engine(spec: EngineSpec, engine: Any, texts: Sequence[Text]) -> list[dict[str, np.ndarray]]:
    """Give for each text: way of running it → rows (P, V) at `Text.places`."""
    return [{way: rows[text.places(len(rows))] for way, rows in _ways(spec, engine, text).items()} for text in texts]


def of_twin(spec: EngineSpec, engine: Any, texts: Sequence[Text]) -> list[np.ndarray]:
    """Give rows (P, V) of each text at `Text.places` by a model in PyTorch, in one pass."""
    driver, outputs = drivers.drive(spec, engine), list[np.ndarray]()
    for text in texts:
        started = text.start > 0
        rows = engine.step(*_fed(text, 0, len(text.ids)), None)[0][0] if started else driver.rows(text.ids, text.targets, text.types)
        outputs.append(rows[text.places(len(rows))])
    return outputs


def _ways(spec: EngineSpec, engine: Any, text: Text) -> dict[str, np.ndarray]:
    kind = BY_NAME[spec.task].kind
    if kind == "encoder":
        return {"": drivers.drive(spec, engine).rows(text.ids, text.targets, text.types)}
    if kind == "seq2seq":
        return {way: cached(engine, [text.ids], [text.targets], way, "right")[0] for way in engine.ways}
    count = len(text.ids)
    rows, cache = list[np.ndarray](), None
    borders = [0, *range(max(1, count - STEPS), count + 1)]
    for first, last in pairwise(borders):
        logits, cache = engine.step(*_fed(text, first, last), cache)
        rows.append(logits[0])
    return {"": np.concatenate(rows)}


def _fed(text: Text, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give tokens, mask and positions of some tokens of a text, those before them in the cache."""
    places = np.arange(first, last)[None]
    return np.array([text.ids[first:last]]), np.ones((1, last), np.int64), places + text.start
