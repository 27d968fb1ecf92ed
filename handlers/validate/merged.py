"""The stage `merged`: the merged model in PyTorch, compared with the live one. Every other check compares its artifact with this one too.

Called by `handlers/__main__.py`. Where the merged model itself is published (a variant with the trait "merged"), this is its check, and
the published folder is what runs. Where it can't be run and isn't published, the checks go on without it, and a warning says so.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.models.folder import ModelFolder
from handlers.validate import findings, record
from handlers.validate.checks import merge_rounding
from handlers.validate.checks.examination import Examination, examine
from handlers.validate.checks.finishing import finish
from handlers.validate.checks.live.reference import Reference
from handlers.validate.engines.registry import EXACT, artifact_spec, engine_for
from handlers.validate.folders import weights
from handlers.validate.reading_on import ReadingOn
from handlers.validate.verdict import judge, unrunnable
from handlers.validate.workers.client import EngineWorker, WorkerFailed


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
    record.mark_comparable(staging, examination)
    output.figures["merged"] = record.finite(examination.figures.written())
    if published:
        options = context.work.validation
        check = judge(published, EXACT, examination, options.thresholds.get(published), options.undecided)
        record.add_check(staging, output, check, examination, reporter)
    return output


def _examine(
    context: StageContext, reporter: Reporter, reference: Reference, published: str | None, output: StageOutput, examination: Examination
) -> None:
    folder, staging = context.inputs[published or "merge"], Path(context.staging)
    subject = reference.subject
    engine = engine_for(EXACT.engine, context, subject.kind)
    spec = artifact_spec(context, engine, folder, subject)
    if published is None:
        spec = spec.model_copy(update={"processors": tuple(filter(None, (context.pin, context.base)))})
    with EngineWorker(published or "merge", spec, Path(context.temporary), context.limits) as worker:
        logits = record.logits_folder(staging)
        tokenizer, progress = published is not None, reporter.progress
        examine(worker, reference, logits, None, tokenizer=tokenizer, exact=True, progress=progress, result=examination)
        finish(worker, engine, reference, logits, examination, output, exact=True)
        if published:
            ReadingOn(context, reporter, reference, worker, published, EXACT, examination).until_decided()
    dtype = ModelFolder(Path(context.inputs["merge"])).main_dtype
    share = merge_rounding.lost_share(examination.figures, examination.base, dtype)
    if share is not None:
        examination.figures = examination.figures.plus(rounding_share=share)
    if note := merge_rounding.sentence(share, dtype):
        examination.notes.append(note)
    if published and (difference := weights.difference(Path(folder), Path(context.inputs["merge"]))):
        examination.findings.append(findings.weights(difference, published))
