"""`export.deploy` with a real model: what its targets need is made and recommended, and the next export tells the run so far."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.onnx.conftest import train


def export(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """The report of `ckptd export` of one checkpoint."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "CKPTD_LIMITS__PRIORITY": "normal", "HF_HUB_OFFLINE": "1"}
    sets = ("--set", 'export.deploy=["cpu-server", "edge", "nvidia", "ios"]', "--set", 'select.best_by="quality"')
    command = [sys.executable, "-m", "daemon", *sets, "export", str(checkpoint), "--output", str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(next((folder / "out").rglob(f"step-{checkpoint.name[11:]}/report.json")).read_bytes())
    return report


@pytest.mark.slow
def test_what_the_targets_need_is_made_and_one_artifact_is_recommended_for_each(tmp_path: Path) -> None:  # R10
    run = models.train_run(train(tmp_path / "base"), tmp_path / "run", steps=4)
    first, second = (export(run / f"checkpoint-{step}", tmp_path) for step in (2, 4))
    assert {"pytorch-bf16", "onnx", "onnx-int8", "onnx-int4"} <= set(first["configuration"]["export"]["variants"])
    found = {one["target"]: one for one in first["recommendation"]["targets"]}
    assert set(found) == {"cpu-server", "edge", "nvidia", "ios"} and found["ios"]["variant"] is None
    published = {one["variant"] for one in first["artifacts"] if one["published"]}
    assert {one["variant"] for one in found.values() if one["variant"]} <= published
    so_far = second["run_so_far"]
    assert [point["step"] for point in so_far["points"]] == [2, 4] and first["run_so_far"] is None
    assert so_far["metric"] in (None, "perplexity") and so_far["sentence"]
    links = {path.name: os.readlink(path) for path in (tmp_path / "out").rglob("*") if path.is_symlink()}
    assert links.get("latest", links.get("run-latest")) == "step-4"
    if so_far["best_step"]:
        assert links.get("best", links.get("run-best")) == f"step-{so_far['best_step']}"
