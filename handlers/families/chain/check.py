"""Compares a chain of graphs with torch. One graph is in memory at a time: each runs all prompts before the next is opened.

Called by `handlers.families.chain.family`. That works since a graph needs the vectors of the one before it and its own cache,
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from handlers.families.trace_cases import TraceCase
from handlers.folder.chain_signature import BlockSignature, Link
from handlers.graphs.comparison import GraphMismatchError, largest_relative, open_graph


def largest_error(folder: Path, links: Sequence[Link], cases: Sequence[TraceCase], threads: int) -> float:
    """Largest error of the chain's logits against those of the cases; GraphMismatchError as in `handlers.graphs.comparison`."""
    passed = [case.ids for case in cases]
    for link in links:
        session = open_graph(folder / link.file, link.signature, threads)
        passed = [run_in_steps(session, link, case, states) for case, states in zip(cases, passed, strict=True)]
        for case, states in zip(cases, passed, strict=True):
            if not np.isfinite(states).all():
                raise GraphMismatchError(f"{link.file} gives values that are not finite (with {case})")
    return max(_compared(case, logits) for case, logits in zip(cases, passed, strict=True))


def run_in_steps(session: onnxruntime.InferenceSession, link: Link, case: TraceCase, states: np.ndarray) -> np.ndarray:
    """One graph's first output for all tokens of a case, fed in its steps; `states` (rows, tokens, …) is the first input."""
    signature, answers, start = link.signature, [], 0
    sizes = signature.cache_sizes if isinstance(signature, BlockSignature) else ()
    cache = [np.zeros((len(states), heads, 0, size), np.float32) for heads, size in sizes]
    for step in case.steps:
        end = start + step
        feeds = {signature.inputs[0]: np.ascontiguousarray(states[:, start:end])}
        if isinstance(signature, BlockSignature):
            feeds["attention_mask"] = case.mask[:, :end]
            if signature.position_ids:
                feeds["position_ids"] = case.positions[:, start:end]
            feeds.update(zip(signature.past, cache, strict=True))
        answer, *cache = session.run(None, feeds)
        answers.append(answer)
        start = end
    return np.concatenate(answers, axis=1)


def _compared(case: TraceCase, logits: np.ndarray) -> float:
    real = case.mask.astype(bool)
    try:
        return largest_relative(logits[real], case.logits[real], "logits")
    except GraphMismatchError as error:
        raise GraphMismatchError(f"{error} (with {case})") from None
