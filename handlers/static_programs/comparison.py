"""Compares programs of fixed sizes with the model, on the prompts that its ONNX graphs are compared on, row by row.

Called by the stage. Every session is driven by `feeding`, as the users of what is made of a program drive theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from handlers.families.causal import CausalReference
from handlers.families.encoder import EncoderReference
from handlers.families.seq2seq.check import STEPS, Seq2SeqReference
from handlers.graphs.comparison import GraphMismatchError, largest_relative
from handlers.static_programs.description import Described
from handlers.static_programs.published.feeding import Text, crossed, one_pass

Sessions = Mapping[str, Any]


def worst(sessions: Sessions, described: Described, reference: Any, pad: int) -> float:
    """Largest error relative to the largest value of the reference, of all that fits into the programs.

    Raises GraphMismatchError above the tolerance, or where nothing fits.
    """
    if isinstance(reference, CausalReference):
        errors = _causal(sessions["model"], described.length, reference)
    elif isinstance(reference, EncoderReference):
        errors = _encoder(sessions["model"], described, reference, pad)
    else:
        errors = _seq2seq(sessions, described.length, reference, pad)
    largest = list(errors)
    if not largest:
        raise GraphMismatchError(f"no prompt of the comparison fits into {described.length} tokens")
    return max(largest)


def _causal(session: Any, length: int, reference: CausalReference) -> Iterator[float]:
    for case in reference.cases:
        if case.ids.shape[1] > length:
            continue
        for row in range(len(case.ids)):
            real, text, start = case.mask[row].astype(bool), Text(session, length), 0
            logits = []
            for step in case.steps:
                now = slice(start, start + step)
                if kept := case.ids[row, now][real[now]].tolist():
                    logits.append(text.feed(kept))
                start += step
            yield largest_relative(np.concatenate(logits), case.logits[row][real], "logits")


def _encoder(session: Any, described: Described, reference: EncoderReference, pad: int) -> Iterator[float]:
    axes = described.axes("model")
    for case in reference.cases:
        mask = case.feeds["attention_mask"].astype(bool)
        if mask.shape[1] > described.length:
            continue
        for row in range(len(mask)):
            feeds = {name: array[row : row + 1] for name, array in case.feeds.items()}
            for name, actual in one_pass(session, feeds, pad, axes).items():
                wanted = case.answers[name][row : row + 1]
                if name in axes:
                    actual, wanted = actual[:, mask[row]], wanted[:, mask[row]]
                yield largest_relative(actual, wanted, name)


def _seq2seq(sessions: Sessions, length: int, reference: Seq2SeqReference, pad: int) -> Iterator[float]:
    for case in reference.cases:
        if max(case.ids.shape[1], sum(STEPS)) > length:
            continue
        for row in range(len(case.ids)):
            # A source's padding is left out: what the model attends to does not change by it.
            real = case.mask[row].astype(bool)
            source = {"input_ids": case.ids[row : row + 1], "attention_mask": case.mask[row : row + 1]}
            text, start, logits = Text(sessions["decoder"], length, crossed(sessions["encoder"], source, pad)), 0, []
            for step in STEPS:
                logits.append(text.feed(case.tokens[row, start : start + step].tolist()))
                start += step
            assert real.any()
            yield largest_relative(np.concatenate(logits), case.logits[row], "logits")
