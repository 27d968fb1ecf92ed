"""Leaves out of a comparison what an artifact has no room for: one with fixed sizes may take shorter texts than the live model.

Called by the check once the artifact is loaded.
"""

from __future__ import annotations

from dataclasses import replace

from daemon.contract.faults.fault_codes import FaultCode
from handlers.models.tasks import Kind
from handlers.validate.checks.live.reference import Reference
from handlers.validate.checks.live.samples import Sample
from handlers.validate.workers.client import WorkerFailed


def fitting(reference: Reference, room: int | None) -> Reference:
    """Give the reference with the samples that fit into `room` tokens; itself where all do, or where there is no bound.

    Raises WorkerFailed where none does.
    """
    if room is None:
        return reference
    kind = reference.subject.kind
    kept = [(number, _answering(sample, room)) for number, sample in enumerate(reference.samples) if _tokens(sample, kind) <= room]
    if not kept:
        shortest = min(_tokens(sample, kind) for sample in reference.samples)
        cause = f"it has room for {room} tokens, and the shortest prompt needs {shortest} with its continuation"
        remedy = "give the artifact more room (static.context_length), or shorter texts in validate.prompts"
        raise WorkerFailed(cause, remedy, code=FaultCode.PROMPTS_EMPTY)
    if len(kept) == len(reference.samples) and all(sample is reference.samples[number] for number, sample in kept):
        return reference
    return replace(reference, samples=[sample for _, sample in kept], numbers=[number for number, _ in kept])


def warn(variant: str, reference: Reference, compared: Reference, room: int | None) -> list[str]:
    """Give a warning where prompts were left out."""
    missing = len(reference.samples) - len(compared.samples)
    if not missing:
        return []
    return [f"{missing} of {len(reference.samples)} prompts were not compared: {variant} has room for {room} tokens, and they need more."]


def _tokens(sample: Sample, kind: Kind) -> int:
    """Give tokens of the longest of what a model reads at once: an encoder-decoder has room for a source, and as much for its answer."""
    if kind == "causal":
        return len(sample.ids) + len(sample.tokens)
    return max(len(sample.ids), len(sample.tokens) + 1 if kind == "seq2seq" else 0)


def _answering(sample: Sample, room: int) -> Sample:
    """Give the sample without a question whose answer would not fit."""
    if sample.prompt is None or len(sample.prompt) + sample.steps <= room:
        return sample
    return replace(sample, prompt=None, answer=None, asked=None)
