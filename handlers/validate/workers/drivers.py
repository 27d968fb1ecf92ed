"""What a worker can be asked about its model, whatever the model is for; one driver for each kind of model.

Called by the worker. Language models are driven by `decoding.py`, encoder-decoders by `translating.py`, encoders by `one_pass.py`.
All use numpy alone, so that every engine is driven by the same code.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from handlers.models.tasks import BY_NAME
from handlers.validate.engines.arrays import largest_difference
from handlers.validate.engines.registry import LAYERWISE, Engine, EngineSpec
from handlers.validate.engines.sentence import SentencePooling, settings_of
from handlers.validate.workers import decoding
from handlers.validate.workers.encoder_pass import EncoderDriver
from handlers.validate.workers.protocol import Decoding, Greedy, Padding, Request, Teacher
from handlers.validate.workers.seq2seq_decoding import Seq2SeqDriver

VERIFIED_STEPS = 64
"""Cached steps that are compared with a pass without a cache: their logits are held in memory."""


class Driver(Protocol):
    """The verbs; every array is fp32. `ids` are a prompt's, a source's or a text's, `targets` what was decoded after it."""

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> np.ndarray:
        """Rows of outputs (P, V) of one pass without a cache; the drivers say which."""

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        """Decode; with `verify` the cached steps are compared with a pass without a cache."""

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        """max |Δ| between a batch that is padded on one side and its rows alone. `continuations` are of one length, or empty."""

    def timed(self, rows: Sequence[Sequence[int]], tokens: int) -> tuple[float, float, int]:
        """Seconds of the first pass over rows of one length, seconds of the work after it, and the tokens of that work for all rows."""


class CausalDriver:
    """Language models; rows: logits at every token of prompt and continuation. Batches are padded on the left alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def rows(self, ids: Sequence[int], targets: Sequence[int], types: Sequence[int] | None) -> np.ndarray:
        return decoding.teacher_forced(self._engine, [*ids, *targets])

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        decoded = decoding.greedy(self._engine, ids, tokens, end_tokens=self._engine.end_tokens if stop else (), least=least)
        if not verify:
            return Decoding(tokens=decoded.tokens)
        errors = decoding.cache_errors(self._engine, ids, decoded, VERIFIED_STEPS)
        return Decoding(tokens=decoded.tokens, cache_error=max(errors), cache_steps=errors)

    def sampled(self, ids: Sequence[int], tokens: int, seed: int) -> list[int]:
        """A continuation that is drawn and not chosen; an end token ends it."""
        return decoding.greedy(self._engine, ids, tokens, choose=decoding.drawn(seed), end_tokens=self._engine.end_tokens, least=1).tokens

    def padding(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, side: str
    ) -> float:
        return decoding.padding_error(self._engine, prompts, continuations)

    def timed(self, rows: Sequence[Sequence[int]], tokens: int) -> tuple[float, float, int]:
        """See `Driver.timed`: the prompts' pass, then single-token greedy steps."""
        return *decoding.timed(self._engine, rows, tokens), len(rows) * tokens


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
        """Rows that are computed when an index is taken: a head has more outputs than there is memory for."""
        tasks = self._pass([*ids, *targets])
        self._forget(tasks)
        return _HeldRows(self._layerwise, tasks[0], len(ids) + len(targets))

    def greedy(self, ids: Sequence[int], tokens: int, *, least: int, stop: bool, verify: bool) -> Decoding:
        (decoded,) = self._results(self._decoding(ids, tokens, least, stop, verify))
        return cast(Decoding, decoded)

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

    def _pass(self, ids: Sequence[int]) -> list[Any]:
        return self._started(("rows", *ids), [lambda: decoding.teacher_forced(self._engine, ids)], lambda size: slice(0), held=True)

    def _padded(self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]) -> list[Any]:
        pairs = [(prompts, continuations), *(([prompt], [row]) for prompt, row in zip(prompts, continuations, strict=True))]
        works = [functools.partial(decoding.forced, self._engine, *pair) for pair in pairs]
        key = ("padding", *(tuple(row) for rows in (prompts, continuations) for row in rows))
        return self._started(key, works, lambda size: slice(size - 1, None))

    def _started(self, key: tuple[Any, ...], works: Sequence[Any], wanted: Any, *, held: bool = False) -> list[Any]:
        """The tasks of a request, which are started unless they were before."""
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


def drive(spec: EngineSpec, engine: Any) -> Driver:
    """The driver for an engine that was loaded from `spec`."""
    kind = BY_NAME[spec.task].kind
    if kind == "seq2seq":
        return Seq2SeqDriver(engine, VERIFIED_STEPS)
    if spec.sentence:
        return EncoderDriver(engine, SentencePooling(settings_of(Path(spec.folder), Path(spec.base) if spec.base else None)))
    if spec.engine.endswith(LAYERWISE):
        return LayerwiseDriver(engine)
    return EncoderDriver(engine) if kind == "encoder" else CausalDriver(engine)
