"""`limits.device = "cuda"` is for what runs on a GPU alone: PyTorch and what builds on it take memory of any that they find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon.contract.jobs.messages import ChildLimits
from daemon.contract.jobs.plan import all_specs
from daemon.journal.rows import JobRow
from daemon.running.rules.resume_keys import stage_key
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker
from tests.onnx.conftest import make_context

ON_GPU = {"tensorrt", "tensorrt-fp16", "check-tensorrt", "check-tensorrt-fp16", "check-tensorrt-rtx", "check-tensorrt-rtx-fp16", "speed"}
ON_GPU |= {f"evaluate-{name}" for name in ("tensorrt", "tensorrt-fp16", "tensorrt-rtx", "tensorrt-rtx-fp16")}


def test_no_other_stage_sees_a_gpu_or_is_made_again_for_one(tmp_path: Path) -> None:
    assert {spec.name for spec in all_specs() if spec.device("cuda") != "cpu"} == ON_GPU
    assert {spec.device("cpu") for spec in all_specs()} == {"cpu"}
    context = make_context(tmp_path, "merge", {}, tmp_path)
    job = JobRow("job", "running", context.checkpoint, context.work, Path("/pin"), Path("/target"), None, "now", None, None)
    keys = {device: {spec.name: stage_key(spec, job, {}, None, device) for spec in all_specs()} for device in ("cpu", "cuda")}
    assert {name for name, key in keys["cpu"].items() if keys["cuda"][name] != key} == ON_GPU


@pytest.mark.parametrize(("engine", "seen"), [("tensorrt", "cuda"), ("live", "cpu")])
def test_beside_engines_on_a_gpu_pytorch_is_measured_without_one(engine: str, seen: str, tmp_path: Path) -> None:
    limits = ChildLimits(idle=False, nice=0, device="cuda")
    with EngineWorker("one", EngineSpec(engine=engine, folder=str(tmp_path)), tmp_path, limits):
        assert json.loads((tmp_path / "worker-one.json").read_text())["limits"]["device"] == seen
