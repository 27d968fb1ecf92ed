"""The stage `merged`: the merged model in PyTorch, compared with the live one. Every other check compares its artifact with this one too.

Called by `handlers/__main__.py`. Where the merged model itself is published (a variant with the trait "merged"), this is its check, and
the published folder is what runs. Where it can't be run and isn't published, the checks go on without it, and a warning says so.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.validate import findings, record
from handlers.validate.checks import answers, scoring
from handlers.validate.checks.examination import Examination, examine, logits_file
from handlers.validate.checks.reference import Reference
from handlers.validate.engines.registry import EXACT, EngineSpec, as_taken, engine_for
from handlers.validate.folders import weights
from handlers.validate.verdict import judge, unrunnable
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import AskStats


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Run the merged model; write its logits and, where it is published, its check into the staging folder."""
    reference = record.read_reference(Path(context.inputs["reference"]))
    published = next((name for name, variant in catalog().variants.items() if "merged" in variant.traits and name in context.inputs), None)
    output, staging = StageOutput(strategy=context.strategy), Path(context.staging)
    examination = Examination()
    try:
        _examine(context, reporter, reference, published, output, examination)
    except WorkerFailed as error:
        reporter.checkpoint()
        output.reusable = False
        if published:
            record.add_check(staging, output, unrunnable(published, error, examination.findings), None, reporter)
        what = "Artifacts were compared only with the live model, and speed was not compared with PyTorch"
        output.warnings.append(f"{what}, because the merged model could not be run: {error.cause}.")
        return output
    record.mark_comparable(staging, [prompt.tokens or [] for prompt in examination.prompts])
    output.figures["merged"] = record.finite(examination.figures.written())
    if published:
        limits = context.work.validation.thresholds.get(published)
        record.add_check(staging, output, judge(published, EXACT, examination, limits), examination, reporter)
    return output


def _examine(
    context: StageContext, reporter: Reporter, reference: Reference, published: str | None, output: StageOutput, examination: Examination
) -> None:
    folder, staging = context.inputs[published or "merge"], Path(context.staging)
    subject = reference.subject
    engine = engine_for(EXACT.engine, context, subject.kind)
    spec = EngineSpec(engine=engine, folder=folder, threads=context.limits.threads, task=subject.task, sentence=subject.sentence)
    with EngineWorker(published or "merge", spec, Path(context.temporary), context.limits) as worker:
        logits = record.logits_folder(staging)
        tokenizer, progress = published is not None, reporter.progress
        examine(worker, reference, logits, None, tokenizer=tokenizer, exact=True, progress=progress, result=examination)
        said = answers.given(worker, reference.samples, exact=True)
        stats = worker.ask(AskStats())
    rows_of, went_on = partial(logits_file, logits), [prompt.tokens for prompt in examination.prompts]
    scores, marked = scoring.score(reference, said, rows_of), scoring.completion(reference, rows_of)
    examination.figures = scoring.put_into(answers.put_into(examination.figures, went_on, reference, said), scores, marked)
    examination.figures = examination.figures.plus(load_seconds=stats.load_seconds, peak_rss_bytes=stats.peak_rss_bytes)
    if published and (difference := weights.difference(Path(folder), Path(context.inputs["merge"]))):
        examination.findings.append(findings.weights(difference, published))
    if (taken := as_taken(engine)) is not None:
        output.fallbacks.append(taken)
        examination.figures = examination.figures.plus(way=taken.taken)
