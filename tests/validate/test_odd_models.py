"""Sound models of odd kinds pass whole: a check that doubts what is right is worth as little as one that passes what is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.validate.odd_models import ODD, Odd

COARSE = re.compile(
    r"agreement .* below the limit|the divergence of .* above the limit|the largest logit error, .* above the limit"
    r"|it is closer to .* Its weights are the merged ones, rounded: its few bits lost the rest"
    r"|it was not made: .* can't load compressed-tensors' layers beside experts|it was not made: .* which compressed-tensors does not know"
)
"""What is said of a form in few bits that is too coarse for a model, or that the model can't have: no fault of a form that was made."""
VARIANTS = ("pytorch", "pytorch-w4a16", "onnx", "onnx-fp16", "onnx-int8", "onnx-int4")


def export(odd: Odd, folder: Path, variants: tuple[str, ...] = VARIANTS) -> dict[str, Any]:
    """The report of `ckptd export` of such a model's checkpoint."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "XDG_STATE_HOME": str(folder / "state"), "CKPTD_LIMITS__PRIORITY": "normal"}
    subprocess.run([sys.executable, "-m", "tests.validate.odd_models", odd.name, str(folder)], check=True, env=environment)
    checkpoint = next((folder / "run").iterdir())
    words = ["--set", f"export.variants={json.dumps(variants)}", "export", str(checkpoint), "--output", str(folder / "out")]
    done = subprocess.run([sys.executable, "-m", "daemon", *words], capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    reports = list((folder / "out").rglob("report.json"))
    assert reports, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(reports[0].read_bytes())
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.name)
def test_a_sound_model_of_an_odd_kind_raises_no_alarm(odd: Odd, tmp_path: Path) -> None:
    report = export(odd, tmp_path)
    alarms = {one["variant"]: one["reasons"] for one in report["artifacts"] if one["verdict"] == "failed"}
    structural = {name: [why for why in reasons if not COARSE.match(why)] for name, reasons in alarms.items()}
    assert not any(structural.values()), structural
    assert not {"pytorch", "onnx"} & set(alarms), alarms
    assert {one["variant"] for one in report["artifacts"]} >= set(VARIANTS), report["stages"]
