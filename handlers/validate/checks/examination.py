"""All checks of one artifact in its worker, as figures; `verdict.py` decides the verdict.

Called by the validate stage for the merged model and for every variant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.figures import CheckFigures, SampleFigures
from handlers.validate.checks.comparison import Comparison
from handlers.validate.checks.reference import Progress, Reference, answer_text, padding_work, teacher_forced
from handlers.validate.checks.samples import Sample
from handlers.validate.engines.task_profile import labels_of
from handlers.validate.workers.client import EngineWorker, WorkerFailed

_REMEDY = "export the variant again; if it happens again, leave it out of export.variants"


@dataclass
class Examination:
    """What was found out about one artifact."""

    figures: CheckFigures = field(default_factory=CheckFigures)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    """One small summary for each prompt."""
    tokenizer: str | None = None
    """Why its tokenizer is not the reference's; None when it is."""
    example: str | None = None
    """Why the example that it brings does not work; None when it does, or when it brings none."""
    portability: str | None = None
    """Why it may give other answers on other processors; None when nothing says so."""
    labels: str | None = None
    """Why the names of its labels are not the live model's; None when they are."""


def examine(
    worker: EngineWorker, reference: Reference, outputs: Path, merged: Path | None, *, tokenizer: bool, progress: Progress
) -> Examination:
    """Load the worker's model and compare it with the live model, with `merged` and with itself.

    `outputs` and `merged` are folders of logits, one file a prompt (`logits_file`): the first is written, the second
    read when it is not None. Raises WorkerFailed when the worker fails or its logits can't be compared at all.
    """
    worker.load()
    result = Examination()
    subject = reference.subject
    if tokenizer and reference.readable:
        result.tokenizer = _tokenizer_difference(worker, reference)
    result.labels = _label_difference(Path(worker.folder), subject.labels)
    outputs.mkdir(exist_ok=True)
    live, export = Comparison(subject.head), Comparison(subject.head)
    for number, sample in enumerate(reference.samples):
        progress(number / len(reference.samples), f"{worker.name}, prompt {number + 1} of {len(reference.samples)}")
        logits = teacher_forced(worker, sample, logits_file(outputs, number))
        summary = _compared(live, np.load(sample.logits), logits)
        if merged is not None:
            summary["merged_error_max_absolute"] = _compared(export, np.load(logits_file(merged, number)), logits)["error_max_absolute"]
        result.prompts.append(summary | (_decoded(worker, sample) if subject.kind != "encoder" else {}))
    apart = max(summary["merged_error_max_absolute"] for summary in result.prompts) if merged is not None else None
    result.figures = CheckFigures(**live.figures(reference.logit_std).given).plus(
        **({} if subject.kind == "causal" else {"task": subject.task}),
        **_decoding_figures(result.prompts),
        **_padding_figures(worker, reference),
        merged_error_max_absolute=apart,
        sample=_sample(worker, reference, result, outputs),
    )
    return result


def _decoding_figures(prompts: list[dict[str, Any]]) -> dict[str, Any]:
    """What greedy decoding through the cache came to; None where nothing is decoded."""
    if "tokens" not in prompts[0]:
        return {"greedy_identical": None, "greedy_prompts": None, "cache_error_max_absolute": None}
    figures = {
        "greedy_identical": sum(summary["greedy_identical"] for summary in prompts),
        "greedy_prompts": len(prompts),
        "cache_error_max_absolute": max(summary["cache_error_max_absolute"] for summary in prompts),
    }
    if ways := prompts[0].get("cache_errors"):
        figures["cache_errors"] = {way: max(summary["cache_errors"][way] for summary in prompts) for way in ways}
    return figures


def _padding_figures(worker: EngineWorker, reference: Reference) -> dict[str, Any]:
    """max |Δ| between padded batches and their rows alone, on each side that the live model itself can be padded on."""
    work = padding_work(reference.subject, reference.samples)
    errors = {side: float(worker.ask("padding", side=side, **work)["padding_error"]) for side in reference.sides}
    if not errors:
        return {}  # a figure that is missing is reported as something that nobody verified
    figures: dict[str, Any] = {"padding_error_max_absolute": max(errors.values())}
    return figures if reference.subject.kind == "causal" else figures | {"padding_errors": errors}


def logits_file(folder: Path, number: int) -> Path:
    """Where the logits of a prompt lie."""
    return folder / f"{number}.npy"


def _compared(comparison: Comparison, reference: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
    try:
        return comparison.add(reference, logits)
    except ValueError as error:
        raise WorkerFailed(str(error), _REMEDY, code=FaultCode.LOGITS) from error


def _decoded(worker: EngineWorker, sample: Sample) -> dict[str, Any]:
    """The artifact's own greedy decoding through its cache, beside the reference's."""
    answer = worker.ask("greedy", ids=sample.ids, tokens=len(sample.tokens), verify=True)
    tokens: list[int] = answer["tokens"]
    parted = next((place for place, pair in enumerate(zip(tokens, sample.tokens, strict=True)) if pair[0] != pair[1]), None)
    found = {
        "tokens": tokens,
        "greedy_identical": parted is None,
        "first_different_token": parted,
        "cache_error_max_absolute": answer["cache_error"],
    }
    return found | ({"cache_errors": answer["cache_errors"]} if "cache_errors" in answer else {})


def _sample(worker: EngineWorker, reference: Reference, result: Examination, outputs: Path) -> SampleFigures | None:
    """The first prompt with both answers, for a person to look at."""
    if not reference.readable:
        return None
    first = reference.samples[0]
    try:
        tokens = result.prompts[0].get("tokens", [])
        text = answer_text(worker, reference.subject, first, tokens, np.load(logits_file(outputs, 0)))
    except WorkerFailed as error:
        if error.code == FaultCode.WORKER_LOST:
            raise
        text = None  # a tokenizer that can't be used is a reason of its own
    return SampleFigures(prompt=first.text, reference=first.continuation, text=text)


def _label_difference(folder: Path, wanted: tuple[str, ...] | None) -> str | None:
    """Why the names that an artifact gives its labels are not `wanted`; None where they are, or where it carries no configuration."""
    found = labels_of(folder) if wanted is not None else None
    if found is None or wanted is None or found == wanted:
        return None
    if len(found) != len(wanted):
        return f"it names {len(found)} labels and the live model {len(wanted)}"
    number = next(place for place, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1])
    return f"its labels have other names than the live model's: label {number} is {found[number]!r} instead of {wanted[number]!r}"


def _tokenizer_difference(worker: EngineWorker, reference: Reference) -> str | None:
    """Why the artifact's own tokenizer can't stand in for the reference's, or None when all prompts give the same ids."""
    texts = [sample.text for sample in reference.samples]
    firsts = [sample.first for sample in reference.samples if sample.first is not None]
    try:
        encoded = worker.ask("encode", texts=texts, firsts=firsts or None)["ids"]
    except WorkerFailed as error:
        if error.code == FaultCode.WORKER_LOST:
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
