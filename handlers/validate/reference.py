"""The stage `reference`: what the live model, base + adapter, answers on the prompts. Once a checkpoint; every check compares with it.

Called by `handlers/__main__.py`. The reference is fp32 (bf16 and fp16 weights are exact in it) and runs in a worker process of its own.
Its output, `reference.json` with the logits beside it, is kept under the stage's key, so that a retry or a further format asks nothing
again; a part of it, `answers/`, is published with the artifacts. This process itself imports numpy and nothing heavier. A reference that
can't be run fails the stage.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from daemon.contract.disk.export_layout import ANSWERS
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.figures import LiveFigures, LiveSample, ReferenceFigures, TextsFigures
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.models.folder import ModelFolder
from handlers.texts import distribution
from handlers.texts.distribution import Vocabulary
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.selection import Texts, choose_calibration, comparison_texts, made_up
from handlers.validate import record
from handlers.validate.checks import answers, media, scoring
from handlers.validate.checks.live import base_likelihood, far, rounded
from handlers.validate.checks.live.base_texts import BaseTexts
from handlers.validate.checks.live.reference import LiveModel, Reference, measure
from handlers.validate.checks.live.samples import SHOWN, Sample
from handlers.validate.engines.registry import LAYERWISE, as_taken, base_values, engine_for, live_spec
from handlers.validate.engines.task_profile import ValidatedTask, live_labels, subject_of
from handlers.validate.files import expected
from handlers.validate.folders import special_tokens
from handlers.validate.kept import archive
from handlers.validate.miniature import proof
from handlers.validate.workers.client import RETRY, EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import AskStats

LEARNT = 256
"""Texts of the training's data whose scripts are compared with those of the prompts."""


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Ask the live model and write what it says into the staging folder.

    Raises Permanent or Retryable when the live model, or the prompts, can't be used.
    """
    subject = _subject(context)
    if subject.reads_text:
        texts = comparison_texts(context.work.validation, Rendering.of(ModelFiles.of_job(context)))
    else:
        texts = made_up(subject.media == "image", context.work.validation.samples)
    reference = _measured(context, reporter, texts, subject)
    record.write_reference(Path(context.staging), reference)
    archive.write(Path(context.staging, ANSWERS), reference)
    described, unfit = _described(context, texts, reference)
    figures = ReferenceFigures(
        reference=reference.figures,
        checked_on=record.processor(),
        prompts=tuple(sample.text for sample in reference.samples),
        samples=tuple(
            LiveSample(prompt=sample.asked or sample.text, base=sample.base, text=sample.continuation) for sample in _shown(reference)
        ),
    )
    if described is not None:
        figures = figures.plus(texts=described)
    if (asked := far.questions(reference, ModelFiles.of_job(context))) is not None:
        figures = figures.plus(answers=asked)
    if reference.bases is not None:
        figures = figures.plus(bases=reference.bases)
    warnings = [*texts.warnings, *unfit, *reference.warnings]
    return StageOutput(figures=figures.written(), fallbacks=reference.fallbacks, warnings=warnings, strategy=context.strategy)


def _described(context: StageContext, texts: Texts, reference: Reference) -> tuple[TextsFigures | None, list[str]]:
    """Give what the texts are like, and why they may not fit; nothing where no tokenizer could read them."""
    if not reference.readable or not reference.subject.reads_text:
        return None, []
    options, files = context.work.validation, ModelFiles.of_job(context)
    mine = set(texts.plain)
    whole = [sample for sample in reference.samples if sample.text in mine]  # without the halves that a classifier reads too
    cut = sum(len(sample.ids) < len(sample.encoded) for sample in whole) + sum(not text.whole for text in texts.texts)
    figures = distribution.describe(texts, [sample.ids for sample in whole], Vocabulary.of(files), cut=min(cut, len(whole)))
    warnings = distribution.unfit(figures, named=bool(options.prompts or options.data))
    if options.prompts and options.data:
        learnt = choose_calibration(options.model_copy(update={"prompts": ""}), Rendering.of(files), LEARNT)
        warnings += distribution.missing_scripts(texts.plain, learnt.plain)
    return figures, warnings


def _shown(reference: Reference) -> list[Sample]:
    """Give what people get to see: nothing where the prompts are made-up token ids."""
    return reference.samples[:SHOWN] if reference.readable else []


def _subject(context: StageContext) -> ValidatedTask:
    """Give what the merged model is for; its labels must have the names that the live model's have."""
    subject = subject_of(Path(context.inputs["merge"]))
    return replace(subject, labels=live_labels(subject, Path(context.base) if context.base else None))


