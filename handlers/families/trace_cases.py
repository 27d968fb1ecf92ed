"""The prompts on which a decoder's graph is compared with torch: the shapes at which a branch that was traced one way goes the other.

Called by the causal families. A tracer that takes an empty past, a single token, one row or a mask of ones for granted gives a graph
that fails on one of these. All together they are about a hundred tokens. Lengths at which a model changes its computation (a sliding
window, a rotary embedding that is rescaled) are tried too where they are short enough for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from daemon.contract.values import Json
from handlers.graphs.comparison import GraphMismatchError, Session, largest_relative
from handlers.graphs.signature import CausalSignature, Signature

LONGEST = 300
"""Tokens of the longest prompt that is tried: a few thousand would need gigabytes for the logits alone."""


@dataclass(frozen=True)
class TraceCase:
    """One batch, fed in `steps`, and what torch says when it is fed so.

    `ids`, `mask` and `positions` are int64 (rows, tokens), `logits` fp32 (rows, tokens, vocabulary).
    """

    steps: tuple[int, ...]
    ids: np.ndarray
    mask: np.ndarray
    positions: np.ndarray
    logits: np.ndarray

    def rows(self) -> list[TraceCase]:
        """Return the same, one row at a time."""
        return [
            TraceCase(
                self.steps, self.ids[row : row + 1], self.mask[row : row + 1], self.positions[row : row + 1], self.logits[row : row + 1]
            )
            for row in range(len(self.ids))
        ]

    def __str__(self) -> str:
        padding = ", padded on the left" if (self.mask[:, 0] == 0).any() else ", padded on the right" if (self.mask == 0).any() else ""
        return f"a batch of {len(self.ids)}{padding}, fed {' + '.join(map(str, self.steps))} tokens"


@dataclass(frozen=True)
class TraceShape:
    """A batch before its tokens are drawn; the padding is the second row's, or the only one's."""

    rows: int
    steps: tuple[int, ...]
    left: int = 0
    right: int = 0


SHAPES: tuple[TraceShape, ...] = (
    TraceShape(3, (7, 1, 3), left=2),  # a prefill, a token, a chunk after a past
    TraceShape(1, (1, 1, 1)),  # one token into an empty past
    TraceShape(3, (7,), right=3),
    TraceShape(1, (23, 1, 9)),  # longer than anything that is traced, and so is its past
    TraceShape(2, (1, 7, 1), left=1),
)


def thresholds(config: Any) -> dict[int, str]:
    """Length → what a model does otherwise beyond it, as its configuration says."""
    settings: Json = config.get_text_config().to_dict()
    lengths: dict[int, str] = {}
    window = settings.get("sliding_window")
    if isinstance(window, int) and settings.get("use_sliding_window", True):
        lengths[window] = "the sliding window"
    rope = settings.get("rope_parameters")
    if isinstance(rope, Mapping) and ("dynamic" in str(rope.get("rope_type")) or rope.get("rope_type") == "longrope"):
        length = rope.get("original_max_position_embeddings") or settings.get("max_position_embeddings")
        if isinstance(length, int):
            lengths[length] = "the rotary embedding's original length"
    return lengths


def make_cases(
    model: Any, vocabulary: int, *, positions: bool, cache: bool = True, longest: int = LONGEST, brief: bool = False
) -> tuple[tuple[TraceCase, ...], str]:
    """Run the model over all shapes of at most `longest` tokens, without a cache if `cache` is false; also what was too long to be tried.
    `brief`: over the first shape and those beyond a length alone.

    With a cache the model is fed as generation feeds it, through the cache of its own making.
    """
    shapes = [shape for shape in SHAPES[: 1 if brief else None] if sum(shape.steps) <= longest]
    untested = []
    # What goes beyond comes last: some rotary embeddings remember the longest length that they saw.
    for length, what in sorted(thresholds(model.config).items()):
        if length + 5 <= min(longest, LONGEST):
            shapes.append(TraceShape(1, (length + 3, 1, 1)))
        else:
            untested.append(f"beyond {length} tokens ({what})")
    generator = torch.Generator().manual_seed(7)
    cases = tuple(_case(model, shape, vocabulary, generator, positions=positions, cache=cache) for shape in shapes)
    return cases, " and ".join(untested)


def _case(model: Any, shape: TraceShape, vocabulary: int, generator: torch.Generator, *, positions: bool, cache: bool) -> TraceCase:
    # Without a cache everything is one step; a single token is tried too, since some branches depend on it.
    steps = shape.steps if cache else (1 if shape == SHAPES[1] else sum(shape.steps),)
    ids = torch.randint(0, vocabulary, (shape.rows, sum(steps)), generator=generator)
    mask = torch.ones_like(ids)
    row = min(1, shape.rows - 1)
    mask[row, : shape.left] = 0
    mask[row, ids.shape[1] - shape.right :] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    logits, past, start = [], None, 0
    with torch.inference_mode():
        for step in steps:
            end = start + step
            extra = {"position_ids": places[:, start:end]} if positions else {}
            extra |= {"past_key_values": past} if past is not None else {}
            output = model(input_ids=ids[:, start:end], attention_mask=mask[:, :end], use_cache=cache, **extra)
            past, start = output.past_key_values if cache else None, end
            logits.append(output.logits.float().numpy())
    return TraceCase(steps, ids.numpy(), mask.numpy(), places.numpy(), np.concatenate(logits, axis=1))


def run_in_steps(session: Session, signature: Signature, case: TraceCase, states: np.ndarray) -> np.ndarray:
    """A graph's first output for all tokens of a case, fed in its steps with the graph's own cache; `states` (rows, tokens, …) is the first
    input."""
    cached = signature if isinstance(signature, CausalSignature) else None
    cache = [np.zeros((len(states), heads, 0, size), np.float32) for heads, size in cached.cache_sizes] if cached else []
    answers, start = [], 0
    for step in case.steps:
        end = start + step
        feeds = {signature.inputs[0]: np.ascontiguousarray(states[:, start:end])}
        if cached:
            feeds["attention_mask"] = case.mask[:, :end]
            if cached.position_ids:
                feeds["position_ids"] = case.positions[:, start:end]
            feeds.update(zip(cached.past, cache, strict=True))
        answer, *cache = session.run(None, feeds)
        answers.append(answer)
        start = end
    return np.concatenate(answers, axis=1)


def compare(case: TraceCase, logits: np.ndarray) -> float:
    """Largest relative error of a graph's logits. At padding they must only be finite: the output of a masked token is undefined."""
    real = case.mask.astype(bool)
    try:
        if not np.isfinite(logits).all():
            raise GraphMismatchError("the graph's logits hold values that are not finite")
        return largest_relative(logits[real], case.logits[real], "logits")
    except GraphMismatchError as error:
        raise GraphMismatchError(f"{error} (with {case})") from None


def tested(cases: Sequence[TraceCase]) -> str:
    """Return the shapes that the cases try, as text for the report."""
    rows = sorted({len(case.ids) for case in cases})
    steps = sorted({step for case in cases for step in case.steps})
    pasts = {sum(case.steps[:place]) for case in cases for place in range(len(case.steps))}
    sides = [
        side
        for side, padded in (
            ("left", any((case.mask[:, 0] == 0).any() for case in cases)),
            ("right", any((case.mask[:, -1] == 0).any() for case in cases)),
        )
        if padded
    ]
    padding = f", padding on the {' and '.join(sides)}" if sides else ""
    past = f", a past of 0 to {max(pasts)}" if len(pasts) > 1 else ""
    return f"batch {_listed(rows)}, {_listed(steps)} tokens at once{past}{padding}"


def _listed(values: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, values[:-1])), str(values[-1])]))
