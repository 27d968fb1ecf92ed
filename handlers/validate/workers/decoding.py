"""Decoding on top of an engine's `step`: teacher forcing, greedy decoding, left padding, self-consistency, timing.

Called by the workers. numpy alone, so that every engine is driven by the same code.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from handlers.validate.engines.arrays import largest_difference, row_differences
from handlers.validate.engines.registry import Engine
from handlers.validate.workers.stopwatch import Stopwatch


@dataclass(frozen=True)
class Decoded:
    """A greedy continuation: its tokens, the logits (n, V) float32 each was chosen from, and where the time went."""

    tokens: list[int]
    logits: np.ndarray
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    chosen: list[int] = field(default_factory=list)
    """The most likely token of each row of logits, where others than these were forced."""


class Batch:
    """Rows of different lengths, padded on the left, that advance together through one cache."""

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], *, last: bool = False) -> None:
        """`last`: only the prompts' last logits are wanted; an engine that can `prefill` computes no others then."""
        self._engine = engine
        width = max(len(prompt) for prompt in prompts)
        ids = np.zeros((len(prompts), width), dtype=np.int64)
        self._mask = np.zeros((len(prompts), width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = prompt
            self._mask[row, width - len(prompt) :] = 1
        positions = np.maximum(np.cumsum(self._mask, axis=1) - 1, 0)
        if last and hasattr(engine, "prefill"):
            self.prefill, self._cache = engine.prefill(ids, self._mask, positions)
        else:
            self.prefill, self._cache = engine.step(ids, self._mask, positions, None)
        """Logits (B, S, V) of the prompts; rows of padding mean nothing."""

    def copy(self) -> Batch | None:
        """Give the same prompts, to be gone on from beside this one; None where the engine can't copy its cache."""
        if not hasattr(self._engine, "copied"):
            return None
        other = copy.copy(self)
        other._cache = self._engine.copied(self._cache)
        return other

    def again(self) -> Batch | None:
        """As `copy`, but with the same cache where the engine's steps leave a cache as it is."""
        return copy.copy(self) if getattr(self._engine, "keeps_caches", False) else self.copy()

    def advance(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Append tokens (B, K) to the rows; give the logits (B, K, V) after each."""
        ids = np.asarray(tokens, dtype=np.int64)
        positions = self._mask.sum(axis=1, keepdims=True) + np.arange(ids.shape[1])
        self._mask = np.concatenate([self._mask, np.ones_like(ids)], axis=1)
        logits, self._cache = self._engine.step(ids, self._mask, positions, self._cache)
        return logits


def teacher_forced(engine: Engine, ids: Sequence[int]) -> np.ndarray:
    """Give logits (S, V) of all positions of `ids`, in one pass without a cache."""
    logits: np.ndarray = Batch(engine, [ids]).prefill[0]
    return logits


def most_likely(logits: np.ndarray) -> int:
    """Give the plain greedy choice: the first largest of logits (V,)."""
    return int(np.argmax(logits))


DRAWN_FROM = 50
"""Most likely tokens among which one is drawn: the long tail of a small model's distribution is noise."""


def drawn(seed: int) -> Callable[[np.ndarray], int]:
    """Give a choice by the probabilities of the most likely tokens; the same seed draws the same tokens from the same logits."""
    random = np.random.default_rng(seed)

    def choose(logits: np.ndarray) -> int:
        best = np.argpartition(-logits, DRAWN_FROM)[:DRAWN_FROM] if len(logits) > DRAWN_FROM else np.arange(len(logits))
        best = best[np.lexsort((best, -logits[best]))]
        weights = np.exp(logits[best].astype(np.float64) - float(logits[best[0]]))
        return int(best[random.choice(len(best), p=weights / weights.sum())])

    return choose


def sampled(engine: Engine, prompts: Sequence[Sequence[int]], count: int, seed: int, end_tokens: Sequence[int]) -> list[list[int]]:
    """Give what follows each of the prompts, which go on side by side: at most `count` tokens; an end token ends it. The first one is drawn
    with `seed`, the others with the numbers after it."""
    choices, texts = [drawn(seed + row) for row in range(len(prompts))], [list[int]() for _ in prompts]
    batch = Batch(engine, prompts, last=True)
    while len(texts[0]) < count and not all(set(end_tokens).intersection(text) for text in texts):
        logits = batch.advance([text[-1:] for text in texts]) if texts[0] else batch.prefill
        for text, choose, row in zip(texts, choices, logits[:, -1], strict=True):
            text.append(choose(row))
    return [text[: next((length for length, token in enumerate(text, 1) if token in end_tokens), count)] for text in texts]


def greedy(engine: Engine, prompt: Sequence[int], count: int, *, end_tokens: Sequence[int] = (), least: int = 0) -> Decoded:
    """Decode `count` tokens through the cache; an end token ends it early once `least` tokens are there.

    `prefill_seconds` covers the prompt's pass, `decode_seconds` the single-token steps after it.
    """
    started = time.perf_counter()
    batch = Batch(engine, [prompt])
    prefilled = time.perf_counter()
    row = batch.prefill[0, -1]
    tokens: list[int] = []
    rows: list[np.ndarray] = []
    while True:
        rows.append(row)
        tokens.append(most_likely(row))
        if len(tokens) >= count or (tokens[-1] in end_tokens and len(tokens) >= least):
            break
        row = batch.advance([tokens[-1:]])[0, -1]
    return Decoded(tokens, np.stack(rows), prefilled - started, time.perf_counter() - prefilled)


STRIDE = 8
"""Most tokens of a text that are run in one step, where they are known."""
SINGLE = 2
"""Steps of one token before the first and after the last of these."""


@dataclass(frozen=True)
class Row:
    """How a text is decoded beside others."""

    count: int
    """Rows of logits, of each of which a token is chosen."""
    least: int = 0
    end_tokens: Sequence[int] = ()
    known: Sequence[int] = ()
    """The first tokens that will probably be chosen: several of them are run in one step."""
    forced: bool = False
    """The known tokens are taken whatever the logits say."""
    kept: int | None = None
    """Rows of logits that are kept, the first ones; None for all."""


_IDLE = Row(1)
"""Of a text of which nothing is asked."""
COPIED_TOKENS = 1024
"""Most tokens of the prompts of a batch, padding included, whose cache is held twice."""


class Together:
    """Texts that decode as the rows of one padded batch, from their prompts on, any number of times. Nothing is timed."""

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
        self._engine, self._prompts = engine, prompts
        self._begun: Batch | None = None
        """All prompts' pass, where its cache was kept."""

    def decode(self, rows: Sequence[Row | None]) -> list[Decoded | None]:
        """Decode a row greedily for each prompt, None where nothing is asked of it. A row that has ended goes along until all have.

        Rows of which the model chooses another token than the one that was known are decoded once more, beside each other, since what
        came after that token says nothing. None for one that then chooses otherwise than before.
        """
        texts = self._decoded(rows)
        lost = {place: replace(text.row, known=text.tokens) for place, text in texts.items() if text.lost}
        if lost:
            texts |= self._decoded([lost.get(place) for place in range(len(rows))])
        return [None if place not in texts or texts[place].lost else texts[place].decoded for place in range(len(rows))]

    def _decoded(self, rows: Sequence[Row | None]) -> dict[int, _Text]:
        """Give place of each row that is asked → its text."""
        asked = [place for place, row in enumerate(rows) if row is not None]
        batch, places = self._start(asked)
        texts = [_Text(rows[place] or _IDLE) for place in places]
        outputs = batch.prefill
        while True:
            for place in range(outputs.shape[1]):
                for text, logits in zip(texts, outputs[:, place], strict=True):
                    text.take(logits)
            going = [text for text in texts if text.going]
            if not going:
                break
            left = max(text.left for text in going)
            size = 1 if len(going[0].tokens) <= SINGLE else max(1, min(left - SINGLE, *(text.ahead for text in going)))
            outputs = batch.advance([text.next(size) for text in texts])
        return {place: text for place, text in zip(places, texts, strict=True) if rows[place] is not None}

    def _start(self, asked: Sequence[int]) -> tuple[Batch, Sequence[int]]:
        """Give the prompts' pass, and the places of its rows: all where an earlier pass's cache was kept, else those that are asked."""
        batch, self._begun = self._begun, None
        places: Sequence[int] = range(len(self._prompts))
        if batch is None:
            places = asked
            batch = Batch(self._engine, [self._prompts[place] for place in places], last=True)
            batch.prefill = batch.prefill[:, -1:].copy()  # the other positions' logits are large
        if len(places) == len(self._prompts) and len(places) * max(map(len, self._prompts)) <= COPIED_TOKENS:
            self._begun = batch.again()
        return batch, places


class _Text:
    """A row on its way."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.tokens, self.chosen = list[int](), list[int]()
        self._logits: np.ndarray | None = None
        """(rows that may be kept, V), of which the first ones are filled: logits are large, so they are held once."""
        self.going, self.lost = True, False

    @property
    def decoded(self) -> Decoded:
        assert self._logits is not None
        return Decoded(self.tokens, self._logits[: min(len(self.tokens), len(self._logits))], chosen=self.chosen)

    def take(self, logits: np.ndarray) -> None:
        """Choose the next token of logits (V,), unless the text has ended."""
        if not self.going:
            return
        row, place = self.row, len(self.tokens)
        chosen = most_likely(logits)
        self.chosen.append(chosen)
        if place < len(row.known) and chosen != row.known[place]:
            chosen, self.lost = (row.known[place], False) if row.forced else (chosen, True)
        if self._logits is None:
            self._logits = np.empty((row.count if row.kept is None else row.kept, len(logits)), np.float32)
        if place < len(self._logits):
            self._logits[place] = logits
        self.tokens.append(chosen)
        place += 1
        self.going = not (self.lost or place >= row.count or (chosen in row.end_tokens and place >= row.least))

    @property
    def left(self) -> int:
        """Tokens that may still be chosen."""
        return self.row.count - len(self.tokens)

    @property
    def ahead(self) -> int:
        """Tokens that it can be given in one step: the last one chosen, and known ones after it."""
        known = len(self.row.known) - len(self.tokens) + 1
        return STRIDE if known >= self.left else max(1, min(STRIDE, known))

    def next(self, size: int) -> list[int]:
        """Give the last token, and the known ones after it; filled up where nobody will look at what comes out."""
        if not self.going:
            return self.tokens[-1:] * size
        tokens = [self.tokens[-1], *self.row.known[len(self.tokens) :][: size - 1]]
        return tokens + tokens[-1:] * (size - len(tokens))


@dataclass
class Begun:
    """Prompts whose first pass was run, to be gone on from any number of times."""

    prompts: list[list[int]]
    batch: Batch
    seconds: float
    """What that pass took."""


def begin(engine: Engine, prompts: Sequence[Sequence[int]]) -> Begun:
    """Run the prompts' pass."""
    watch = Stopwatch()
    batch = Batch(engine, prompts)
    batch.prefill = batch.prefill[:, -1:].copy()
    return Begun([list(prompt) for prompt in prompts], batch, watch.lap())


def timed(batch: Batch, count: int) -> float:
    """Give seconds of `count` single-token greedy steps after the prompts' pass, in each of which every row advances."""
    watch = Stopwatch()
    rows = batch.prefill[:, -1]
    for _ in range(count):
        rows = batch.advance([[int(token)] for token in np.argmax(rows, axis=-1)])[:, -1]
    return watch.lap()


def cache_errors(engine: Engine, prompt: Sequence[int], decoded: Decoded, steps: int) -> list[float]:
    """Give max |Δlogit| of each of the first `steps` cached steps of `decoded`, beside one pass over the same tokens without a cache.

    The first one compares two passes over the prompt: its cache is empty.
    """
    steps = min(steps, len(decoded.tokens))
    whole = teacher_forced(engine, [*prompt, *decoded.tokens[: steps - 1]])
    return row_differences(whole[len(prompt) - 1 :], decoded.logits[:steps])


def padding_error(engine: Engine, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> float:
    """Give max |Δlogit| between a left-padded batch and each of its rows alone, after the prompt and after each forced token.

    `continuations` are of one length. Rows must differ in length for this to say something about the mask.
    """
    together = forced(engine, prompts, continuations)
    alone = {pair: forced(engine, [pair[0]], [pair[1]])[0] for pair in dict.fromkeys(_pairs(prompts, continuations))}
    return max(largest_difference(together[row], alone[pair]) for row, pair in enumerate(_pairs(prompts, continuations)))


def _pairs(prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(tuple(prompt), tuple(row)) for prompt, row in zip(prompts, continuations, strict=True)]


def forced(engine: Engine, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> np.ndarray:
    """Give logits (B, 1+k, V) after the prompts and after each of k forced tokens."""
    batch = Batch(engine, prompts)
    rows = [batch.prefill[:, -1]]
    rows += [batch.advance([[token] for token in tokens])[:, -1] for tokens in zip(*continuations, strict=True)]
    return np.stack(rows, axis=1)
