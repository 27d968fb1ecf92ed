"""The validate stage: every artifact run as a user would, and compared with the live base + adapter.

Called by `handlers/__main__.py`. Each model runs in a worker process of its own, so that a crash costs one verdict
and peak memory is that model's. The reference is fp32 (bf16 and fp16 weights are exact in it), and it is freed before
the merged model is loaded: at most two models, merged and one artifact, are in memory at a time. This process itself
imports numpy and nothing heavier. A reference that can't be run fails the stage; an artifact that can't, its own check.
An interrupted validation goes on after the last model that was examined to its end.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from daemon.contract import cpu
from daemon.contract.catalog import catalog
from daemon.contract.errors import Permanent, Retryable
from daemon.contract.files import remove_tree
from daemon.contract.messages import ArtifactCheck, StageContext, Verdict
from daemon.contract.plan import effective_variants, find_variant
from handlers.child.progress import Reporter, StageOutput
from handlers.models import prompts
from handlers.validate import record
from handlers.validate.checks import base_likelihood, external, optimum_reader, portability, speed
from handlers.validate.checks.examination import Examination, examine, logits_file
from handlers.validate.checks.reference import Progress, Reference, measure
from handlers.validate.engines.registry import EXACT, EngineSpec, engines
from handlers.validate.engines.task_profile import Subject, live_labels, subject_of
from handlers.validate.resume import Kept, folder_state
from handlers.validate.verdict import blindness, judge
from handlers.validate.workers.client import Worker, WorkerFailed


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Check every variant of the job that was made; write `validation.json` into the staging folder.

    Raises Permanent or Retryable when the live model, or the prompts, can't be used.
    """
    export = context.work.export
    variants = [name for name in effective_variants(export.variants, export.quantization) if name in context.inputs]
    texts, warnings = prompts.load(context.work.validation)
    folder = Path(context.temporary) / "validate"
    remove_tree(folder)
    folder.mkdir(parents=True)
    subject = _subject(context)
    kept = Kept(Path(context.staging), _made_for(context, texts, subject))
    with ExitStack() as stack:
        validation = _Validation(context, reporter, variants, folder, kept, stack, subject)
        validation.output.warnings += warnings
        validation.measure_reference(texts)
        validation.check_merged()
        for variant in variants:
            if variant != validation.merged_name:
                validation.check(variant)
        validation.write()
        validation.output.figures["resumed"] = kept.reused
    kept.remove()
    remove_tree(folder)
    return validation.output


