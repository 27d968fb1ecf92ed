"""Compares an encoder-decoder's graphs on disk with torch, step by step, cache included.

Called by the family `seq2seq`. Each way to drive a folder is gone through: the pair of decoders, and the merged one, whose dummy past
of the first step is empty or one token long. What each step gives as cache is checked for shape and, where the encoder's is concerned,
for content. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from handlers.families.seq2seq.ports import DECODER, DECODER_MERGED, DECODER_WITH_PAST, ENCODER, FILES, MASK, STATES, USE_CACHE, ports
from handlers.graphs.comparison import GraphMismatchError, Opener, Session, largest_relative, open_graph

STEPS = (1, 1, 1, 4)
"""Tokens of the calls that follow each other: the start token, decoded tokens, a chunk after a past."""

Arrays = dict[str, np.ndarray]
Sessions = Mapping[str, Session]


@dataclass(frozen=True)
class Seq2SeqCase:
    """One batch and torch's outputs for it.

    `ids` and `mask` are int64 (rows, source tokens), `tokens` int64 (rows, sum(STEPS)), `states` fp32 (rows, source tokens, width),
    `logits` fp32 (rows, sum(STEPS), vocabulary); `cache` holds the encoder's keys and values (rows, heads, source tokens, size) as
    `present.{i}.encoder.key|value`, and the decoder's own after the last token. Without a cache it is empty.
    """

    ids: np.ndarray
    mask: np.ndarray
    tokens: np.ndarray
    states: np.ndarray
    logits: np.ndarray
    cache: Arrays


@dataclass(frozen=True)
class Seq2SeqReference:
    """torch's outputs for a few batches; `layers` is the number of layers with a cache."""

    cases: tuple[Seq2SeqCase, ...]
    layers: int
    merges: bool = True
    """Whether both decoders are one graph, too."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The graphs that are written."""
        if not self.layers:
            return ENCODER, DECODER
        return (ENCODER, DECODER, DECODER_WITH_PAST, *((DECODER_MERGED,) if self.merges else ()))


def verify(folder: Path, reference: Seq2SeqReference, threads: int, opened: Opener = open_graph) -> float:
    """Largest relative error of all graphs in all steps; GraphMismatchError above the tolerance, or for a cache of another shape."""
    sessions = {role: opened(folder / FILES[role], ports(role, reference.layers), threads) for role in reference.roles}
    worst = 0.0
    for case in reference.cases:
        states = sessions[ENCODER].run(None, {"input_ids": case.ids, "attention_mask": case.mask})[0]
        real = case.mask.astype(bool)
        _same_shape(states, case.states.shape, "encoder states")
        worst = max(worst, largest_relative(states[real], case.states[real], "encoder states"))
        fixed = {MASK: case.mask, STATES: states}
        if not reference.layers:
            whole = sessions[DECODER].run(None, {**fixed, "input_ids": case.tokens})[0]
            worst = max(worst, largest_relative(whole, case.logits, "logits"))
            continue
        lengths = (None, 0, 1) if reference.merges else (None,)
        worst = max(worst, *(_Walk(sessions, case, fixed, length).walk() for length in lengths))
    return worst


class _Walk:
    """One way through a case: by the pair of decoders (`dummy` None), or by the merged one with a dummy past of that length."""

    def __init__(self, sessions: Sessions, case: Seq2SeqCase, fixed: Arrays, dummy: int | None) -> None:
        self.sessions, self.case, self.fixed, self.dummy = sessions, case, fixed, dummy

    def walk(self) -> float:
        """Largest relative error of logits and cache."""
        worst, start = 0.0, 0
        cache: Arrays = {}
        for number, step in enumerate(STEPS):
            end = start + step
            role, feeds = self._call(cache, self.case.tokens[:, start:end])
            what = f"logits of {FILES[role]} in step {number + 1}"
            session = self.sessions[role]
            answers = dict(zip((output.name for output in session.get_outputs()), session.run(None, feeds), strict=True))
            worst = max(worst, largest_relative(answers.pop("logits"), self.case.logits[:, start:end], what))
            worst = max(worst, self._check_cache(answers, end, f"in step {number + 1} of {FILES[role]}"))
            cache = {name.replace("present.", "past_key_values.", 1): array for name, array in answers.items()}
            start = end
        return worst

    def _call(self, cache: Arrays, ids: np.ndarray) -> tuple[str, Arrays]:
        feeds = {**self.fixed, "input_ids": ids}
        if self.dummy is None:
            if not cache:
                return DECODER, feeds
            feeds.pop(STATES)
            return DECODER_WITH_PAST, feeds | cache
        return DECODER_MERGED, {**feeds, **(cache or self._dummies(self.dummy)), USE_CACHE: np.array([bool(cache)])}

    def _dummies(self, length: int) -> Arrays:
        """Return a past that the graph must ignore: otherwise its numbers would change the outputs."""
        return {
            name.replace("present.", "past_key_values.", 1): np.full((*array.shape[:2], length, array.shape[3]), 50.0, np.float32)
            for name, array in self.case.cache.items()
        }

    def _check_cache(self, cache: Arrays, tokens: int, where: str) -> float:
        worst = 0.0
        for name, wanted in self.case.cache.items():
            values = cache[name]
            if ".encoder." in name:
                _same_shape(values, wanted.shape, f"{name} {where}")
                real = self.case.mask.astype(bool)
                values, wanted = np.moveaxis(values, 1, 2)[real], np.moveaxis(wanted, 1, 2)[real]
            else:
                wanted = wanted[:, :, :tokens]
                _same_shape(values, wanted.shape, f"{name} {where}")
            worst = max(worst, largest_relative(values, wanted, f"{name} {where}"))
        return worst


def _same_shape(values: np.ndarray, wanted: tuple[int, ...], what: str) -> None:
    if values.shape != wanted:
        raise GraphMismatchError(f"the graph's {what} have the shape {values.shape}, torch's {wanted}")
