"""The report stage, run as the daemon runs it: one light child process that leaves three files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from daemon.contract.jobs.messages import ChildLimits, JobFacts, Outcome, StageResult
from handlers.report import schema
from tests.report import facts

ROOT = Path(__file__).parents[2]


def run_stage(job: JobFacts | None, folder: Path, **changes: Any) -> tuple[StageResult, Path]:
    context = facts.context(job, folder).model_copy(update={"limits": ChildLimits(idle=False, nice=0), **changes})
    (folder / "job.json").write_text(context.model_dump_json())
    subprocess.run([sys.executable, "-m", "handlers", str(folder / "job.json")], cwd=ROOT, check=True, capture_output=True, timeout=60)
    return StageResult.model_validate_json(Path(context.result).read_bytes()), Path(context.staging)


# R6.3
@pytest.mark.parametrize(
    ("case", "status", "verdicts"),
    [
        (facts.rejected_int8, "partial", ("passed", "passed", "failed")),
        (facts.failed_merge, "failed", ("failed", "failed", "failed")),
    ],
)
def test_every_export_gets_its_three_files_however_it_ended_and_each_published_folder_its_readme(
    case: Any, status: str, verdicts: tuple[str, ...], tmp_path: Path
) -> None:
    result, staging = run_stage(case(), tmp_path)
    assert result.outcome is Outcome.SUCCEEDED
    report = json.loads((staging / "report.json").read_text(encoding="utf-8"))
    folders = [f"{one['folder']}/README.md" for one in report["artifacts"] if one["published"]]
    assert sorted(file.path for file in result.files) == sorted(["README.md", "report.html", "report.json", *folders])
    assert result.figures["status"] == status
    assert result.figures["artifacts"] == dict(zip(("pytorch", "onnx", "onnx-int8"), verdicts, strict=True))
    assert report["status"] == status
    jsonschema.validate(report, json.loads(schema.TARGET.read_text(encoding="utf-8")))
    for name in ("report.html", "README.md"):
        title = result.figures["verdict"].partition(" Reason: ")[0]
        assert title in (staging / name).read_text(encoding="utf-8").replace("\\", "")


def test_the_stage_without_facts_ends_permanently_with_a_remedy_and_without_files(tmp_path: Path) -> None:
    result, staging = run_stage(None, tmp_path)
    assert result.outcome is Outcome.PERMANENT
    assert result.fault is not None and result.fault.code == "no-job-facts" and result.fault.remedy
    assert list(staging.iterdir()) == []


def test_the_stage_loads_no_heavy_library(tmp_path: Path) -> None:
    heavy = "torch transformers peft onnx onnxruntime onnxscript safetensors tokenizers numpy"
    code = f"import sys, handlers.report.stage; print([name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