class _Validation:
    """One run of the stage: the workers that are alive, and what has been found out so far."""

    def __init__(
        self, context: StageContext, reporter: Reporter, variants: list[str], folder: Path, kept: Kept, stack: ExitStack, subject: Subject
    ) -> None:
        self.context = context
        self.output = StageOutput()
        self.merged_name = "pytorch" if "pytorch" in context.inputs else "merge"
        self._reporter = reporter
        self._variants = variants
        self._folder = folder
        self._kept = kept
        self._stack = stack
        self._subject = subject
        self._steps = 2 + len(variants)
        self._done = 0
        self._details: dict[str, Any] = {}
        self._merged: Worker | None = None
        self._comparable = False
        """Whether the merged model's logits are there to be compared with."""

    def measure_reference(self, texts: list[str]) -> None:
        """What the live model says: kept from an interrupted attempt, or found out now."""
        kept = self._kept.reference()
        if kept is None:
            self.reference = self._measured(texts)
            self._kept.keep_reference(self.reference)
        else:
            self.reference = kept
        self.output.figures["reference"] = self.reference.figures
        self.output.figures["checked_on"] = cpu.here().facts
        if self.reference.bases is not None:
            self.output.figures["bases"] = record.finite(self.reference.bases)
        self.output.figures["prompts"] = [sample.text for sample in self.reference.samples]
        self.output.warnings += self.reference.warnings
        self.output.fallbacks += self.reference.fallbacks
        if blind := blindness(self.reference.adapter, self._variants, self.context.work.validation.thresholds):
            self.output.warnings.append(blind)

    def _measured(self, texts: list[str]) -> Reference:
        """Run the live model, then let it go."""
        context, options = self.context, self.context.work.validation
        # A full fine-tune is a transformers folder as it is, and needs no PEFT.
        engine = "torch" if context.base is None else "live"
        live = self._start("live", self._spec(engine, context.pin, context.base))
        if context.limits.threads > 1:
            self._merged = self._start_merged()  # imports its libraries while the live model works; loads nothing yet
        try:
            reference = measure(live, texts, options, self._kept.folder, self._progress(), self._subject, base_likelihood.taken(context))
            timing = speed.alone(live, reference)
            stats = live.ask("stats")
            reference.bases = base_likelihood.compare(live, reference, context, self._folder, self._progress())
        except WorkerFailed as error:
            self._reporter.checkpoint()  # a stage that is told to stop loses its workers too
            kind = Retryable if error.transient else Permanent
            raise kind(
                error.code, "run the live model as the reference", error.cause, error.remedy, path=context.pin, details=error.details
            ) from error
        finally:
            live.close()
        reference.figures = {
            "dtype": "float32",
            "method": base_likelihood.method(context),
            "tokens_per_second": timing["tokens_per_second"],
            "prefill_seconds": timing["prefill_seconds"],
            "peak_rss_bytes": stats["peak_rss_bytes"],
            "load_seconds": stats["load_seconds"],
            "adapter": reference.adapter,
        }
        if self._subject.kind != "causal":
            reference.figures["task"] = self._subject.task
        return reference

    def check_merged(self) -> None:
        """Run the merged model in PyTorch: an artifact itself where it is published, and what ONNX is compared with."""
        self._done += 1
        published = self.merged_name in self._variants
        folder = self.context.inputs[self.merged_name]
        examination = self._kept.examination(self.merged_name, folder, merged=False)
        logits = [logits_file(self._merged_logits, number) for number in range(len(self.reference.samples))]
        if examination is None:
            try:
                examination = self._examined_merged(published)
            except WorkerFailed as error:
                self._lose_merged(error)
                if published:
                    self._add(_unrunnable(self.merged_name, error), None)
                return
            self._kept.keep_examination(self.merged_name, folder, examination, merged=False, logits=logits)
        self._comparable = True
        self._kept.compare_with(logits)
        self.output.figures["merged"] = record.finite(examination.figures)
        if published:
            limits = self.context.work.validation.thresholds.get(self.merged_name)
            self._add(judge(self.merged_name, EXACT, examination, limits), examination)

    def _examined_merged(self, published: bool) -> Examination:
        if self._merged is None:
            self._merged = self._start_merged()
        examination = self._examine(self._merged, self._merged_logits, None, tokenizer=published)
        examination.figures |= speed.alone(self._merged, self.reference) | {"speed_over_pytorch": None}
        examination.figures["pytorch_tokens_per_second"] = examination.figures["tokens_per_second"]
        self._add_stats(self._merged, examination)
        return examination

    def check(self, variant: str) -> None:
        """Run one artifact in its own worker; whatever happens to it becomes its check."""
        self._done += 1
        known = find_variant(variant)
        if known is None or self._subject.kind not in engines().get(known.limits.engine, {}):
            reason, remedy = f"no engine here can run {variant}", f"try {variant} on its own platform before it is used"
            self._add(ArtifactCheck(variant=variant, verdict=Verdict.UNVERIFIED, reasons=(reason,), remedy=remedy), None)
            return
        folder = self.context.inputs[variant]
        examination = self._kept.examination(variant, folder, merged=True) if self._comparable else None
        if examination is None:
            spec = self._spec(known.limits.engine, folder)
            try:
                examination = self._examined(variant, spec)
            except WorkerFailed as error:
                self._add(_unrunnable(variant, error), None)
                return
            if self._comparable:  # without the merged model's part it is not whole: a further attempt may find out more
                self._kept.keep_examination(variant, folder, examination, merged=True)
        self._add(judge(variant, known.limits, examination, self.context.work.validation.thresholds.get(variant)), examination)
        if told := optimum_reader.sentence(variant, examination.figures.get("foreign")):
            self.output.warnings.append(told)

    def _examined(self, variant: str, spec: EngineSpec) -> Examination:
        self._have_merged_loaded()
        worker = self._start(variant, spec)
        outputs = self._folder / variant
        try:
            examination = self._examine(worker, outputs, self._merged_logits if self._comparable else None, tokenizer=True)
            figures, lost = speed.race(worker, self._merged, self.reference)
            examination.figures |= figures
            self._add_stats(worker, examination)
            worker.close()
            examination.figures |= external.other_program(
                self.context, variant, spec, self._subject, self.reference, examination, logits_file(outputs, 0), self._reporter.checkpoint
            )
            examination.example = external.example_fault(spec, self.reference, examination)
            portable, examination.portability = portability.check(Path(spec.folder), catalog().variants[variant].arithmetic)
            examination.figures |= portable
        except WorkerFailed:
            self._reporter.checkpoint()
            raise
        finally:
            worker.close()
            remove_tree(outputs)
        if lost is not None:
            self._lose_merged(lost)
        return examination

    def _have_merged_loaded(self) -> None:
        """The merged model whose examination was kept still has to run beside the artifacts that are left."""
        if self._merged is not None or not self._comparable or not self.reference.speed_tokens:
            return
        self._merged = self._start_merged()
        try:
            self._merged.load()
        except WorkerFailed as error:
            self._lose_merged(error)

    def write(self) -> None:
        """Write validation.json."""
        record.write(Path(self.context.staging), self.reference, self.output, self._details)

    def _start(self, name: str, spec: EngineSpec) -> Worker:
        return self._stack.enter_context(Worker(name, spec, self._folder, self.context.limits))

    def _start_merged(self) -> Worker:
        return self._start(self.merged_name, self._spec("torch", self.context.inputs[self.merged_name]))

    def _spec(self, engine: str, folder: str, base: str | None = None) -> EngineSpec:
        return EngineSpec(engine=engine, folder=folder, base=base, threads=self.context.limits.threads, task=self._subject.task)

    @property
    def _merged_logits(self) -> Path:
        return self._kept.folder / f"{self.merged_name}-logits"

    def _examine(self, worker: Worker, outputs: Path, merged: Path | None, *, tokenizer: bool) -> Examination:
        return examine(worker, self.reference, outputs, merged, tokenizer=tokenizer, progress=self._progress())

    def _add_stats(self, worker: Worker, examination: Examination) -> None:
        stats = worker.ask("stats")
        examination.figures |= {"load_seconds": stats["load_seconds"], "peak_rss_bytes": stats["peak_rss_bytes"]}

    def _add(self, check: ArtifactCheck, examination: Examination | None) -> None:
        self.output.checks.append(check.model_copy(update={"figures": record.finite(check.figures)}))
        if examination is not None:
            self._details[check.variant] = {"prompts": examination.prompts}
        if check.verdict is not Verdict.PASSED:
            self._reporter.warn(f"{check.variant}: {check.verdict.value}: {'; '.join(check.reasons)}")

    def _lose_merged(self, error: WorkerFailed) -> None:
        """Go on without the merged PyTorch model, and say so."""
        self._reporter.checkpoint()
        assert self._merged is not None
        self._merged.close()
        self._merged = None
        self._comparable = False
        what = "Artifacts were compared with the live model alone and speed was not compared with PyTorch"
        self.output.warnings.append(f"{what}, since the merged model could not be run: {error.cause}.")

    def _progress(self) -> Progress:
        done = self._done
        return lambda fraction, message: self._reporter.progress((done + fraction) / self._steps, message)


def _made_for(context: StageContext, texts: list[str], subject: Subject) -> list[Any]:
    """All that every record of an interrupted validation depends on."""
    options = context.work.validation.model_dump(mode="json")
    return [
        texts,
        options,
        folder_state(context.pin),
        folder_state(context.base),
        asdict(subject),
        base_likelihood.taken(context),
        cpu.here().key,
    ]


def _subject(context: StageContext) -> Subject:
    """What the merged model is for; its labels must have the names that the live model's have."""
    subject = subject_of(Path(context.inputs["merge"]))
    return replace(subject, labels=live_labels(subject, Path(context.base) if context.base else None))


def _unrunnable(variant: str, error: WorkerFailed) -> ArtifactCheck:
    figures = {"log_end": error.details} if error.details else {}
    reasons = (f"it could not be run: {error.cause}",)
    return ArtifactCheck(variant=variant, verdict=Verdict.FAILED, reasons=reasons, remedy=error.remedy, figures=figures)
