"""All checks of one artifact in its worker, as figures; `verdict.py` decides the verdict.

Called by the stage `merged` for the merged model, and by the stages `check-VARIANT` for every variant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import EXACT_CACHE, Limits
from daemon.contract.jobs.figures import CheckFigures, Decision, Likeness, SampleFigures, Statistics
from handlers.validate import findings
from handlers.validate.arithmetic import distribution, growth
from handlers.validate.arithmetic.comparison import Comparison, NotFiniteError, PromptLikeness, Rows, in_deviations, largest_error
from handlers.validate.arithmetic.fine_tuning import FineTuning
from handlers.validate.checks import media, stock_generation, wide, worst
from handlers.validate.checks.live import rounded
from handlers.validate.checks.live.foresight import GROUP, Progress, of_examination
from handlers.validate.checks.live.reference import (
    Reference,
    answer_text,
    greedy_likeness,
    padded_batch,
    padding_error,
    teacher_forced,
)
from handlers.validate.checks.live.samples import SHOWN, Sample
from handlers.validate.checks.media import Unread
from handlers.validate.engines.arrays import same_start
from handlers.validate.engines.registry import EXACT
from handlers.validate.engines.task_profile import ValidatedTask, labels_of, thresholds_of
from handlers.validate.files import expected
from handlers.validate.files.compare import compare
from handlers.validate.findings import Compared, Finding
from handlers.validate.folders import special_tokens
from handlers.validate.length import faults as length_faults
from handlers.validate.length import measuring as length
from handlers.validate.length import rare
from handlers.validate.length.text import LongText
from handlers.validate.workers.client import EngineWorker, WorkerFailed, WorkerRefused
from handlers.validate.workers.protocol import Encode, Greedy, LongPass, Padding

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
    cache_steps: list[float] | None = None
    """Largest |Δ| of each step through the cache, of the first way."""
    batch_error_max_absolute: float | None = None
    """Largest |Δ| of the text in a batch from the text alone; null where there was none that counts."""
    batch_rows: int | None = None
    """Rows of that batch."""


@dataclass
class Examination(Compared):
    """What was found out about one artifact."""

    prompts: list[PromptFigures] = field(default_factory=list)
    unread: Unread | None = None
    """Why nobody knows what it makes of pictures or sounds, where it should read them."""
    base: Likeness | None = None
    """The base without the adapter beside the live model; None where there is none."""
    compared: Comparison | None = None
    """What the comparison with the live model adds up, to be gone on with; None where none was made."""
    tuned: FineTuning | None = None
    """The same of the share of the fine-tuning."""
    beside: rounded.Beside | None = None
    """The same of the comparison with the live model with its weights rounded; None where nobody asked that."""
    weighed: bool = False
    """Whether each of its stored weights was compared with the merged one, so closely that the base's are told from it."""
    unit: float = 1.0
    """Standard deviation of the live model's outputs."""
    decisions: tuple[Decision, ...] = ()
    """What the looks before the last one decided."""
    look: int = 0
    """Number of the last look, of `looks`: 0 is that at the texts that all figures are of."""
    looks: int = 1
    """How many there may be."""
    stopped: str | None = None
    """Why no more texts are read though a limit is undecided and the budget is not spent, as a clause."""

    def by_limit(self) -> dict[str, list[tuple[float, float]]]:
        """Give, by limit, the sums and weights of all texts that were read; errors in standard deviations."""
        sums = self.compared.by_limit() if self.compared else {}
        if "error" in sums:
            sums["error"] = [(in_deviations(largest, self.unit), weight) for largest, weight in sums["error"]]
        return sums | (self.tuned.by_limit() if self.tuned else {})


@dataclass(frozen=True)
class Merged:
    """What the merged model in PyTorch says of the prompts of the whole reference."""

    logits: Path
    """Folder of its logits, see `logits_file`."""
    tokens: Sequence[list[int]] = ()
    """What it decoded; nothing for encoders."""
    unlike: str | None = None
    """That it is another merge than PEFT's, as the reason of a finding; None where nobody says so."""


