"""The stages `check-VARIANT`: one artifact run as a user would, and compared with the live model and the merged one.

Called by `handlers/__main__.py`, in the Python that the artifact's engine needs. The model runs in a worker process of its own, so that a
crash is a verdict and peak memory is that model's. Whatever happens to the artifact becomes its check: the stage itself fails only
where the box does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daemon.contract.disk.files import remove_tree
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import Variant
from daemon.contract.jobs.figures import Checking
from daemon.contract.jobs.messages import ArtifactCheck, StageContext, Verdict
from daemon.contract.jobs.plan import CHECK, is_over_base
from handlers.child.progress import Reporter, StageOutput
from handlers.onnx.options import OnnxOptions
from handlers.validate import findings, record
from handlers.validate.checks import room
from handlers.validate.checks.examination import Examination, examine, logits_file
from handlers.validate.checks.finishing import finish
from handlers.validate.checks.live.reference import Reference
from handlers.validate.engines.registry import artifact_spec, engine_for, engines
from handlers.validate.files import smaller
from handlers.validate.folders import portability
from handlers.validate.outside import external, optimum_reader
from handlers.validate.reading_on import ReadingOn
from handlers.validate.twins import judging
from handlers.validate.verdict import judge, unrunnable
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import CompareWeights


def run(context: StageContext, reporter: Reporter, *, scripts: bool = True) -> StageOutput:
    """Check the variant that the stage is named after; write `check.json` into the staging folder. `scripts`: those in its folder may run.

    Raises Permanent where its format's declaration can't be read in this Python.
    """
    variant = catalog().variants.get(context.stage.removeprefix(CHECK))
    if variant is None:
        cause = "; ".join(["no format that can be loaded in this Python declares its variant", *catalog().problems])
        remedy = "let the format's declaration import daemon.contract alone, or install there what it imports"
        raise Permanent(FaultCode.ENGINE_MISSING, f"run the stage {context.stage}", cause, remedy)
    reference = record.read_reference(Path(context.inputs["reference"]))
    output = StageOutput(figures=Checking(checked_on=record.processor()).written(), strategy=context.strategy)
    staging = Path(context.staging)
    if reference.subject.engine not in engines().get(variant.limits.engine, {}):
        able = ", ".join(engines().get(variant.limits.engine, {})) or "nothing"
        reason = (
            f"no engine here can run {variant.name}: the model is of the kind {reference.subject.engine}, its engine"
            f" {variant.limits.engine} takes {able}"
        )
        remedy = f"test {variant.name} on its own platform before you use it"
        output.reusable = False  # another engine may come with another version of its package
        check = ArtifactCheck(variant=variant.name, verdict=Verdict.UNVERIFIED, reasons=(reason,), remedy=remedy)
        record.add_check(staging, output, check, None, reporter)
        return output
    examination = Examination()
    try:
        _examine(context, reporter, reference, variant, output, examination, scripts=scripts)
    except WorkerFailed as error:
        reporter.checkpoint()
        if error.details:
            print(error.details, flush=True)  # into the attempt's log, which the remedy names
        output.reusable = False
        record.add_check(staging, output, unrunnable(variant.name, error, examination.findings), None, reporter)
        return output
    options = context.work.validation
    check = judge(variant.name, variant.limits, examination, options.thresholds.get(variant.name), options.undecided)
    record.add_check(staging, output, check, examination, reporter)
    if sentence := optimum_reader.sentence(variant.name, examination.figures.foreign):
        output.warnings.append(sentence)
    return output


def _examine(
    context: StageContext, reporter: Reporter, reference: Reference, variant: Variant, output: StageOutput, examination: Examination,
    *, scripts: bool,
) -> None:  # fmt: skip
    """Run the artifact. What is found out goes into `examination`, so that it is known even if the artifact can't be run to the end."""
    folder, scratch = context.inputs[variant.name], Path(context.temporary)
    subject = reference.subject
    engine = engine_for(variant.limits.engine, context, subject.kind)
    spec = artifact_spec(context, engine, folder, subject)
    outputs = scratch / "logits"
    # What it was made of is compared with it; the merge is there for its weights too, where it was not made of that at once.
    sources = (name for name in (variant.form_of, "merge") if variant.form_of and name in variant.needs)
    source = next((context.inputs[name] for name in sources if name in context.inputs), None)
    weighed = context.inputs.get("merge", source) if variant.limits.weights else source
    with EngineWorker(variant.name, spec, scratch, context.limits) as worker:
        about = worker.load()
        whole, reference = reference, room.fitting(reference, about.context_length)
        output.warnings += room.warn(variant.name, whole, reference, about.context_length)
        if weighed:
            answer = worker.ask(CompareWeights(source=weighed))
            examination.findings += [findings.weights(answer.reason, variant.name)] if answer.reason else []
            examination.weighed = answer.compared and not variant.limits.loose and not is_over_base(variant.name)
        merged, exact = record.read_merged(context.inputs.get("merged")), variant.limits.exact
        if merged is not None and merged.unlike and not is_over_base(variant.name):
            examination.findings.append(findings.merge(merged.unlike))
        examine(worker, reference, outputs, merged, tokenizer=True, exact=exact, progress=reporter.progress, result=examination)
        finish(worker, engine, reference, outputs, examination, output, exact=exact)
        ReadingOn(context, reporter, reference, worker, variant.name, variant.limits, examination).until_decided()
    tokens = examination.prompts[0].tokens or []
    own = optimum_reader.OwnAnswer(Path(folder), reference.subject, reference.samples[0], logits_file(outputs, 0), tokens)
    foreign = external.other_program(context, variant, reference, own, reporter.checkpoint)
    if foreign is not None:
        examination.figures = examination.figures.plus(foreign=foreign)
    rows = np.load(logits_file(outputs, 0)) if subject.kind == "encoder" else None
    remove_tree(outputs)
    if (fault := smaller.fault(variant, Path(folder), _beside(context, variant))) and not _names(examination, "weights"):
        examination.findings.append(findings.weights(fault, variant.name))
    if scripts and (fault := external.example_fault(context, variant, spec, reference, examination, rows)):
        examination.findings.append(findings.example(fault))
    nearest = variant.arithmetic != "blocks" or context.work.options(OnnxOptions).algorithm != "hqq"  # which clips as it likes
    graphs = portability.check(Path(folder), variant.arithmetic, Path(source) if source else None, nearest=nearest)
    if graphs.weights and not _names(examination, "weights"):
        examination.findings.append(findings.weights(graphs.weights, variant.name))
    if graphs.fault:
        examination.findings.append(findings.portability(graphs.fault, variant.name))
    examination.figures = examination.figures.plus(**graphs.figures.given)
    if variant.limits.twin:
        reporter.progress(0.95, f"{variant.name}, beside the model that its own weights give")
        twin = judging.compared(context, variant, engine, reference, about.context_length)
        if _names(examination, "weights"):
            twin.findings = [finding for finding in twin.findings if finding.aspect != "weights"]
        examination.add(twin)


def _beside(context: StageContext, variant: Variant) -> Path | None:
    """Give the folder of the form that a variant is a smaller form of, where its stage was told of it."""
    return Path(context.inputs[variant.form_of]) if variant.form_of and variant.form_of in context.inputs else None


def _names(examination: Examination, aspect: str) -> bool:
    return any(finding.aspect == aspect for finding in examination.findings)
