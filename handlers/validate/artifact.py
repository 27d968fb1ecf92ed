"""Everything that one artifact is put through in its worker, as figures; the verdict on them is `verdict.py`'s.

Called by the validate stage for the merged model and for every variant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from handlers.validate.client import Worker, WorkerFailed
from handlers.validate.compare import Comparison
from handlers.validate.reference import Progress, Reference, Sample

_PADDED_ROWS = 4
_PADDED_STEPS = 4
_REMEDY = "export the variant again; if it happens again, leave it out of export.variants"


@dataclass
class Examination:
    """What was found out about one artifact."""

    figures: dict[str, Any] = field(default_factory=dict)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    """One small summary for each prompt."""
    tokenizer: str | None = None
    """Why its tokenizer is not the reference's; None when it is."""


def examine(
    worker: Worker, reference: Reference, outputs: Path, merged: Path | None, *, tokenizer: bool, progress: Progress
) -> Examination:
    """Load the worker's model and compare it with the live model, with `merged` and with itself.

    `outputs` and `merged` are folders of logits, one file a prompt (`logits_file`): the first is written, the second
    read when it is not None. Raises WorkerFailed when the worker fails or its logits can't be compared at all.
    """
    worker.load()
    result = Examination()
    if tokenizer and reference.readable:
        result.tokenizer = _tokenizer_difference(worker, reference)
    outputs.mkdir(exist_ok=True)
    live, export = Comparison(), Comparison()
    for number, sample in enumerate(reference.samples):
        progress(number / len(reference.samples), f"{worker.name}, prompt {number + 1} of {len(reference.samples)}")
        path = logits_file(outputs, number)
        worker.ask("teacher", ids=sample.ids + sample.tokens, keep=sample.keep, out=str(path))
        logits = np.load(path)
        summary = _compared(live, np.load(sample.logits), logits)
        if merged is not None:
            summary["merged_error_max_absolute"] = _compared(export, np.load(logits_file(merged, number)), logits)["error_max_absolute"]
        result.prompts.append(summary | _decoded(worker, sample))
    result.figures = live.figures(reference.logit_std)
    result.figures |= {
        "greedy_identical": sum(summary["greedy_identical"] for summary in result.prompts),
        "greedy_prompts": len(result.prompts),
        "cache_error_max_absolute": max(summary["cache_error_max_absolute"] for summary in result.prompts),
        "padding_error_max_absolute": _padding_error(worker, reference.samples),
        "merged_error_max_absolute": max(s["merged_error_max_absolute"] for s in result.prompts) if merged is not None else None,
    }
    result.figures["sample"] = _sample(worker, reference, result)
    return result


def logits_file(folder: Path, number: int) -> Path:
    """Where the logits of a prompt lie."""
    return folder / f"{number}.npy"


def _compared(comparison: Comparison, reference: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
    try:
        return comparison.add(reference, logits)
    except ValueError as error:
        raise WorkerFailed(str(error), _REMEDY, code="logits") from error


def _decoded(worker: Worker, sample: Sample) -> dict[str, Any]:
    """The artifact's own greedy decoding through its cache, beside the reference's."""
    answer = worker.ask("greedy", ids=sample.ids, tokens=len(sample.tokens), verify=True)
    tokens: list[int] = answer["tokens"]
    parted = next((place for place, pair in enumerate(zip(tokens, sample.tokens, strict=True)) if pair[0] != pair[1]), None)
    return {
        "tokens": tokens,
        "greedy_identical": parted is None,
        "first_different_token": parted,
        "cache_error_max_absolute": answer["cache_error"],
    }


def _padding_error(worker: Worker, samples: Iterable[Sample]) -> float:
    """max |Δlogit| between one padded batch and its rows alone.

    The shortest and the longest prompts, and a half of the longest: so lengths differ even where there is one sample.
    """
    ordered = sorted(samples, key=lambda sample: len(sample.ids))
    chosen = [ordered[index] for index in sorted({0, len(ordered) // 2, len(ordered) - 1})][: _PADDED_ROWS - 1]
    longest = ordered[-1]
    prompts = [longest.ids[: max(1, len(longest.ids) // 2)], *(sample.ids for sample in chosen)]
    forced = [longest.tokens, *(sample.tokens for sample in chosen)]
    steps = min(_PADDED_STEPS, *(len(tokens) for tokens in forced))
    return float(worker.ask("padding", prompts=prompts, continuations=[tokens[:steps] for tokens in forced])["padding_error"])


def _sample(worker: Worker, reference: Reference, result: Examination) -> dict[str, Any] | None:
    """The first prompt with both continuations, for a person to look at."""
    if not reference.readable:
        return None
    first = reference.samples[0]
    try:
        text = worker.ask("text", ids=result.prompts[0]["tokens"])["text"]
    except WorkerFailed as error:
        if error.code == "worker-lost":
            raise
        text = None  # a tokenizer that can't be used is a reason of its own
    return {"prompt": first.text, "reference": first.continuation, "text": text}


def _tokenizer_difference(worker: Worker, reference: Reference) -> str | None:
    """Why the artifact's own tokenizer can't stand in for the reference's, or None when all prompts give the same ids."""
    texts = [sample.text for sample in reference.samples]
    try:
        encoded = worker.ask("encode", texts=texts)["ids"]
    except WorkerFailed as error:
        if error.code == "worker-lost":
            raise
        return f"its tokenizer can't be used: {error.cause}"
    for number, (sample, ids) in enumerate(zip(reference.samples, encoded, strict=True)):
        if ids != sample.encoded:
            pairs = enumerate(zip(ids, sample.encoded, strict=False))
            place = next((index for index, (mine, theirs) in pairs if mine != theirs), min(len(ids), len(sample.encoded)))
            return (
                f"its tokenizer gives other token ids than the reference's: prompt {number + 1} becomes {len(ids)} ids instead of"
                f" {len(sample.encoded)}, different from position {place} on"
            )
    return None
