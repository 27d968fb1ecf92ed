"""The project's gate, run on one artifact after the other in this process: reference, examination and verdict of the stages.

A worker answers here through JSON as it would through its pipe (`tests.validate.bench.Direct`). What a check stage does beside that, and is
not done: other processes, the example, a twin, another program, scores, speed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

from benchmarks import _stages
from benchmarks._gate.subjects import Subject
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import ArtifactCheck, ChildLimits, StageContext
from daemon.contract.jobs.options import Undecided, ValidateOptions
from handlers.child.progress import Reporter
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.selection import comparison_texts
from handlers.validate import reading_on
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
    """Processor time of this process."""

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
        self._scratch, self._apart = scratch, apart
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

    def judged(self, variant: str, folder: Path, *, files: bool = False) -> Judged:
        """Judge a folder of transformers by the limits of a variant. `files`: also the files beside the weights, of a folder as merged."""
        began = time.process_time()
        check, undecided = self._check(variant, folder, files=files)
        return Judged(check, undecided, time.process_time() - began)

    def _check(self, variant: str, folder: Path, *, files: bool) -> tuple[ArtifactCheck, bool]:
        own = EXACT if variant == "pytorch" else catalog().variants[variant].limits
        subject = self._bench.subject
        reference = self._bench.reference if files else replace(self._bench.reference, files=None)
        spec = EngineSpec(engine="torch", folder=str(folder), task=subject.task, sentence=subject.sentence)
        outputs = self._scratch / "outputs"
        shutil.rmtree(outputs, ignore_errors=True)
        examination = Examination()
        try:
            with self._worker(variant, spec) as worker:
                examine(worker, reference, outputs, None, tokenizer=files, exact=own.exact, progress=bench.quiet, result=examination)
                with self._live_kept():
                    silent = Reporter(io.StringIO())
                    ReadingOn(self._context, silent, reference, worker, variant, own, examination).until_decided()
        except WorkerFailed as error:
            return unrunnable(variant, error, examination.findings), False
        thresholds = catalog().thresholds[variant]
        sides: tuple[Undecided, ...] = ("accept", "reject")
        verdicts = {judge(variant, own, examination, thresholds, side).verdict for side in sides}
        return judge(variant, own, examination, thresholds, self._context.work.validation.undecided), len(verdicts) > 1

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
