"""The stages of OpenVINO's formats, run in the test's process on models that are made here."""

from __future__ import annotations

from pathlib import Path

from handlers.child.progress import StageOutput
from tests import stages
from tests.pytorch import forms


def onnx(model: Path, work: Path) -> Path:
    """The ONNX folder of a model."""
    return forms.make("onnx", model, work)[0]


def make(variant: str, made_of: Path, work: Path, texts: int = 0) -> tuple[Path, StageOutput]:
    """See `stages.make`. `texts`: how many the scales of 4 bits are found with."""
    return stages.make(variant, made_of, work, calibration_samples=texts)
