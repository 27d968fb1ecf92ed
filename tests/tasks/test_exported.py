"""A whole export with a task of the user's own: the form that loses too much gives way to the next one, and nothing is run twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
ask = json.load(sys.stdin)
open(sys.argv[1], "a").write(ask["variant"] + "\\n")
wrong = 12 if ask["variant"] == "onnx-int8" else 0
print(json.dumps({"items": [{"id": n, "score": n >= wrong} for n in range(40)]}))
"""


def export(checkpoint: Path, base: Path, home: Path) -> dict[str, Any]:
    """The report of `ckptd export` with the task."""
    task = {"name": "support", "command": [sys.executable, "-c", PROGRAM, str(home / "runs")], "metric": "accuracy", "drop": 0.05}
    environment = {
        **os.environ, "XDG_STATE_HOME": str(home / "state"), "CKPTD_EXPORT__VARIANTS": "pytorch,onnx-int8",
        "CKPTD_VALIDATE__SAMPLES": "2", "CKPTD_VALIDATE__NEW_TOKENS": "4", "CKPTD_VALIDATE__SPEED_TOKENS": "0",
        "CKPTD_VALIDATE__LONG_TOKENS": "0", "CKPTD_VALIDATE__STRICTNESS": "loose", "CKPTD_VALIDATE__TASKS": json.dumps([task]),
        "CKPTD_LIMITS__DISK_RESERVE": "0",
    }  # fmt: skip
    command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--base", str(base), "--output", str(home / "out"), "--force"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    (path,) = (path for path in (home / "out").glob("*/step-*/report.json") if not path.parent.is_symlink())
    assert done.returncode == 3, done.stdout + done.stderr  # partial: a form took the place of another
    value: dict[str, Any] = json.loads(path.read_bytes())
    value["text"] = path.with_name("README.md").read_text() + path.with_name("report.html").read_text()
    return value


def test_a_form_that_loses_too_much_gives_way_and_a_second_export_runs_no_task_again(
    pico_base: Path, pico_checkpoint: Path, tmp_path: Path
) -> None:
    report = export(pico_checkpoint, pico_base, tmp_path)
    rows = {row["variant"]: row for row in report["artifacts"]}
    assert (rows["onnx-int8"]["verdict"], rows["onnx-int8"]["published"]) == ("failed", False)
    assert "support: accuracy 0.7 against 1 of the live model" in rows["onnx-int8"]["reasons"][0]
    (story,) = report["replaced"]
    taken = rows[story["taken"]]
    assert taken["verdict"] == "passed" and taken["figures"]["tasks"]["support"]["value"] == 1.0
    assert rows["pytorch"]["figures"]["tasks"]["support"]["difference"] == 0.0
    assert "support (accuracy, 40 items)" in report["text"]
    runs = (tmp_path / "runs").read_text().splitlines()
    assert runs[0] == "pytorch" and sorted(runs) == sorted(set(runs)), "the live model and each artifact are run once"
    again = export(pico_checkpoint, pico_base, tmp_path)
    assert {row["variant"]: row["verdict"] for row in again["artifacts"]} == {name: row["verdict"] for name, row in rows.items()}
    assert (tmp_path / "runs").read_text().splitlines() == runs
