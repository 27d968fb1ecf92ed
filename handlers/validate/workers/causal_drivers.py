"""What a worker can be asked about a language model: by requests one after the other, in batches, or layer by layer.

Called by the worker through `drivers.py`. Some models answer many requests in little more time than one, if they are told of them before
(`Ahead`): those that are read layer by layer, and those of which a batch of rows decodes as each row alone does. All use numpy alone.
"""

from __future__ import annotations

import functools
import itertools
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from handlers.validate.engines.arrays import largest_difference, row_differences, same_start
from handlers.validate.engines.registry import Engine
from handlers.validate.workers import decoding, long_pass
from handlers.validate.workers.protocol import Decoding, Greedy, LongPass, Padding, Request, Teacher

VERIFIED_STEPS = 64
"""Cached steps that are compared with a pass without a cache: their logits are held in memory."""
BATCH_BYTES = 256 << 20
"""Most bytes of the logits of a batch's prompts."""
BATCH_TOKENS = 4096
"""Most tokens of a batch, prompts and continuations, padding included: a cache and the activations of a first pass grow with them."""
HELD_BYTES = 512 << 20
"""Most bytes of the logits of continuations that are held until they are asked for; further texts are decoded alone, when they are."""
PROVEN = 1e-3
"""Largest |Δlogit|, in standard deviations of the logits, between a row of a batch and the same text alone."""


class CausalDriver:
    """Language models; rows: logits at every token of prompt and continuation. Batches are padded on the left alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._begun: decoding.Begun | None = None

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> np.ndarray:
        return decoding.teacher_forced(self._engine, [*ids, *targets])

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        decoded = decoding.greedy(self._engine, ids, tokens, end_tokens=self._engine.end_tokens if stop else (), least=least)
        if not verify:
            return Decoding(tokens=decoded.tokens)
        errors = decoding.cache_errors(self._engine, ids, decoded, VERIFIED_STEPS)
        return Decoding(tokens=decoded.tokens, cache_error=max(errors), cache_steps=errors)

    def long(self, request: LongPass) -> np.ndarray:
        """See `Driver.long`."""
        return long_pass.causal(self._engine, request.ids, request.pieces, request.keep)

    def sampled(self, prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[list[int]]:
        """Give continuations that are drawn and not chosen; an end token ends each."""
        try:
            return decoding.sampled(self._engine, prompts, tokens, seed, self._engine.end_tokens)
        except Exception:  # of a model that takes one row alone
            if len(prompts) == 1:
                raise
            return [self.sampled([ids], tokens, seed + row)[0] for row, ids in enumerate(prompts)]

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        return decoding.padding_error(self._engine, prompts, continuations)

    def timed(self, rows: Sequence[Sequence[int]], tokens: int, *, again: bool = False) -> tuple[float, float, int]:
        """See `Driver.timed`: the prompts' pass, then single-token greedy steps."""
        begun = self._begun if again else None
        if begun is None or begun.prompts != [list(row) for row in rows]:
            begun = self._begun = decoding.begin(self._engine, rows)
        if (batch := begun.batch.copy()) is None:
            self._begun, batch = None, begun.batch
        return begun.seconds, decoding.timed(batch, tokens), len(rows) * tokens


@dataclass(frozen=True)
class _Expected:
    """A text of a batch, and the request that will ask for it; None of a row that a padded batch is asked for."""

    prompt: list[int]
    row: decoding.Row
    request: Greedy | None = None