def examine(
    worker: EngineWorker, reference: Reference, outputs: Path, merged: Merged | None, *, tokenizer: bool, exact: bool, progress: Progress,
    result: Examination | None = None,
) -> Examination:  # fmt: skip
    """Load the worker's model and compare it with the live model, with `merged` and with itself.

    `outputs` is a folder that receives the logits, see `logits_file`. `exact`: texts of one batch do not affect each other, so that they
    may be run together. `result` receives what is found out: the caller has it even where the worker fails later. Raises WorkerFailed
    when the worker fails or its logits can't be compared at all.
    """
    about = worker.load()
    result = result or Examination()
    subject = reference.subject
    if tokenizer and reference.readable and (fault := _tokenizer_difference(worker, reference)):
        result.findings.append(findings.tokenizer(fault))
    result.findings += _named(Path(worker.folder), reference, about.ends)
    result.base = reference.adapter
    outputs.mkdir(exist_ok=True)
    result.add(compare(worker, reference.files, outputs, texts=tokenizer))
    fault, known = (
        stock_generation.fault(worker, reference, outputs, max(EXACT_CACHE, _limits(worker.name).cache)) if tokenizer else (None, [])
    )
    result.findings += [findings.changed("generation", fault, "settings of generation")] if fault else []
    result.notes += known
    live, tuned, rows = Comparison(subject.head, subject.thresholds), FineTuning(subject.head), list[Rows]()
    result.compared, result.tuned, result.unit = live, tuned, reference.logit_std
    tied = rounded.Beside(subject, reference.logit_std) if all(sample.rounded for sample in reference.samples) else None
    result.beside = tied
    of_peft = rounded.OfPeft(reference.logit_std) if _is_merge(worker.name) and all(sample.merged for sample in reference.samples) else None
    long = reference.long.fitting(about.context_length, subject.kind) if reference.long else reference.no_long
    read = long if isinstance(long, LongText) else None
    odd = _rare(reference, about.context_length)
    batched = wide.requests(reference) if exact and _takes_batches(worker.name) else []
    for number, sample in enumerate(reference.samples):
        if about.together and exact and number % GROUP == 0:
            beside: list[Padding | LongPass] = []
            beside += [Padding(batch=padded_batch(reference.samples), side=side) for side in reference.sides] if number == 0 else []
            beside += batched if number == 0 else []
            beside += [read.asked(outputs / length.FILE, read.own_pieces)] if read is not None and number == 0 else []
            beside += [odd.asked(outputs / rare.FILE, odd.own_pieces)] if odd is not None and number == 0 else []
            drafts = [_draft(reference, place, merged) for place in range(number, min(number + GROUP, len(reference.samples)))]
            of_examination(worker, reference.samples[number : number + GROUP], drafts, beside, progress)
        progress(number / len(reference.samples), f"{worker.name}, prompt {number + 1} of {len(reference.samples)}")
        logits, wanted = teacher_forced(worker, sample, logits_file(outputs, number)), np.load(sample.logits)
        with comparable():
            rows.append(live.add(wanted, logits, reference.following(sample), same_text=sample.piece))
            if tied is not None and sample.rounded is not None:
                tied.add(np.load(sample.rounded), logits, reference.following(sample), same_text=sample.piece)
            if of_peft is not None and sample.merged is not None:
                of_peft.add(logits, *(np.load(path) for path in (sample.merged, sample.once) if path is not None))
            figures = PromptFigures(**rows[-1].summary.given)
            if merged is not None:
                figures = figures.plus(
                    merged_error_max_absolute=largest_error(np.load(logits_file(merged.logits, reference.number(number))), logits)
                )
        if sample.base_logits is not None:
            bare, changed = np.load(sample.base_logits), sample.base_rows
            tuned.add(wanted[changed], bare, logits[changed], same_text=sample.piece)
            if tied is not None and sample.rounded is not None:
                tied.tuned.add(np.load(sample.rounded)[changed], bare, logits[changed], same_text=sample.piece)
        result.prompts.append(figures if subject.kind == "encoder" else _decoded(worker, sample, figures))
    figures_at_length, unusable = length.measure(worker, long, subject, outputs, merged.logits if merged else None)
    if unusable:
        result.findings.append(Finding("length", unusable, length_faults.REMEDY, of_precision=True))
    beside_live = not any(sample.rounded for sample in reference.samples)
    if told_rare := rare.finding(worker, odd, subject, outputs, merged.logits if merged else None, beside_live=beside_live):
        result.findings.append(told_rare)
    seen, unreadable = media.compare(worker, subject, reference.media, outputs, reference.logit_std)
    result.findings += [unreadable] if unreadable else []
    result.unread = reference.no_media
    padding = _padding_figures(worker, reference)
    if batched and (told_batch := _batch_finding(worker, reference, result, padding.padding_error_max_absolute or 0.0)):
        result.findings.append(told_batch)
    samples = _samples(worker, reference, result, outputs)
    result.figures = CheckFigures(**live.figures(reference.logit_std).given).plus(
        by_text=live.by_text(),
        **({} if subject.kind == "causal" else {"task": subject.task}),
        **_decoding_figures(reference, result.prompts).given,
        **padding.given,
        **tuned.figures().given,
        **_growth_figures(reference, rows, result.prompts).given,
        merged_error_max_absolute=_largest(prompt.merged_error_max_absolute for prompt in result.prompts),
        long=figures_at_length,
        sample=samples[0] if samples else None,
        samples=samples,
    )
    result.figures = result.figures.plus(statistics=_statistics(reference, rows, result.figures))
    if seen is not None:
        result.figures = result.figures.plus(media=seen)
    if tied is not None:
        result.figures = result.figures.plus(rounded=tied.figures())
    if of_peft is not None:
        result.figures = result.figures.plus(merge_error=of_peft.error)
        result.findings += filter(None, [of_peft.finding()])
    if (worst_sample := worst.find(worker, reference, rows, outputs)) is not None:
        result.figures = result.figures.plus(worst=worst_sample)
    return result


