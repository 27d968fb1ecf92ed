"""Encoders on top of an engine's `run`: rows of outputs, padding, timing.

Called by the workers through `drivers.py`. numpy alone. Rows are what one text gets: of a classifier its one row of logits, of a
tagger, a masked model or a bare encoder one row for each token, of a sentence-transformers model one vector, of question answering two
rows, for the start and the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from handlers.validate.engines.arrays import largest_difference
from handlers.validate.engines.registry import EncoderEngine
from handlers.validate.workers.protocol import Decoding, LongPass
from handlers.validate.workers.seq2seq_decoding import padded
from handlers.validate.workers.stopwatch import Stopwatch

Pooling = Callable[[np.ndarray, np.ndarray], np.ndarray]
TOKENS_A_PASS = 8
"""A pass over a text is timed for so many tokens that decoding would have been timed for."""


def rows_of(outputs: tuple[np.ndarray, ...], row: int, real: slice) -> np.ndarray:
    """Give the rows (P, V) that the text in row `row` of a batch got, those of padding left out."""
    if len(outputs) == 2:
        return np.stack([output[row, real] for output in outputs])
    (output,) = outputs
    rows: np.ndarray = output[row, real] if output.ndim == 3 else output[row][None]
    return rows


class EncoderDriver:
    """See `handlers.validate.workers.drivers.Driver`. There is nothing to decode."""

    def __init__(self, engine: EncoderEngine, pooling: Pooling | None = None) -> None:
        """`pooling`: vectors (B, S, H) of tokens and their mask (B, S) → vectors (B, D) of texts, where rows are those."""
        self._engine = engine
        self._pooling = pooling

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> np.ndarray:
        return self._batch([ids], None if types is None else [types], "right")[0]

    def _batch(self, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str) -> list[np.ndarray]:
        ids, mask = padded(texts, self._engine.pad, side)
        segments = padded(types, 0, side)[0] if types is not None else np.zeros_like(ids)
        outputs = self._engine.run(ids, mask, segments)
        if self._pooling is not None and outputs[0].ndim == 3:  # else the engine gives vectors of texts already
            outputs = (self._pooling(outputs[0], mask),)
        width = ids.shape[1]
        reals = [slice(0, len(text)) if side == "right" else slice(width - len(text), width) for text in texts]
        return [rows_of(outputs, row, real) for row, real in enumerate(reals)]

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        """See `Driver.greedy`: an encoder gives no text."""
        raise TypeError("an encoder decodes nothing")

    def long(self, request: LongPass) -> np.ndarray:
        """See `Driver.long`: in one pass."""
        kept: np.ndarray = self.rows(request.ids, (), request.types)[request.keep]
        return kept

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        together = self._batch(prompts, types, side)
        keys = [(tuple(text), None if types is None else tuple(types[row])) for row, text in enumerate(prompts)]
        alone = {key: self.rows(key[0], (), key[1]) for key in dict.fromkeys(keys)}
        return max(largest_difference(mine, alone[key]) for mine, key in zip(together, keys, strict=True))

    def timed(self, rows: Sequence[Sequence[int]], tokens: int, *, again: bool = False) -> tuple[float, float, int]:
        """See `Driver.timed`: one pass over the texts, then one for every TOKENS_A_PASS of `tokens`."""
        watch = Stopwatch()
        self._batch(rows, None, "right")
        once = watch.lap()
        passes = max(1, tokens // TOKENS_A_PASS)
        for _ in range(passes):
            self._batch(rows, None, "right")
        return once, watch.lap(), passes * sum(map(len, rows))
