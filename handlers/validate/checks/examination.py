"""All checks of one artifact in its worker, as figures; `verdict.py` decides the verdict.

Called by the validate stage for the merged model and for every variant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.figures import CheckFigures, SampleFigures
from handlers.validate.checks.comparison import Comparison, PromptLikeness
from handlers.validate.checks.foresight import GROUP, of_examination
from handlers.validate.checks.reference import Progress, Reference, answer_text, padded_batch, padding_error, teacher_forced
from handlers.validate.checks.samples import SHOWN, Sample
from handlers.validate.engines.task_profile import labels_of
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Encode, Greedy, Padding

_REMEDY = "export the variant again; if it happens again, leave it out of export.variants"


class PromptFigures(PromptLikeness):
    """What was measured on one prompt. A name that is missing was not measured."""

    merged_error_max_absolute: float | None = None
    """Largest |Δ| from the merged model in PyTorch."""
    tokens: list[int] | None = None
    """What the artifact decoded through its cache."""
    greedy_identical: bool | None = None
    """Whether these are the live model's tokens."""
    first_different_token: int | None = None
    """Place of the first one that is not; null where there is none."""
    cache_error_max_absolute: float | None = None
    """Largest |Δ| between outputs decoded through the cache and those of one pass."""
    cache_errors: dict[str, float] | None = None
    """The same for each way in which the cache is used, where there is more than one."""


@dataclass
class Examination:
    """What was found out about one artifact."""

    figures: CheckFigures = field(default_factory=CheckFigures)
    prompts: list[PromptFigures] = field(default_factory=list)
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
    about = worker.load()
    result = Examination()
    subject = reference.subject
    if tokenizer and reference.readable:
        result.tokenizer = _tokenizer_difference(worker, reference)
    result.labels = _label_difference(Path(worker.folder), subject.labels)
    outputs.mkdir(exist_ok=True)
    live, export = Comparison(subject.head), Comparison(subject.head)
    for number, sample in enumerate(reference.samples):
        if about.together and number % GROUP == 0:
            padding = [Padding(batch=padded_batch(reference.samples), side=side) for side in reference.sides] if number == 0 else []
            of_examination(worker, reference.samples[number : number + GROUP], padding, progress)
        progress(number / len(reference.samples), f"{worker.name}, prompt {number + 1} of {len(reference.samples)}")
        logits = teacher_forced(worker, sample, logits_file(outputs, number))
        figures = PromptFigures(**_compared(live, np.load(sample.logits), logits).given)
        if merged is not None:
            apart = _compared(export, np.load(logits_file(merged, number)), logits)
            figures = figures.plus(merged_error_max_absolute=apart.error_max_absolute)
        result.prompts.append(figures if subject.kind == "encoder" else _decoded(worker, sample, figures))
    samples = _samples(worker, reference, result, outputs)
    result.figures = CheckFigures(**live.figures(reference.logit_std).given).plus(
        **({} if subject.kind == "causal" else {"task": subject.task}),
        **_decoding_figures(result.prompts).given,
        **_padding_figures(worker, reference).given,
        merged_error_max_absolute=_largest(one.merged_error_max_absolute for one in result.prompts),
        sample=samples[0] if samples else None,
        samples=samples,
    )
    return result


def _decoding_figures(prompts: list[PromptFigures]) -> CheckFigures:
    """The results of greedy decoding through the cache; None where nothing is decoded."""
    if not prompts[0].has("tokens"):
        return CheckFigures(greedy_identical=None, greedy_prompts=None, cache_error_max_absolute=None)
    figures = CheckFigures(
        greedy_identical=sum(bool(one.greedy_identical) for one in prompts),
        greedy_prompts=len(prompts),
        cache_error_max_absolute=_largest(one.cache_error_max_absolute for one in prompts),
    )
    if ways := prompts[0].cache_errors:
        figures = figures.plus(cache_errors={way: _largest((one.cache_errors or {}).get(way) for one in prompts) for way in ways})
    return figures


def _largest(errors: Iterable[float | None]) -> float | None:
    """The largest error; None where there is none."""
    return max((error for error in errors if error is not None), default=None)


def _padding_figures(worker: EngineWorker, reference: Reference) -> CheckFigures:
    """max |Δ| between padded batches and their rows alone, on each side that the live model itself can be padded on."""
    errors = {side: padding_error(worker, reference.samples, side) for side in reference.sides}
    if not errors:
        return CheckFigures()  # a figure that is missing is reported as something that nobody verified
    figures = CheckFigures(padding_error_max_absolute=max(errors.values()))
    return figures if reference.subject.kind == "causal" else figures.plus(padding_errors=errors)


def logits_file(folder: Path, number: int) -> Path:
    """Where the logits of a prompt lie."""
    return folder / f"{number}.npy"


def _compared(comparison: Comparison, reference: np.ndarray, logits: np.ndarray) -> PromptLikeness:
    try:
        return comparison.add(reference, logits)
    except ValueError as error:
        raise WorkerFailed(str(error), _REMEDY, code=FaultCode.LOGITS) from error


def _decoded(worker: EngineWorker, sample: Sample, figures: PromptFigures) -> PromptFigures:
    """The figures with those of the artifact's own greedy decoding through its cache, compared with the live model's tokens."""
    decoded = worker.ask(Greedy(ids=sample.ids, tokens=len(sample.tokens), verify=True))
    tokens = decoded.tokens
    different = next((place for place, pair in enumerate(zip(tokens, sample.tokens, strict=True)) if pair[0] != pair[1]), None)
    figures = figures.plus(
        tokens=tokens,
        greedy_identical=different is None,
        first_different_token=different,
        cache_error_max_absolute=decoded.cache_error,
    )
    return figures if decoded.cache_errors is None else figures.plus(cache_errors=decoded.cache_errors)


def _samples(worker: EngineWorker, reference: Reference, result: Examination, outputs: Path) -> tuple[SampleFigures, ...]:
    """The first prompts with both answers, for a person to look at."""
    if not reference.readable:
        return ()
    found = []
    for number, sample in enumerate(reference.samples[:SHOWN]):
        try:
            tokens = result.prompts[number].tokens or []
            text = answer_text(worker, reference.subject, sample, tokens, np.load(logits_file(outputs, number)))
        except WorkerFailed as error:
            if error.code == FaultCode.WORKER_LOST:
                raise
            text = None  # a tokenizer that can't be used is a reason of its own
        found.append(SampleFigures(prompt=sample.text, reference=sample.continuation, text=text))
    return tuple(found)


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
        encoded = worker.ask(Encode(texts=texts, firsts=firsts or None)).ids
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
