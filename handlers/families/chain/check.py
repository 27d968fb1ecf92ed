"""Compares a chain of graphs with torch. One graph is in memory at a time: each runs all prompts before the next is opened.

Called by `handlers.families.chain.family`. That works since a graph needs the vectors of the one before it and its own cache,
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from handlers.families.trace_cases import TraceCase, compare, run_in_steps
from handlers.folder.chain_signature import Link
from handlers.graphs.comparison import GraphMismatchError, Opener, open_graph


def largest_error(folder: Path, links: Sequence[Link], cases: Sequence[TraceCase], threads: int, opened: Opener = open_graph) -> float:
    """Largest error of the chain's logits against those of the cases; GraphMismatchError as in `handlers.graphs.comparison`."""
    passed = [case.ids for case in cases]
    for link in links:
        session = opened(folder / link.file, link.signature, threads)
        passed = [run_in_steps(session, link.signature, case, states) for case, states in zip(cases, passed, strict=True)]
        for case, states in zip(cases, passed, strict=True):
            if not np.isfinite(states).all():
                raise GraphMismatchError(f"{link.file} gives values that are not finite (with {case})")
    return max(compare(case, logits) for case, logits in zip(cases, passed, strict=True))