def _statistics(reference: Reference, rows: list[Rows], figures: Likeness) -> Statistics:
    """Give how the differences of single positions are distributed; of a classifier, the label of the data is the right choice."""
    right = [[(0, sample.label)] if sample.label is not None else reference.following(sample) for sample in reference.samples]
    return distribution.statistics([row.positions for row in rows], right, figures.perplexity_ratio_interval)


def _rare(reference: Reference, room: int | None) -> LongText | None:
    """Give the rare tokens, as far as an artifact has room for them."""
    text = reference.rare.fitting(room, reference.subject.kind) if reference.rare else None
    return text if isinstance(text, LongText) else None


def _limits(variant: str) -> Limits:
    """Give the limits of a variant; of the merged model, where it is not published, the exact ones."""
    entry = catalog().variants.get(variant)
    return EXACT if entry is None else entry.limits


def _takes_batches(variant: str) -> bool:
    """Tell whether a batch may have any number of rows."""
    entry = catalog().variants.get(variant)
    return entry is None or bool({"merged", "dynamic axes"} & entry.traits)


def _is_merge(variant: str) -> bool:
    """Tell whether it is the merged model itself, published or not."""
    entry = catalog().variants.get(variant)
    return entry is None or "merged" in entry.traits


def _batch_finding(worker: EngineWorker, reference: Reference, result: Examination, few: float) -> Finding | None:
    """Give what batches of many rows show, or those in which texts were decoded; nothing where `few` rows, |Δ| apart, show it too."""
    limit = max(EXACT_CACHE, _limits(worker.name).padding)
    if not in_deviations(few, reference.logit_std) <= limit:
        return None
    return wide.finding(worker, reference, limit) or _apart_in_batches(reference, result)


