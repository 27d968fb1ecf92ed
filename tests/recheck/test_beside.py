"""The kept answers are no variant: no delivery carries them, nothing measures them, and no format takes their folder's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon.operating.measuring.subject import locate
from handlers.deliver.version import Pace, read_version
from tests.bench.publishing import seal


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """An export of one variant, with answers, sealed."""
    folder = tmp_path / "step-4"
    for name in ("onnx/model.onnx", "answers/answers.zip", "report.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"artifacts": [{"variant": "onnx", "verdict": "passed"}]}))
    seal(folder)
    return folder


def test_a_delivery_of_all_variants_leaves_the_answers_in_the_export(export: Path) -> None:
    version = read_version(export, (), Pace(0), json.loads((export / "report.json").read_text()))
    assert version.variants == ("onnx",) and sorted(file.path for file in version.files) == ["onnx/model.onnx", "report.json"]
    assert version.why_not_followed == ""
    named = read_version(export, ("onnx",), Pace(0), {})
    assert {file.path for file in named.files} == {"onnx/model.onnx", "report.json"}


def test_a_measurement_of_all_variants_measures_no_answers(export: Path, tmp_path: Path) -> None:
    assert list(locate(tmp_path / "state", str(export))[0].sizes) == ["onnx"]