def _measured(context: StageContext, reporter: Reporter, texts: Texts, subject: ValidatedTask) -> Reference:
    scratch = Path(context.temporary)
    # A full fine-tune is a transformers folder as it is, and needs no PEFT.
    engine = engine_for("torch" if context.base is None else "live", context, subject.kind)
    spec = live_spec(context, engine, subject)
    warnings = proof.prove(spec, Path(context.cache), scratch, context.limits) if spec.base and engine.endswith(LAYERWISE) else []
    with EngineWorker("live", spec, scratch, context.limits) as live:
        try:
            logits = record.logits_folder(Path(context.staging))
            values = base_values(context)
            base_texts = BaseTexts(Path(context.cache), f"{context.base} {values}")
            merged = ModelFolder(Path(context.inputs["merge"]))
            seed = int.from_bytes(hashlib.sha256(context.checkpoint.digest.encode()).digest()[:8], "little")
            model = LiveModel(live, subject, values, base_texts, merged.parameters, seed)
            reference = measure(model, texts.plain, context.work.validation, logits, reporter.progress)
            base_texts.store()
            reference.samples = scoring.mark(live, reference, texts.texts, context.work.validation.new_tokens)
            said = answers.of_live(live, reference)
            reference.media, reference.no_media = media.ask_live(live, subject, logits)
            scores = scoring.score(reference, said, lambda number: reference.samples[number].logits)
            bare = None
            if scores and reference.adapter:
                bare = scoring.score_bare(live, reference, answers.of_base(live, reference), scratch)
            base = Path(context.base) if context.base else None
            known = record.files_folder(Path(context.staging))
            places = Path(context.pin), base, merged.path
            expected.write(live, *places, known, readable=reference.readable, sentences=subject.sentence, seed=seed)
            stats = live.ask(AskStats())
            reference.bases = base_likelihood.compare(live, reference, context, scratch, reporter.progress)
            halves = context.base is not None and merged.main_dtype in rounded.HALVES
            reference.long = None if reference.long is None else replace(reference.long, halves=halves)
            if not engine.endswith(LAYERWISE):
                merging = rounded.Merging(Path(context.pin), None if base is None else ModelFolder(base, "base"), merged, values)
                rounded.ask(live, reference, merging, logits, reporter.progress)
        except WorkerFailed as error:
            reporter.checkpoint()  # a stage that is told to stop loses its workers too
            kind = Retryable if error.transient else Permanent
            raise kind(
                error.code, "run the live model as the reference", error.cause, _remedy(error), path=context.pin, details=error.details
            ) from error
    reference.warnings += warnings
    reference.special = special_tokens.expected(Path(context.pin), base)
    reference.files = known
    reference.figures = LiveFigures(
        dtype="float32",
        method=base_likelihood.method(context),
        peak_rss_bytes=stats.peak_rss_bytes,
        load_seconds=stats.load_seconds,
        adapter=reference.adapter,
        no_base=_no_base(context, reference),
        perplexity=reference.perplexity,
    )
    if scores is not None:
        reference.figures = reference.figures.plus(scores=scores, **({"base_scores": bare} if bare else {}))
    if subject.kind != "causal":
        reference.figures = reference.figures.plus(task=subject.task)
    if (taken := as_taken(engine)) is not None:
        reference.fallbacks.append(taken)
        reference.figures = reference.figures.plus(way=taken.taken)
    return reference


def _remedy(error: WorkerFailed) -> str:
    """Give what to do: where a library can't run the model, the same again can't help, and what is unverified can still be published."""
    if error.transient or error.code not in (FaultCode.ENGINE, FaultCode.LIBRARY_REFUSES):
        return error.remedy
    first = "read the attempt's log, which says where it stopped" if error.remedy == RETRY else error.remedy
    return f"{first}; to publish without a check, name the variants in validate.publish_unverified"


def _no_base(context: StageContext, reference: Reference) -> str | None:
    """Say why there is no base to compare with."""
    if reference.adapter is not None:
        return None
    if context.base is None:
        return "the checkpoint is a full fine-tune, which does not say what it was trained from"
    return "the adapter brings a head that its base does not have, so that the base alone answers at random"
