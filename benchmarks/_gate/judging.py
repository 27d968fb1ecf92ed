"""The project's gate, run on one artifact after the other in this process: what the stages `reference`, `merged` and `check-VARIANT` do.

A worker answers here through JSON as it would through its pipe (`tests.validate.bench.Direct`); stored weights are compared, and graphs
with their twins. What is not done: the example, tasks of one's own, scores, speed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

from benchmarks import _stages
from benchmarks._gate.forms import sources
from benchmarks._gate.subjects import Subject
from daemon.contract.formats.declaration import Limits
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.messages import ArtifactCheck, ChildLimits, StageContext
from daemon.contract.jobs.options import Undecided, ValidateOptions
from daemon.contract.jobs.plan import CHECK
from handlers.child import warm
from handlers.child.progress import Reporter
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.selection import comparison_texts
from handlers.validate import check, reading_on, record
from handlers.validate.checks.examination import Examination, examine
from handlers.validate.engines.registry import EXACT, EngineSpec
from handlers.validate.reading_on import ReadingOn
from handlers.validate.verdict import judge, unrunnable
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Loaded
from tests.validate import bench
from tests.validate.bench import Direct


@dataclass(frozen=True)
class Judged:
    """A verdict and what it took."""

    check: ArtifactCheck
    undecided: bool
    """Whether it depends on `validate.undecided`: the texts left a limit open that alone decides it."""
    seconds: float
    """Processor time of this process and its children."""

    @property
    def prompts(self) -> int:
        """How many texts were read; 0 where it could not be run."""
        read = [decision.get("texts", 0) for decision in self.check.figures.get("decisions", ())]
        return max([*read, self.check.figures.get("texts") or 0])


class Here(Direct):
    """A worker in this process, of which a stage may ask all that it asks of one elsewhere."""

    pid = os.getpid()

    def __init__(self, name: str, spec: EngineSpec) -> None:
        super().__init__(name, spec)
        self._loaded: Loaded | None = None

    def load(self) -> Loaded:
        """Load the model, once."""
        if self._loaded is None:
            self._loaded = super().load()
        return self._loaded


class Gate:
    """The gate for the artifacts of one subject: the live model is measured once, and kept."""

    def __init__(self, subject: Subject, scratch: Path, texts: Sequence[str], *, apart: bool = False) -> None:
        """`texts`: the training's data, of which the comparison takes its own. `apart`: artifacts are run in processes of their own."""
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        self._scratch, self._apart, self._sources = scratch, apart, partial(sources, subject)
        self._live: Here | None = None
        (scratch / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self._context = _context(subject, scratch)
        options = self._context.work.validation
        prompts = comparison_texts(options, Rendering.of(ModelFiles.of_job(self._context))).plain
        halves = "float32" not in str(next(iter(subject.tensors.values())).dtype)
        self._bench = bench.measured(
            subject.checkpoint, subject.base, subject.merged, scratch / "live", prompts, new_tokens=options.new_tokens, halves=halves,
            merging=True,
        )  # fmt: skip
        self._merged = scratch / "merged"
        self._merged.mkdir()
        with self._worker("pytorch", self._spec("torch", subject.merged)) as worker:
            logits, reference = record.logits_folder(self._merged), self._bench.reference
            sound = examine(worker, reference, logits, None, tokenizer=False, exact=True, progress=bench.quiet)
        record.mark_comparable(self._merged, sound)

    def judged(self, variant: str, folder: Path, *, files: bool = False) -> Judged:
        """Judge a folder as that of a variant. `files`: also the files beside the weights, of a folder as merged."""
        began = time.process_time() + _of_children()
        check, undecided = self._of_merge(folder, files=files) if variant == "pytorch" else self._of_form(variant, folder)
        return Judged(check, undecided, time.process_time() + _of_children() - began)

    def _of_merge(self, folder: Path, *, files: bool) -> tuple[ArtifactCheck, bool]:
        """Judge a merge as the stage `merged` does."""
        reference = self._bench.reference if files else replace(self._bench.reference, files=None)
        outputs = self._scratch / "outputs"
        shutil.rmtree(outputs, ignore_errors=True)
        examination = Examination()
        try:
            with self._worker("pytorch", self._spec("torch", folder)) as worker:
                examine(worker, reference, outputs, None, tokenizer=files, exact=True, progress=bench.quiet, result=examination)
                with self._live_kept():
                    ReadingOn(self._context, _silent(), reference, worker, "pytorch", EXACT, examination).until_decided()
        except WorkerFailed as error:
            return unrunnable("pytorch", error, examination.findings), False
        verdicts = _Verdicts()
        options = self._context.work.validation
        return verdicts.judge("pytorch", EXACT, examination, options.thresholds["pytorch"], options.undecided), verdicts.differ

    def _of_form(self, variant: str, folder: Path) -> tuple[ArtifactCheck, bool]:
        """Judge a form by its stage `check-VARIANT`, all but the example, of a sound merge."""
        inputs = {**self._sources(variant), "merged": self._merged, "reference": self._scratch, variant: folder}
        context = self._context.model_copy(
            update={"stage": f"{CHECK}{variant}", "inputs": {name: str(path) for name, path in inputs.items()}}
        )
        verdicts = _Verdicts()
        with contextlib.ExitStack() as replaced:
            replaced.enter_context(mock.patch.object(check.record, "read_reference", lambda _: replace(self._bench.reference)))
            replaced.enter_context(mock.patch.object(check, "judge", verdicts.judge))
            replaced.enter_context(mock.patch.object(check, "EngineWorker", lambda name, spec, *_: self._worker(name, spec)))
            replaced.enter_context(mock.patch.object(warm, "is_forked", lambda: True))  # programs of ours begin with what is loaded here
            replaced.enter_context(self._live_kept())
            (judged,) = check.run(context, _silent(), scripts=False).checks
        return judged, verdicts.differ

    def _spec(self, engine: str, folder: Path) -> EngineSpec:
        subject = self._bench.subject
        return EngineSpec(engine=engine, folder=str(folder), task=subject.task, sentence=subject.sentence)

    def _live_kept(self) -> contextlib.AbstractContextManager[object]:
        """Let what reads on ask the live model that is there already."""
        if self._apart:
            return contextlib.nullcontext()
        return mock.patch.object(reading_on, "EngineWorker", self._live_worker)

    def _live_worker(self, name: str, spec: EngineSpec, *_: object, **__: object) -> contextlib.AbstractContextManager[Here]:
        self._live = self._live or Here(name, spec)
        return contextlib.nullcontext(self._live)

    def _worker(self, variant: str, spec: EngineSpec) -> contextlib.AbstractContextManager[EngineWorker]:
        if self._apart:
            return EngineWorker(variant, spec, self._scratch, ChildLimits(threads=1))
        return contextlib.nullcontext(cast(EngineWorker, Here(variant, spec)))


@dataclass
class _Verdicts:
    """Judges, and remembers whether what the texts left open alone decides it."""

    differ: bool = False

    def judge(
        self, variant: str, own: Limits, examination: Examination, thresholds: Thresholds | None, undecided: Undecided
    ) -> ArtifactCheck:
        """See `verdict.judge`."""
        sides: tuple[Undecided, ...] = ("accept", "reject")
        self.differ = len({judge(variant, own, examination, thresholds, side).verdict for side in sides}) > 1
        return judge(variant, own, examination, thresholds, undecided)


def _silent() -> Reporter:
    return Reporter(io.StringIO())


def _of_children() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _context(subject: Subject, scratch: Path) -> StageContext:
    """Give what a stage knows of the job."""
    path = _stages.job_file(
        scratch / "job", "merged", {"merge": subject.merged}, subject.checkpoint, base=subject.base, limits=ChildLimits(threads=1)
    )
    context = StageContext.model_validate_json(path.read_bytes())
    validation = ValidateOptions(data=str(scratch / "data.jsonl"), speed_tokens=0)
    return context.model_copy(update={"work": context.work.model_copy(update={"validation": validation})})


def shown(check: ArtifactCheck) -> dict[str, Any]:
    """Give what is kept of a check."""
    figures = check.figures
    names = ("kl", "kl_interval", "agreement", "error_max", "fine_tuning", "positions", "texts")
    return {
        "verdict": check.verdict.value, "reasons": [reason[:160] for reason in check.reasons],
        **{name: figures[name] for name in names if figures.get(name) is not None},
        "long": {name: value for name, value in (figures.get("long") or {}).items() if name in ("step_ratio", "growth", "kl", "positions")},
        "decisions": {decision["limit"]: decision.get("outcome", "undecided") for decision in figures.get("decisions", ())},
    }  # fmt: skip