class BatchingDriver(CausalDriver):
    """Language models that decode several texts as the rows of one padded batch, in little more time than one text takes.

    What a row of a batch says counts only where the model says it of the row alone: each cached step of it is compared with a pass
    over that text without cache and padding. Where they are apart, the text is decoded again, alone. So a model that does not honour
    its padding, or whose rows affect each other, gives the answers that it gives without a batch.
    """

    passes = 0

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._batching = engine
        self._alone = not getattr(engine, "same_kernels", False)
        """A deployment runs one text at a time, by kernels for a single row: one verified text is run so too."""
        self._expected: list[Greedy] = []
        self._padding: list[Padding] = []
        self._decoded: dict[tuple[Any, ...], tuple[decoding.Decoded, decoding.Decoded]] = {}
        """Request → what was decoded along the tokens that it names, and what the model itself goes on with; usually the same."""
        self._padded: dict[tuple[tuple[int, ...], tuple[int, ...]], np.ndarray] = {}
        """(prompt, k tokens after it) → logits (1+k, V) of a row of a batch whose rows have unlike lengths."""
        self._proven: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}
        """Prompt → tokens of a row and max |Δlogit| of each of its steps from the row alone."""
        self._rows: dict[tuple[Any, ...], int] = {}
        """Request → rows of the batch in which it was decoded."""
        self._far: float | None = None
        """max |Δlogit| of the last row of a batch that was not near."""
        self._last: tuple[tuple[Any, ...], list[int], np.ndarray] | None = None
        """State of the model, tokens and logits of the last pass without a cache."""

    def expect(self, request: Request[Any]) -> None:
        """Take a request that will be asked later into the next batch. Passes are computed when they are asked for."""
        if isinstance(request, Greedy):
            self._expected.append(request)
        elif isinstance(request, Padding) and request.side == "left" and len(request.batch.continuations[0]) > 1:
            self._padding.append(request)  # after one token alone no text takes a step of its own but that check's

    def advance(self) -> bool:
        """Decode everything that is expected; False, since nothing is left to do then."""
        expected, padding = self._without_longest(self._expected), self._padding
        self._expected, self._padding, self._last = [], [], None
        plain, bare = ([request for request in expected if request.bare == bare] for bare in (False, True))
        try:
            self._run(plain, [pair for request in padding for pair in zip(request.batch.prompts, request.batch.continuations, strict=True)])
            if bare:
                with self._batching.without_adapter():
                    self._run(bare, [])
        except Exception:  # whatever is wrong with a batch, or with the model: it is found when its rows are asked for alone
            traceback.print_exc()
        return False

    def _without_longest(self, requests: list[Greedy]) -> list[Greedy]:
        """Give the requests without the longest text that is verified, however often it is asked for, if that is to be run alone."""
        verified = [request for request in requests if request.verify]
        if not self._alone or not verified:
            return requests
        self._alone = False
        longest = max(verified, key=lambda request: len(request.ids)).ids  # some faults begin behind some length
        return [request for request in requests if not (request.verify and request.ids == longest)]

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> np.ndarray:
        state, tokens = self._state(), [*ids, *targets]
        if self._last is None or self._last[:2] != (state, tokens):
            self._last = None  # logits are large: those of one pass at a time
            self._last = (state, tokens, decoding.teacher_forced(self._engine, tokens))
        return self._last[2]

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        key = (self._state(), *ids, "", tokens, least, stop)
        along, own = self._decoded.pop(key, (None, None))
        self._far = None
        errors = None if along is None else self._apart(ids, along, needed=verify)
        if along is None or own is None or errors is None or self._is_doubtful(ids, along, own):
            decoding_alone = super().greedy(ids, tokens, least=least, stop=stop, verify=verify)
            return decoding_alone.model_copy(update={"batch_error": self._far, "batch_rows": self._rows.get(key)})
        if not verify:
            return Decoding(tokens=own.tokens)
        errors = errors[:VERIFIED_STEPS]
        return Decoding(tokens=own.tokens, cache_error=max(errors), cache_steps=errors)

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        if side == "left" and (errors := self._padding_errors(list(zip(prompts, continuations, strict=True)))) is not None:
            return max(errors)
        return super().padding(prompts, continuations, types, side)

    def _padding_errors(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float] | None:
        """Give max |Δlogit| of each step of rows of a batch that was run already, from passes over the rows alone; None where one of the
        rows was in no batch, or can't be trusted."""
        errors = list[float]()
        for prompt, row in pairs:
            logits = self._padded.get((tuple(prompt), tuple(row)))
            if logits is None:
                return None
            tokens, known = self._proven.get(tuple(prompt), ([], []))
            if tokens[: len(row)] == list(row) and len(known) > len(row):
                errors += known[: len(row) + 1]
                continue
            whole = self.rows(prompt, row, None)[len(prompt) - 1 :]
            if not self._near(whole, logits):
                return None
            errors += row_differences(whole, logits)
        return errors

    def _state(self) -> tuple[Any, ...]:
        return getattr(self._batching, "bare", False), getattr(self._batching, "values", "original")

    def _run(self, asked: Sequence[Greedy], padded: Sequence[tuple[list[int], list[int]]]) -> None:
        """Decode requests in batches whose logits are of a bounded size, and beside them the rows (prompt, forced tokens) of padded
        batches whose prompts are not decoded anyway."""
        ends = tuple(self._engine.end_tokens)
        texts = [
            _Expected(request.ids, decoding.Row(request.tokens, known=request.along, forced=True), request) if _goes_along(request)
            else _Expected(request.ids, decoding.Row(request.tokens, request.least, ends if request.stop else (), request.draft), request)
            for request in self._held(asked)
        ]  # fmt: skip
        texts += [
            _Expected(prompt, decoding.Row(len(row) + 1, known=row, forced=True))
            for prompt, row in padded
            if not any(text.prompt == prompt and text.row.count > len(row) for text in texts)
        ]
        for batch in self._batches(texts):
            if len(batch) == 1:
                continue  # a batch of one row is no batch
            beside = decoding.Together(self._engine, [text.prompt for text in batch])
            answers = beside.decode([text.row for text in batch])
            if len({len(text.prompt) for text in batch}) > 1:
                self._remember(batch, answers, padded)
            self._keep(batch, answers, beside)

    def _held(self, asked: Sequence[Greedy]) -> Sequence[Greedy]:
        """Give the first of the requests whose logits may be held."""
        totals = itertools.accumulate(4 * (self._engine.vocabulary or 1) * request.tokens for request in asked)
        return [request for request, total in zip(asked, totals, strict=True) if total <= HELD_BYTES]

    def _batches(self, texts: Sequence[_Expected]) -> Iterator[Sequence[_Expected]]:
        """Yield the texts in batches of much the same number, whose prompts' logits are of a bounded size."""
        longest = max((len(text.prompt) for text in texts), default=1)
        width = longest if getattr(self._engine, "logits_held", True) else decoding.STRIDE
        tokens = longest + max((text.row.count for text in texts), default=1)
        most = max(1, min(BATCH_BYTES // (4 * (self._engine.vocabulary or 1) * width), BATCH_TOKENS // tokens))
        count = -(-len(texts) // most)
        yield from (texts[number * len(texts) // count : (number + 1) * len(texts) // count] for number in range(count))

    def _remember(
        self, batch: Sequence[_Expected], answers: Sequence[decoding.Decoded | None], padded: Sequence[tuple[list[int], list[int]]]
    ) -> None:
        """Keep the logits of rows of padded batches that were run in a batch of rows of unlike lengths."""
        for done, decoded in zip(batch, answers, strict=True):
            for prompt, row in padded:
                if decoded is not None and prompt == done.prompt and row == decoded.tokens[: len(row)] and len(decoded.logits) > len(row):
                    self._padded[(tuple(prompt), tuple(row))] = decoded.logits[: len(row) + 1].copy()

    def _keep(self, batch: Sequence[_Expected], answers: Sequence[decoding.Decoded | None], beside: decoding.Together) -> None:
        """Keep what was decoded; where the model departs from the tokens that a request names, also what it goes on with itself."""
        departed = dict[int, tuple[Greedy, decoding.Decoded]]()
        rows = list[decoding.Row | None]([None] * len(batch))
        for place, (text, decoded) in enumerate(zip(batch, answers, strict=True)):
            if text.request is None or decoded is None:
                continue
            self._rows[self._key(text.request)] = len(batch)
            own = _until_departure(decoded)
            if len(own) == len(decoded.tokens):
                self._decoded[self._key(text.request)] = decoded, replace(decoded, tokens=own)
                continue
            departed[place] = text.request, decoded
            known = text.request.draft if text.request.draft[: len(own)] == own else own
            rows[place] = decoding.Row(text.row.count, known=known, kept=len(own))
        more = beside.decode(rows) if departed else []
        for place, (request, decoded) in departed.items():
            if (itself := more[place]) is not None:
                self._decoded[self._key(request)] = decoded, itself

    def _key(self, request: Greedy) -> tuple[Any, ...]:
        return self._state(), *request.ids, "", request.tokens, request.least, request.stop

    def _apart(self, ids: Sequence[int], decoded: decoding.Decoded, *, needed: bool) -> list[float] | None:
        """Give max |Δlogit| of each step of a row from a pass over the same tokens alone; None where the row can't be trusted.

        Where the steps themselves are not `needed`, the last pass is enough if it shares the row's prompt: a base decodes as its adapted
        model does, of which each step was compared.
        """
        tokens = [*ids, *decoded.tokens]
        shared = 0
        if self._last is not None and self._last[0] == self._state():
            shared = same_start(tokens, self._last[1])
        if needed or shared < len(ids):
            whole, shared = self.rows(ids, decoded.tokens, None), len(tokens)
        else:
            assert self._last is not None
            whole = self._last[2]
        steps = min(shared - len(ids) + 1, len(decoded.logits))
        rows, logits = whole[len(ids) - 1 :][:steps], decoded.logits[:steps]
        if not self._near(rows, logits):
            self._far = largest_difference(rows, logits)
            self._padded.clear()  # a batch that is wrong in one row says nothing of its others: padding is found out about by itself
            return None
        errors = row_differences(rows, logits)
        if needed and not self._state()[0]:
            self._proven[tuple(ids)] = (decoded.tokens, errors)
        return errors

    def _is_doubtful(self, ids: Sequence[int], along: decoding.Decoded, own: decoding.Decoded) -> bool:
        """Tell whether what the model goes on with itself can't be trusted, where its row is not the one whose steps were compared."""
        return own.logits is not along.logits and self._apart(ids, own, needed=False) is None

    def _near(self, rows: np.ndarray, logits: np.ndarray) -> bool:
        return largest_difference(rows, logits) <= PROVEN * float(rows.std())


def _goes_along(request: Greedy) -> bool:
    """Tell whether its steps are verified along tokens that it names: as many as it asks for."""
    return len(request.along) == request.tokens and request.verify and not request.stop


def _until_departure(decoded: decoding.Decoded) -> list[int]:
    """Give what the model itself goes on with, up to the first token that is another one than was taken."""
    return decoded.chosen[: same_start(decoded.chosen, decoded.tokens) + 1]


class LayerwiseDriver(CausalDriver):
    """Language models that are read layer by layer: each request is a task, and all tasks pass through the model together.

    What is asked is answered at once if it was expected, and else by passes of its own.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._layerwise = engine
        self._tasks: dict[tuple[Any, ...], list[Any]] = {}

    def expect(self, request: Request[Any]) -> None:
        """Start the work on a request that will be asked later, with the adapter as it is now."""
        if isinstance(request, Greedy):
            self._decoding(request.ids, request.tokens, request.least, request.stop, request.verify)
        elif isinstance(request, Teacher):
            self._pass([*request.ids, *request.targets])
        elif isinstance(request, Padding):
            self._padded(request.batch.prompts, request.batch.continuations)
        elif isinstance(request, LongPass):
            self._long(request)

    def advance(self) -> bool:
        """Go once through the model with all tasks; False where there is nothing more to do."""
        more: bool = self._layerwise.lockstep.sweep()
        return more

    @property
    def passes(self) -> int:
        """Times that the weights were read."""
        passes: int = self._layerwise.lockstep.sweeps + 1
        return passes

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> Any:
        """Give rows that are computed when an index is taken: a head has more outputs than there is memory for."""
        tasks = self._pass([*ids, *targets])
        self._forget(tasks)
        return _HeldRows(self._layerwise, tasks[0], len(ids) + len(targets))

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        (decoded,) = self._results(self._decoding(ids, tokens, least, stop, verify))
        return cast(Decoding, decoded)

    def long(self, request: LongPass) -> np.ndarray:
        (rows,) = self._results(self._long(request))
        return cast(np.ndarray, rows)

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        together, *alone = self._results(self._padded(prompts, continuations))
        return max(largest_difference(mine, theirs[0]) for mine, theirs in zip(together, alone, strict=True))

    def _decoding(self, ids: Sequence[int], tokens: int, least: int, stop: bool, verify: bool) -> list[Any]:
        def work() -> Decoding:
            return CausalDriver.greedy(self, ids, tokens, least=least, stop=stop, verify=verify)

        # Of the prompt the last row, of a step the only one, and of the pass that verifies all from the prompt's last one on.
        return self._started(("greedy", *ids, "", tokens, least, stop, verify), [work], lambda size: slice(min(len(ids), size) - 1, None))

    def _long(self, request: LongPass) -> list[Any]:
        def work() -> np.ndarray:
            return long_pass.causal(self._engine, request.ids, request.pieces, request.keep)

        key = ("long", *request.ids, "", *request.pieces, "", *request.keep)
        return self._started(key, [work], lambda size: slice(None))  # no other rows come to the head than those that are kept

    def _pass(self, ids: Sequence[int]) -> list[Any]:
        return self._started(("rows", *ids), [lambda: decoding.teacher_forced(self._engine, ids)], lambda size: slice(0), held=True)

    def _padded(self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> list[Any]:
        pairs = [(prompts, continuations), *(([prompt], [row]) for prompt, row in zip(prompts, continuations, strict=True))]
        works = [functools.partial(decoding.forced, self._engine, *pair) for pair in pairs]
        key = ("padding", *(tuple(row) for rows in (prompts, continuations) for row in rows))
        return self._started(key, works, lambda size: slice(size - 1, None))

    def _started(self, key: tuple[Any, ...], works: Sequence[Any], wanted: Any, *, held: bool = False) -> list[Any]:
        """Give the tasks of a request, which are started unless they were before."""
        engine = self._layerwise
        key = (*key, engine.bare, engine.values)
        if key not in self._tasks:
            self._tasks[key] = [engine.start(work, wanted, engine.final if held else None) for work in works]
        return self._tasks[key]

    def _forget(self, tasks: list[Any]) -> None:
        """Let go of what was asked for: its outputs are large."""
        self._tasks = {key: others for key, others in self._tasks.items() if others is not tasks}

    def _results(self, tasks: list[Any]) -> list[Any]:
        self._layerwise.lockstep.finish(tasks)
        self._forget(tasks)
        return [task.result() for task in tasks]


class _HeldRows:
    """The rows of a pass that waits before the last part of the model until it is known which are wanted."""

    def __init__(self, engine: Any, task: Any, count: int) -> None:
        self._engine, self._task, self._count = engine, task, count
        self.shape = (count, engine.vocabulary)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, keep: Any) -> np.ndarray:
        self._task.tag.wanted = lambda size: keep
        self._task.held = None
        self._engine.lockstep.finish([self._task])
        rows: np.ndarray = self._task.result()[keep]
        return rows
