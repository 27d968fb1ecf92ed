"""Real artifacts of the pico checkpoint, a measured reference, and one whole run of the stage, each made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, ChildLimits, Outcome, StageContext, StageResult
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from daemon.contract.jobs.plan import all_specs, spec_of
from daemon.running.attempts.executor import Bounds, Order
from daemon.running.workers import warm
from daemon.running.workers.executor import LocalExecutor
from handlers.texts.built_in import BUILT_IN
from handlers.validate.checks.examination import Merged, examine
from handlers.validate.checks.live.reference import LiveModel, Reference, measure
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.folders import special_tokens
from handlers.validate.verdict import judge
from handlers.validate.workers.client import EngineWorker
from tests.sharing import shared
from tests.validate import artifacts

LIMITS = ChildLimits(threads=1, nice=0, idle=False, oom_score_adj=0)
BOUNDS = Bounds(timeout=200, silence=200, grace=5, memory=0, memory_reserve=0, log_size=1 << 20, processes=256, warm=0)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def folders(pico_base: Path, pico_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Variant → sound artifact of the pico checkpoint. Read only."""

    def make(root: Path) -> dict[str, Path]:
        merged = artifacts.merge_with_peft(pico_base, pico_checkpoint, root / "pytorch")
        plain = artifacts.export_onnx(merged, root / "onnx")
        return {"pytorch": merged, "onnx": plain, "onnx-int8": artifacts.quantize(plain, root / "onnx-int8")}

    return shared(tmp_path_factory, "artifacts", make)


@dataclass(frozen=True)
class Run:
    """One run of a stage as the daemon starts it."""

    context: StageContext
    process: subprocess.Popen[bytes]

    def result(self) -> StageResult:
        """Wait for the end and read the result file."""
        self.process.communicate(timeout=200)
        return StageResult.model_validate_json(Path(self.context.result).read_bytes())


StartStage = Callable[..., Run]


def context_of(
    root: Path, name: str, pin: Path, base: Path | None, inputs: dict[str, Path], *, strategy: str = "default", memory: int = 0,
    **options: Any,
) -> StageContext:  # fmt: skip
    """What an attempt of a stage is told; its files lie in the folder `root`."""
    spec = spec_of(name)
    for folder in ("staging", "temporary"):
        (root / folder).mkdir()
    reference = CheckpointRef(
        root="/runs", run="pico", step=4, path=str(pin), layout="trainer-adapter", digest="0", method="LORA" if base else "full"
    )
    return StageContext(
        job="job", stage=name, entry=spec.entry, attempt=1, strategy=strategy, checkpoint=reference, pin=str(pin),
        base=str(base) if base else None,
        inputs={other: str(path) for other, path in inputs.items() if other in (*spec.needs, *spec.after)},
        staging=str(root / "staging"), result=str(root / "result.json"), temporary=str(root / "temporary"),
        cache=str(root / "cache"), limits=LIMITS.model_copy(update={"memory": memory}),
        work=Work(export=ExportOptions(), validation=ValidateOptions(**{"most_samples": 1} | options)),  # none are read on by default
    )  # fmt: skip


@pytest.fixture(scope="session")
def start_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartStage]:
    """Start a stage in a process of its own; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*given: Any, **options: Any) -> Run:
        root = tmp_path_factory.mktemp("job")
        context = context_of(root, *given, **options)
        (root / "job.json").write_text(context.model_dump_json())
        command = [sys.executable, "-m", "handlers", str(root / "job.json")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        return Run(context, process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@dataclass(frozen=True)
class Validated:
    """The finished stages of a validation: what they gave, and where."""

    results: dict[str, StageResult]
    folders: dict[str, Path]

    @property
    def checks(self) -> dict[str, ArtifactCheck]:
        """Variant → its check, with its speed."""
        found = {check.variant: check for result in self.results.values() for check in result.checks}
        speed = self.figures.get("speed", {})
        return {name: check.model_copy(update={"figures": check.figures | speed.get(name, {})}) for name, check in found.items()}

    @property
    def figures(self) -> dict[str, Any]:
        """The figures of all stages."""
        return {name: value for result in self.results.values() for name, value in result.figures.items()}

    def record(self, stage: str, name: str) -> Any:
        """A JSON file of a stage's output."""
        return json.loads((self.folders[stage] / name).read_text())


