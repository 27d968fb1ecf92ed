"""A few calls of a graph with activations: token ids with padding, fed at once or in steps through the graph's own cache.

Made by the onnx-activations stages and by their checker, to compare a graph with torch or with another graph. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from handlers.graphs.comparison import GraphMismatchError
from handlers.graphs.graphset import GraphSet
from handlers.models.files import read_json, setting

PAST = "past_key_values."
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True)
class Call:
    """int64 inputs (rows, tokens) by name, and how many tokens are fed at a time; one step where a graph has no cache."""

    feeds: dict[str, np.ndarray]
    steps: tuple[int, ...]

    @property
    def mask(self) -> np.ndarray:
        """Which tokens are real, (rows, tokens) bool."""
        real: np.ndarray = self.feeds["attention_mask"].astype(bool)
        return real


def make_call(rows: int, steps: tuple[int, ...], *, vocabulary: int, pad: int, inputs: Sequence[str]) -> Call:
    """Random ids; of several rows the second is padded on the left, and of three the last on the right."""
    tokens = sum(steps)
    ids = np.random.default_rng(tokens * 31 + rows).integers(0, vocabulary, (rows, tokens), dtype=np.int64)
    ids = np.where(ids == pad, (ids + 1) % vocabulary, ids)
    mask = np.ones_like(ids)
    if rows > 1 and tokens > 2:
        mask[1, :2] = 0
    if rows > 2 and tokens > 2:
        mask[-1, -2:] = 0
    types = np.zeros_like(ids)
    types[:, (tokens + 1) // 2 :] = 1
    given = {
        "input_ids": np.where(mask == 0, pad, ids), "attention_mask": mask, "token_type_ids": types,
        "position_ids": np.maximum(mask.cumsum(1) - 1, 0),
    }  # fmt: skip
    return Call({name: given[name] for name in given if name in inputs}, steps)


def calls(inputs: Sequence[str], *, vocabulary: int, pad: int, positions: int | None) -> tuple[Call, ...]:
    """A padded batch, a single token, and a long prompt; with a cache each in steps. The first one is small."""
    cached = any(name.startswith(PAST) for name in inputs)
    shapes = ((3, (5,)), (1, (1, 1)), (3, (7, 1, 3)), (1, (17, 2))) if cached else ((3, (5,)), (1, (1,)), (3, (11,)), (1, (19,)))
    room = positions or 64
    return tuple(make_call(rows, steps, vocabulary=vocabulary, pad=pad, inputs=inputs) for rows, steps in shapes if sum(steps) <= room)


def calls_of(folder: Path, graphs: GraphSet) -> tuple[Call, ...]:
    """The calls that graphs of this folder are compared by."""
    config = read_json(folder / "config.json", "read the model's configuration")
    pad = setting(config, "pad_token_id") or 0
    positions = setting(config, "max_position_embeddings") or setting(config, "n_positions")
    # Some count positions from the padding token's number on, so that the table holds so many fewer.
    room = positions - pad - 1 if isinstance(positions, int) and positions > 0 else None
    names = [port.name for port in graphs.graphs[0].inputs]
    return calls(names, vocabulary=int(setting(config, "vocab_size")), pad=pad, positions=room)


def outputs_of(session: onnxruntime.InferenceSession, call: Call, names: Sequence[str]) -> list[dict[str, np.ndarray]]:
    """The outputs of each step by name; GraphMismatchError where onnxruntime refuses the call."""
    past = [value for value in session.get_inputs() if value.name.startswith(PAST)]
    present = [value.name.replace(PAST, "present.", 1) for value in past]
    rows = len(call.mask)
    cache = {value.name: np.zeros((rows, value.shape[1], 0, value.shape[3]), _DTYPES[value.type]) for value in past}
    outputs, start = [], 0
    for step in call.steps:
        end = start + step
        feeds = {name: feed[:, : end if name == "attention_mask" else None][:, 0 if name == "attention_mask" else start : end]
                 for name, feed in call.feeds.items()}  # fmt: skip
        try:
            answers = session.run([*names, *present], {**feeds, **cache})
        except RuntimeError as error:
            first = str(error).strip().splitlines()[0]
            raise GraphMismatchError(f"the graph does not take {rows} rows of {step} tokens after {start}: {first}") from None
        outputs.append(dict(zip(names, answers[: len(names)], strict=True)))
        cache = dict(zip(cache, answers[len(names) :], strict=True))
        start = end
    return outputs


def pieces(name: str, whole: np.ndarray, call: Call) -> list[np.ndarray]:
    """What the steps of a call should give of an output whose value over all tokens at once is `whole`."""
    ends = np.cumsum(call.steps)
    starts = ends - call.steps
    if name.startswith("attentions."):
        return [whole[:, :, start:end, :end] for start, end in zip(starts, ends, strict=True)]
    return [whole[:, start:end] for start, end in zip(starts, ends, strict=True)]


def real_rows(name: str, value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The rows of an output that belong to real tokens; `mask` (rows, tokens) says which of its tokens are."""
    chosen: np.ndarray = (value.swapaxes(1, 2) if name.startswith("attentions.") else value)[mask]
    return chosen


def error(name: str, actual: np.ndarray, wanted: np.ndarray, mask: np.ndarray) -> float:
    """Largest |actual − wanted| at real tokens over the largest |wanted|; infinity for other shapes and for what is not finite."""
    if actual.shape != wanted.shape:
        return float("inf")
    first, second = (real_rows(name, value.astype(np.float32, copy=False), mask) for value in (actual, wanted))
    largest = float(np.abs(first - second).max(initial=0.0)) / max(float(np.abs(second).max(initial=0.0)), 1e-9)
    return largest if np.isfinite(largest) else float("inf")


def step_masks(call: Call) -> list[np.ndarray]:
    """Which tokens of each step are real."""
    return np.split(call.mask, np.cumsum(call.steps)[:-1], axis=1)


def errors(
    session: onnxruntime.InferenceSession, made: Sequence[Call], wanted: Sequence[Mapping[str, np.ndarray]], names: Sequence[str]
) -> dict[str, float]:
    """Name → largest relative error of a graph's outputs over all calls; `wanted` has them over all tokens at once, a mapping a call."""
    largest = dict.fromkeys(names, 0.0)
    for call, whole in zip(made, wanted, strict=True):
        steps = outputs_of(session, call, names)
        for name in names:
            for piece, answer, mask in zip(pieces(name, whole[name], call), steps, step_masks(call), strict=True):
                largest[name] = max(largest[name], error(name, answer[name], piece, mask))
    return largest
