"""Every step of the way down, taken by a real model that needs it, with the real stages."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.onnx.conftest import train

STEPS = ("onnx-int4", "onnx-int4-fine", "onnx-mixed", "onnx-int8-weight", "onnx-fp16", "onnx")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model with a trained adapter."""
    folder = tmp_path_factory.mktemp("trained")
    return models.train_run(train(folder / "base"), folder / "run", steps=4) / "checkpoint-4"


def export(checkpoint: Path, folder: Path, *settings: str) -> dict[str, Any]:
    """The report of `ckptd export` with these settings; what was made before is used again."""
    sets = [part for one in settings for part in ("--set", one)]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "CKPTD_LIMITS__PRIORITY": "normal", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "daemon", *sets, "export", str(checkpoint), "--output", str(folder / "out"), "--force"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(next((folder / "out").rglob("report.json")).read_bytes())
    return report


def limits(kl: float, *names: str) -> list[str]:
    return [
        f"validate.thresholds.{name}.{key}={value}" for name in names for key, value in (("kl", kl), ("agreement", 0.0), ("error", 1e9))
    ]


@pytest.mark.slow
def test_each_step_is_taken_by_a_model_that_needs_it(checkpoint: Path, tmp_path: Path) -> None:  # R2.4, R2.5
    plain = ["validate.speed_tokens=0", "onnx.accuracy_level=1", "onnx.optimize=none"]
    everything = export(checkpoint, tmp_path / "all", *plain, f"export.variants={json.dumps(STEPS)}", *limits(1e9, *STEPS))
    assert everything["status"] == "succeeded", everything["verdict"]
    kl = {one["variant"]: one["figures"]["kl"] for one in everything["artifacts"]}
    sizes = {one["variant"]: one["size_bytes"] for one in everything["artifacts"]}
    assert kl["onnx-int4"] > kl["onnx-int4-fine"] > kl["onnx-int8-weight"] > kl["onnx"], kl

    def between(coarse: str, fine: str) -> float:
        return math.sqrt(kl[coarse] * kl[fine])

    asked = [*plain, 'export.variants=["onnx-int4"]']
    few_bits = ["export.target.kl=1000", *limits(1e-12, "onnx-mixed")]  # a budget that is looser than the check
    needs: dict[str, list[str]] = {
        "onnx-int4": limits(2 * kl["onnx-int4"], *STEPS),
        "onnx-int4-fine": limits(between("onnx-int4", "onnx-int4-fine"), *STEPS),
        "onnx-mixed": limits(between("onnx-int4-fine", "onnx-int8-weight"), *STEPS),
        "onnx-int8-weight": [*limits(between("onnx-int4-fine", "onnx-int8-weight"), *STEPS), *few_bits],
        "onnx-fp16": [*limits(between("onnx-int8-weight", "onnx-fp16"), *STEPS), *few_bits],
        "onnx": [*limits(1e-12, *STEPS[:-1]), *limits(1e-3, "onnx"), "export.target.kl=1000"],
    }
    for wanted, settings in needs.items():
        report = export(checkpoint, tmp_path / "all", *asked, *settings)
        artifacts = {one["variant"]: one for one in report["artifacts"]}
        tried = STEPS[: STEPS.index(wanted) + 1]
        assert tuple(name for name in STEPS if name in artifacts) == tried, (wanted, report["verdict"])
        assert [name for name, one in artifacts.items() if one["published"]] == [wanted], (wanted, kl, report["verdict"])
        if wanted == "onnx-int4":
            assert report["status"] == "succeeded" and report["replaced"] == []
            continue
        (story,) = report["replaced"]
        assert (report["status"], story["taken"], len(story["steps"])) == ("partial", wanted, len(tried) - 1)
        assert f"{wanted} takes its place" in story["sentence"]
        if wanted == "onnx-mixed":
            assert "It keeps" in story["sentence"], story["sentence"]
            assert sizes["onnx-int4"] < artifacts["onnx-mixed"]["size_bytes"] < sizes["onnx"]


@pytest.mark.slow
def test_a_model_that_no_form_satisfies_says_how_far_the_way_went(checkpoint: Path, tmp_path: Path) -> None:
    settings = ["validate.speed_tokens=0", 'export.variants=["onnx-int4"]', "validate.fallback_minutes=0.0001", *limits(1e-12, *STEPS)]
    report = export(checkpoint, tmp_path, *settings)
    assert report["status"] == "failed"
    (story,) = report["replaced"]
    assert story["taken"] is None and "validate.fallback_minutes" in story["sentence"]