Validate = Callable[..., Validated]


def attempt(context: StageContext) -> StageResult:
    """The result of a stage. Where its workers need PyTorch it is forked from a process with that, as the daemon's are; see `light`."""
    executor, bounds = LocalExecutor(), BOUNDS
    if warm.wanted(context) == "torch":
        bounds, context = replace(BOUNDS, warm=60), context.model_copy(update={"entry": "tests.validate.light:run"})
    with mock.patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}):
        while executor.getting_ready(context, bounds):
            time.sleep(0.05)
        worker = executor.start(Order(context, Path(context.result).parent, bounds))
    while (result := worker.poll()) is None:
        time.sleep(0.01)
    return result


@pytest.fixture(scope="session")
def validate(tmp_path_factory: pytest.TempPathFactory) -> Validate:
    """Run all stages of a validation, one after the other, as the plan has them."""

    def run(pin: Path, base: Path | None, inputs: dict[str, Path], **options: Any) -> Validated:
        results: dict[str, StageResult] = {}
        folders: dict[str, Path] = {}
        wanted = {"reference", "merged", *(f"check-{name}" for name in inputs), *(["speed"] if options.get("speed_tokens") else [])}
        for spec in all_specs():
            if spec.name in wanted and all(need in (inputs | folders) for need in spec.needs):
                context = context_of(tmp_path_factory.mktemp("job"), spec.name, pin, base, inputs | folders, **options)
                results[spec.name] = attempt(context)
                if results[spec.name].outcome is Outcome.SUCCEEDED:
                    folders[spec.name] = Path(context.staging)
        warm.end_all()
        return Validated(results, folders)

    return run


@pytest.fixture(scope="session")
def validated(
    validate: Validate, pico_base: Path, pico_checkpoint: Path, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Validated:
    """The stages over the adapter checkpoint and its three sound artifacts."""
    inputs, options = {"merge": folders["pytorch"], **folders}, {"samples": 4, "new_tokens": 12, "speed_tokens": 24}
    return shared(tmp_path_factory, "validated", lambda _: validate(pico_checkpoint, pico_base, inputs, **options))


@dataclass(frozen=True)
class Measured:
    """A reference of the pico checkpoint, the merged model's logits, and how to check one folder against them."""

    reference: Reference
    merged: Path
    scratch: Path

    def check(self, variant: str, folder: Path) -> ArtifactCheck:
        """Run one folder in a worker and judge it by the default thresholds."""
        limits, outputs, merged = catalog().variants[variant].limits, self.scratch / "outputs", Merged(self.merged)
        with EngineWorker(variant, EngineSpec(engine=limits.engine, folder=str(folder)), self.scratch, LIMITS) as worker:
            examination = examine(
                worker, self.reference, outputs, merged, tokenizer=True, exact=limits.exact, progress=lambda fraction, message: None
            )
        return judge(variant, catalog().variants[variant].limits, examination, catalog().thresholds[variant])


@pytest.fixture(scope="session")
def measured(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """The merged folder as the live model of a full fine-tune, so that graphs have to equal it."""
    scratch = tmp_path_factory.mktemp("reference")
    spec = EngineSpec(engine="torch", folder=str(folders["pytorch"]))
    options = ValidateOptions(samples=4, new_tokens=12, speed_tokens=0)
    with EngineWorker("live", spec, scratch, LIMITS) as live:
        reference = measure(LiveModel(live), list(BUILT_IN[:4]), options, scratch, lambda fraction, message: None)
    reference.special = special_tokens.expected(folders["pytorch"], None)
    (scratch / "merged").mkdir()
    for number, sample in enumerate(reference.samples):
        (scratch / "merged" / f"{number}.npy").symlink_to(sample.logits)
    return Measured(reference, scratch / "merged", scratch)
