"""Encoder-decoders on top of an engine's `start` and `step`: teacher forcing, greedy decoding, padding, self-consistency, timing.

Called by the workers through `drivers.py`. numpy alone. An engine may know several *ways* of
running its decoder (two graphs, or one merged graph): each is run, and each must give what the first one gives without a cache.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from handlers.validate.engines.arrays import largest_difference, row_differences
from handlers.validate.engines.registry import Seq2SeqEngine
from handlers.validate.workers.decoding import Decoded
from handlers.validate.workers.long_pass import steps
from handlers.validate.workers.protocol import Decoding, LongPass
from handlers.validate.workers.stopwatch import Stopwatch


class Translation:
    """Sources of different lengths whose targets advance together through one cache."""

    def __init__(self, engine: Seq2SeqEngine, sources: Sequence[Sequence[int]], way: str, side: str = "right") -> None:
        self._engine = engine
        self._way = way
        ids, mask = padded(sources, engine.pad, side)
        self._state = engine.start(ids, mask)

    def advance(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Append (B, T) tokens; give the logits (B, T, V) after each."""
        logits, self._state = self._engine.step(np.asarray(tokens, dtype=np.int64), self._state, self._way)
        return logits


def padded(rows: Sequence[Sequence[int]], pad: int, side: str) -> tuple[np.ndarray, np.ndarray]:
    """Give token ids and mask (B, S) int64 of rows that are filled up on "right" or "left"."""
    width = max(len(row) for row in rows)
    ids = np.full((len(rows), width), pad, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for number, row in enumerate(rows):
        real = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[number, real] = row
        mask[number, real] = 1
    return ids, mask


def teacher_forced(engine: Seq2SeqEngine, source: Sequence[int], targets: Sequence[int], way: str) -> np.ndarray:
    """Give logits (T, V) of the choice of each of T targets, in one pass without a cache."""
    logits: np.ndarray = Translation(engine, [source], way).advance([[engine.rules.start, *targets[:-1]]])[0]
    return logits


def cached(engine: Seq2SeqEngine, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], way: str, side: str) -> np.ndarray:
    """Give logits (B, T, V) of the choice of each target, one step after another through the cache. `targets` are of one length."""
    run = Translation(engine, sources, way, side)
    columns = [[engine.rules.start] * len(sources), *zip(*(row[:-1] for row in targets), strict=True)]
    return np.concatenate([run.advance([[token] for token in column]) for column in columns], axis=1)


def greedy(engine: Seq2SeqEngine, source: Sequence[int], count: int, *, stop: bool, least: int = 0) -> Decoded:
    """Decode `count` tokens by the engine's rules through the cache of its first way.

    An end token ends it early with `stop`, once `least` tokens are there.
    """
    rules = engine.rules
    started = time.perf_counter()
    run = Translation(engine, [source], engine.ways[0])
    row = run.advance([[rules.start]])[0, -1]
    prefilled = time.perf_counter()
    tokens: list[int] = []
    rows: list[np.ndarray] = []
    while True:
        rows.append(row)
        tokens.append(rules.choose(row, len(tokens)))
        if len(tokens) >= count or (stop and tokens[-1] in rules.ends and len(tokens) >= least):
            break
        row = run.advance([tokens[-1:]])[0, -1]
    return Decoded(tokens, np.stack(rows), prefilled - started, time.perf_counter() - prefilled)


class Seq2SeqDriver:
    """See `handlers.validate.workers.drivers.Driver`; rows: the logits that each target token is chosen from."""

    def __init__(self, engine: Seq2SeqEngine, verified_steps: int) -> None:
        self._engine = engine
        self._verified = verified_steps

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> np.ndarray:
        return teacher_forced(self._engine, ids, targets, self._engine.ways[0])

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        """See `Driver.greedy`; `cache_errors` has the error of each way, whose largest is `cache_error`."""
        decoded = greedy(self._engine, ids, tokens, stop=stop, least=least)
        if not verify:
            return Decoding(tokens=decoded.tokens)
        errors, by_step = self._cache_errors(ids, decoded)
        return Decoding(tokens=decoded.tokens, cache_error=max(errors.values()), cache_errors=errors, cache_steps=by_step)

    def _cache_errors(self, ids: Sequence[int], decoded: Decoded) -> tuple[dict[str, float], list[float]]:
        """Give for each way max |Δlogit| of its cached steps, and of its own pass without a cache, against the first way's such pass; and
        of the first way that of each step."""
        engine, steps = self._engine, min(self._verified, len(decoded.tokens))
        tokens = decoded.tokens[:steps]
        whole = teacher_forced(engine, ids, tokens, engine.ways[0])
        by_step = row_differences(whole, decoded.logits[:steps])
        errors = {engine.ways[0]: max(by_step)}
        for way in engine.ways[1:]:
            errors[way] = max(
                largest_difference(whole, teacher_forced(engine, ids, tokens, way)),
                largest_difference(whole, cached(engine, [ids], [tokens], way, "right")[0]),
            )
        return errors, by_step

    def long(self, request: LongPass) -> np.ndarray:
        """See `Driver.long`: a long source, and a long target on top of it."""
        rows, tokens = list[np.ndarray](), [self._engine.rules.start, *request.targets[:-1]]
        for way in self._engine.ways:
            run = Translation(self._engine, [request.ids], way)
            rows += [run.advance([tokens[start:stop]])[0, kept].copy() for start, stop, kept in steps(request.pieces, request.keep)]
        return np.concatenate(rows)

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        """See `Driver.padding`; the sources are padded, the targets are not."""
        return max(self._padding(prompts, continuations, side, way) for way in self._engine.ways)

    def _padding(self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], side: str, way: str) -> float:
        together = cached(self._engine, prompts, continuations, way, side)
        pairs = [(tuple(prompt), tuple(row)) for prompt, row in zip(prompts, continuations, strict=True)]
        alone = {pair: cached(self._engine, [pair[0]], [pair[1]], way, side)[0] for pair in dict.fromkeys(pairs)}
        return max(largest_difference(together[row], alone[pair]) for row, pair in enumerate(pairs))

    def timed(self, rows: Sequence[Sequence[int]], tokens: int, *, again: bool = False) -> tuple[float, float, int]:
        """See `Driver.timed`: the sources' encoding and the first target token, then the tokens after it; no end token ends it."""
        rules = self._engine.rules
        watch = Stopwatch()
        run = Translation(self._engine, rows, self._engine.ways[0])
        last = run.advance([[rules.start]] * len(rows))[:, -1]
        prefill = watch.lap()
        for place in range(tokens):
            last = run.advance([[rules.choose(row, place)] for row in last])[:, -1]
        return prefill, watch.lap(), len(rows) * tokens