def _apart_in_batches(reference: Reference, result: Examination) -> Finding | None:
    """Say that a text got something else in a batch than alone, where its cache alone is right; not of mixtures of experts, of which two
    may be almost equally good."""
    known = expected.read(reference.files)
    if known is None or rounded.chooses_experts(known.config):
        return None
    for prompt in result.prompts:
        error, cached = prompt.batch_error_max_absolute, prompt.cache_error_max_absolute or 0.0
        if error is None or in_deviations(cached, reference.logit_std) > EXACT_CACHE:
            continue  # a wrong cache is told as one
        if (deviations := in_deviations(error, reference.logit_std)) > EXACT_CACHE:
            return wide.report(prompt.batch_rows or 2, deviations, EXACT_CACHE)
    return None


def _named(folder: Path, reference: Reference, ends: Sequence[int] | None) -> list[Finding]:
    """Give what its files say of labels and special tokens that is not so of the live model."""
    changes = []
    if difference := _label_difference(folder, reference.subject.labels) or _threshold_difference(folder, reference.subject):
        changes.append(findings.changed("labels", difference))
    if difference := special_tokens.difference(folder, reference.special, ends):
        changes.append(findings.changed("special tokens", difference, "generation_config.json, config.json or tokenizer_config.json"))
    return changes


def _draft(reference: Reference, place: int, merged: Merged | None) -> list[int]:
    """Give what an artifact will decode if it is sound: what the merged model did, whose weights it has; nothing where that is unknown."""
    number = reference.number(place)
    return list(merged.tokens[number]) if merged is not None and number < len(merged.tokens) else []


def _growth_figures(reference: Reference, rows: list[Rows], prompts: list[PromptFigures]) -> CheckFigures:
    """Measure whether differences grow over the positions; nothing for encoders, whose positions see each other."""
    if reference.subject.kind == "encoder":
        return CheckFigures()
    figures = CheckFigures()
    if (live := growth.of([row.means for row in rows])) is not None:
        figures = figures.plus(growth=live[0], growth_interval=live[1])
    # The first step is the prompt's own pass.
    cached = growth.of([np.array(prompt.cache_steps[1:]) for prompt in prompts if prompt.cache_steps])
    return figures if cached is None else figures.plus(cache_growth=cached[0])


def _decoding_figures(reference: Reference, prompts: list[PromptFigures]) -> CheckFigures:
    """Give the results of greedy decoding through the cache; None where nothing is decoded."""
    if not prompts[0].has("tokens"):
        return CheckFigures(greedy_identical=None, greedy_prompts=None, cache_error_max_absolute=None)
    figures = CheckFigures(
        greedy_identical=sum(bool(prompt.greedy_identical) for prompt in prompts),
        greedy_prompts=len(prompts),
        cache_error_max_absolute=_largest(prompt.cache_error_max_absolute for prompt in prompts),
        **greedy_likeness([(prompt.tokens or [], sample.tokens) for prompt, sample in zip(prompts, reference.samples, strict=True)]).given,
    )
    if ways := prompts[0].cache_errors:
        figures = figures.plus(cache_errors={way: _largest((prompt.cache_errors or {}).get(way) for prompt in prompts) for way in ways})
    return figures


def _largest(errors: Iterable[float | None]) -> float | None:
    """Give the largest error; None where there is none."""
    return max((error for error in errors if error is not None), default=None)


def _padding_figures(worker: EngineWorker, reference: Reference) -> CheckFigures:
    """Give max |Δ| between padded batches and their rows alone, on each side that the live model itself can be padded on."""
    errors = {side: padding_error(worker, reference.samples, side) for side in reference.sides}
    if not errors:
        return CheckFigures()  # a figure that is missing is reported as something that nobody verified
    figures = CheckFigures(padding_error_max_absolute=max(errors.values()))
    return figures if reference.subject.kind == "causal" else figures.plus(padding_errors=errors)


def logits_file(folder: Path, number: int) -> Path:
    """Give where the logits of a prompt lie."""
    return folder / f"{number}.npy"


