"""Two real exports of a run: the report, README.md and `ckptd quality` say the same sentence, by the figures of each text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.advice.paired import mean
from tests.models import read_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]


def ckptd(home: Path, *arguments: str) -> str:
    environment = {
        **os.environ, "XDG_STATE_HOME": str(home / "state"), "CKPTD_EXPORT__VARIANTS": "pytorch,onnx-int8", "CKPTD_VALIDATE__SAMPLES": "4",
        "CKPTD_VALIDATE__NEW_TOKENS": "4", "CKPTD_VALIDATE__SPEED_TOKENS": "8", "CKPTD_LIMITS__DISK_RESERVE": "0",
    }  # fmt: skip
    command = [sys.executable, "-m", "daemon", *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plain(text: str) -> str:
    """Markdown without its escapes."""
    return text.replace("\\", "")


def test_report_readme_and_quality_of_a_real_run_say_the_same_sentence(pico_run: Path, tmp_path: Path) -> None:
    for step in (2, 4):
        ckptd(tmp_path, "export", str(pico_run / f"checkpoint-{step}"), "--output", str(tmp_path / "out"), "--force")
    (run,) = [path for path in (tmp_path / "out").iterdir() if path.is_dir() and not path.name.startswith(".")]
    reports: dict[int, Any] = {step: read_json(run / f"step-{step}" / "report.json") for step in (2, 4)}
    quality = json.loads(ckptd(tmp_path, "quality", str(run), "--json"))
    sentence = quality["sentence"]
    assert sentence == reports[4]["run_so_far"]["sentence"] and sentence in plain((run / "step-4" / "README.md").read_text())
    assert quality["best_step"] in (2, 4) and quality["metric"] == "perplexity" and quality["best"] in quality["equal"]
    chosen = reports[quality["best_step"]]["recommendation"]["best"]["sentence"]
    assert sentence.endswith(f"step {quality['best_step']}, {chosen}.")
    for artifact in reports[4]["artifacts"]:
        texts = artifact["figures"]["by_text"]
        assert mean(texts["kl"]) == pytest.approx(artifact["figures"]["kl"], abs=1e-6)
        assert sum(tokens for _, tokens in texts["perplexity"]) == artifact["figures"]["perplexity_tokens"]
    assert all(not artifact["by_text"] for one in reports[4]["run_so_far"]["points"] for artifact in one["artifacts"].values())
    seen = json.loads(ckptd(tmp_path, "compare", str(run / "step-2"), str(run / "step-4"), "--json"))["differences"]
    assert {"perplexity"} <= set(seen[quality["variant"]])
