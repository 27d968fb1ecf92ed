"""Validation without processes: the worker's own commands, called in the test's process, through JSON as the pipe would carry them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx_ir as ir

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import ArtifactCheck
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.values import digest_of
from handlers.graphs.weights import rounded_weights
from handlers.models.folder import ModelFolder
from handlers.texts.built_in import BUILT_IN
from handlers.validate import findings
from handlers.validate.checks.examination import Examination, Merged, examine, logits_file
from handlers.validate.checks.live import rounded
from handlers.validate.checks.live.base_texts import BaseTexts
from handlers.validate.checks.live.reference import LiveModel, Reference, measure
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.engines.task_profile import ValidatedTask, live_labels, subject_of
from handlers.validate.files import expected
from handlers.validate.folders import special_tokens, weights
from handlers.validate.verdict import judge, unrunnable
from handlers.validate.workers import worker
from handlers.validate.workers.client import EngineWorker, WorkerFailed, answer_in
from handlers.validate.workers.protocol import A, CompareWeights, Load, Loaded, Request
from tests import models


def quiet(fraction: float, message: str) -> None:
    """Progress that nobody wants."""


class Direct:
    """A worker in this process; it takes what `client.Worker` takes."""

    def __init__(self, name: str, spec: EngineSpec) -> None:
        self.name, self.folder = name, spec.folder
        self._commands = worker.Commands(spec.model_dump())

    def load(self) -> Loaded:
        """Load the model."""
        return self.ask(Load())

    def ask(self, request: Request[A]) -> A:
        """The answer to one request; WorkerFailed where it fails."""
        line = worker.answer(self._commands, json.loads(json.dumps(request.line)))
        return answer_in(json.loads(json.dumps(line)), request)


@dataclass(frozen=True)
class Bench:
    """A measured live model and what its artifacts are judged against."""

    reference: Reference
    subject: ValidatedTask
    scratch: Path
    merged: Path

    def examine(self, variant: str, folder: Path, against: Path | None = None, result: Examination | None = None) -> Examination:
        """Run one folder; `result` receives what is found out."""
        engine, subject = catalog().variants[variant].limits.engine, self.subject
        spec = EngineSpec(engine=engine, folder=str(folder), task=subject.task, sentence=subject.sentence)
        outputs = own = self.outputs(folder)
        if folder == self.merged:  # processes that share the scratch folder read these: they appear whole, and once
            own = outputs.with_name(f"{outputs.name}.{os.getpid()}")
        direct, exact = cast(EngineWorker, Direct(variant, spec)), catalog().variants[variant].limits.exact
        merged = None if against is None else Merged(against)
        examination = examine(direct, self.reference, own, merged, tokenizer=True, exact=exact, progress=quiet, result=result)
        if own != outputs:
            with contextlib.suppress(OSError):  # another process was first
                own.rename(outputs)
            shutil.rmtree(own, ignore_errors=True)
        return examination

    def told_of_weights(self, variant: str, folder: Path) -> str | None:
        """Why its weights are not those of the merged model, where its engine compares them."""
        spec = EngineSpec(engine=catalog().variants[variant].limits.engine, folder=str(folder), task=self.subject.task)
        return Direct(variant, spec).ask(CompareWeights(source=str(self.merged))).reason

    def check(self, variant: str, folder: Path, source: Path | None = None) -> ArtifactCheck:
        """Run and judge one folder; graphs are compared with the merged model too, and with the folder that they were derived from."""
        examination = self.examined(variant, folder, source)
        return judge(variant, catalog().variants[variant].limits, examination, catalog().thresholds[variant])

    def checked(self, variant: str, folder: Path, source: Path | None = None) -> ArtifactCheck:
        """The same of a folder that may be too damaged to be run to the end."""
        examination = Examination()
        try:
            self.examined(variant, folder, source, examination)
        except WorkerFailed as error:
            return unrunnable(variant, error, examination.findings)
        return judge(variant, catalog().variants[variant].limits, examination, catalog().thresholds[variant])

    def examined(self, variant: str, folder: Path, source: Path | None = None, result: Examination | None = None) -> Examination:
        """What `check` judges; `result` receives it."""
        against = self.outputs(self.merged) if variant != "pytorch" else None
        if against is not None and not against.is_dir():
            self.examine("pytorch", self.merged)
        examination = result or Examination()
        told = weights.difference(folder, self.merged) if variant == "pytorch" else self.told_of_weights(variant, folder)
        if source is not None:
            pairs = ([ir.load(one / path.name) for one in (folder, source)] for path in sorted(folder.glob("*.onnx")))
            told = next((text for pair in pairs if (text := rounded_weights.difference(*pair, nearest=True))), None)
        if told:
            examination.findings.append(findings.weights(told, variant))
        return self.examine(variant, folder, against, examination)

    def outputs(self, folder: Path) -> Path:
        """Where the rows of a folder go."""
        return self.scratch / digest_of(str(folder))

    def rows(self, folder: Path, number: int = 0) -> np.ndarray:
        """The rows that a folder gave for one sample."""
        found: np.ndarray = np.load(logits_file(self.outputs(folder), number))
        return found


def measured(
    pin: Path,
    base: Path | None,
    merged: Path,
    scratch: Path,
    prompts: Sequence[str] = BUILT_IN[:4],
    base_texts: BaseTexts | None = None,
    long_tokens: int = 2048,
    *,
    new_tokens: int = 10,
    halves: bool = False,
    merging: bool = False,
) -> Bench:
    """Run the live model of a checkpoint, which has been merged, over a few prompts. `halves`: as if the merge were in 16 bits. `merging`:
    it is asked last what the merge has to answer."""
    scratch.mkdir()
    subject = subject_of(merged)
    subject = replace(subject, labels=live_labels(subject, base))
    engine, where = ("live", str(base)) if base else ("torch", None)
    spec = EngineSpec(engine=engine, folder=str(pin), base=where, task=subject.task, sentence=subject.sentence)
    options = ValidateOptions(samples=len(prompts), new_tokens=new_tokens, speed_tokens=0, long_tokens=long_tokens)
    live = cast(EngineWorker, Direct("live", spec))
    model = LiveModel(live, subject, base_texts=base_texts or BaseTexts())
    reference = measure(model, list(prompts), options, scratch, quiet)
    reference.special = special_tokens.expected(pin, base)
    expected.write(live, pin, base, merged, scratch / "files", readable=reference.readable, sentences=subject.sentence)
    reference.files = scratch / "files"
    if reference.long is not None:
        reference.long = replace(reference.long, halves=halves)
    if merging:
        rounded.ask(live, reference, rounded.Merging(pin, ModelFolder(base) if base else None, ModelFolder(merged)), scratch, quiet)
    return Bench(reference, subject, scratch, merged)


def beside_live(
    spec: EngineSpec, merged: Path, scratch: Path, *, live_on: str = "original", prompts: int = 3, tokens: int = 8
) -> tuple[ArtifactCheck, Reference]:
    """The verdict about a merged folder beside the live model that `spec` loads and puts on the base `live_on`; and what that said."""
    scratch.mkdir()
    subject = subject_of(merged)
    live = cast(EngineWorker, Direct("live", spec.model_copy(update={"task": subject.task})))
    options = ValidateOptions(samples=prompts, new_tokens=tokens, speed_tokens=0)
    reference = measure(LiveModel(live, subject, live_on), models.TEXTS[:prompts], options, scratch, quiet)
    base = ModelFolder(Path(spec.base)) if spec.base else None
    rounded.ask(live, reference, rounded.Merging(Path(spec.folder), base, ModelFolder(merged), live_on), scratch, quiet)
    artifact = cast(EngineWorker, Direct("pytorch", EngineSpec(engine="torch", folder=str(merged), task=subject.task)))
    examination = examine(artifact, reference, scratch / "outputs", None, tokenizer=False, exact=True, progress=quiet)
    return judge("pytorch", catalog().variants["pytorch"].limits, examination, catalog().thresholds["pytorch"]), reference