@contextlib.contextmanager
def comparable() -> Iterator[None]:
    """Outputs that can't be compared are the artifact's failure."""
    try:
        yield
    except ValueError as error:
        raise WorkerFailed(str(error), _REMEDY, code=FaultCode.LOGITS, of_precision=isinstance(error, NotFiniteError)) from error


def _decoded(worker: EngineWorker, sample: Sample, figures: PromptFigures) -> PromptFigures:
    """Give the figures with those of the artifact's own greedy decoding through its cache, compared with the live model's tokens."""
    decoded = worker.ask(Greedy(ids=sample.ids, tokens=len(sample.tokens), verify=True))
    tokens = decoded.tokens
    same = same_start(tokens, sample.tokens)
    figures = figures.plus(
        tokens=tokens,
        greedy_identical=tokens == sample.tokens,
        first_different_token=None if tokens == sample.tokens else same,
        cache_error_max_absolute=decoded.cache_error,
        cache_steps=decoded.cache_steps,
    )
    if decoded.batch_error is not None:
        figures = figures.plus(batch_error_max_absolute=decoded.batch_error, batch_rows=decoded.batch_rows)
    return figures if decoded.cache_errors is None else figures.plus(cache_errors=decoded.cache_errors)


def _samples(worker: EngineWorker, reference: Reference, result: Examination, outputs: Path) -> tuple[SampleFigures, ...]:
    """Give the first prompts with both answers, for a person to look at."""
    if not reference.readable:
        return ()
    samples = []
    for number, sample in enumerate(reference.samples[:SHOWN]):
        try:
            tokens = result.prompts[number].tokens or []
            text = answer_text(worker, reference.subject, sample, tokens, np.load(logits_file(outputs, number)))
        except WorkerRefused:
            text = None  # a tokenizer that can't be used is a reason of its own
        samples.append(SampleFigures(prompt=sample.text, reference=sample.continuation, text=text))
    return tuple(samples)


def _label_difference(folder: Path, wanted: tuple[str, ...] | None) -> str | None:
    """Say why the names that an artifact gives its labels are not `wanted`; None where they are, or where it carries no configuration."""
    labels = labels_of(folder) if wanted is not None else None
    if labels is None or wanted is None or labels == wanted:
        return None
    if len(labels) != len(wanted):
        return f"it names {len(labels)} labels and the live model {len(wanted)}"
    number = same_start(labels, wanted)
    return f"its labels have other names than the live model's: label {number} is {labels[number]!r} instead of {wanted[number]!r}"


def _threshold_difference(folder: Path, subject: ValidatedTask) -> str | None:
    """Say why an artifact chooses labels from other probabilities on; None where it does not, or where it carries no configuration."""
    if subject.head != "labels" or not (folder / "config.json").is_file():
        return None
    usual = (0.5,) * len(subject.labels or ())
    mine, wanted = thresholds_of(folder) or usual, subject.thresholds or usual
    if (number := same_start(mine, wanted)) == min(len(mine), len(wanted)):
        return None
    return f"its labels have other thresholds than the live model's: label {number} has {mine[number]:g} instead of {wanted[number]:g}"


def _tokenizer_difference(worker: EngineWorker, reference: Reference) -> str | None:
    """Say why the artifact's own tokenizer can't stand in for the reference's, or None when all prompts give the same ids."""
    texts = [sample.text for sample in reference.samples]
    firsts = [sample.first for sample in reference.samples if sample.first is not None]
    try:
        encoded = worker.ask(Encode(texts=texts, firsts=firsts or None)).ids
    except WorkerRefused as error:
        return f"its tokenizer can't be used: {error.cause}"
    for number, (sample, ids) in enumerate(zip(reference.samples, encoded, strict=True)):
        if ids != sample.encoded:
            return (
                f"its tokenizer gives other token ids than the reference's: prompt {number + 1} becomes {len(ids)} ids instead of"
                f" {len(sample.encoded)}, different from position {same_start(ids, sample.encoded)} on"
            )
    return None
