"""The stages of OpenVINO's formats, run in the test's process on models that are made here."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from daemon.contract.formats.catalog import catalog
from handlers.child.progress import StageOutput
from handlers.openvino.format import OpenVinoOptions
from tests.merge import helpers
from tests.pytorch import forms


def onnx(model: Path, work: Path) -> Path:
    """The ONNX folder of a model."""
    return forms.make("onnx", model, work)[0]


def make(variant: str, model: Path, graphs: Path, work: Path, plain: Path | None = None, texts: int = 0) -> tuple[Path, StageOutput]:
    """The folder that a stage makes, and what it says. `plain`: the folder of `openvino`, for the smaller forms."""
    context = helpers.context(work, model, None, method="full", merge=model)
    inputs = {**context.inputs, "onnx": str(graphs), **({"openvino": str(plain)} if plain else {})}
    options = context.work.with_options(OpenVinoOptions(calibration_samples=texts))
    run = pkgutil.resolve_name(catalog().variants[variant].entry)
    return work / "staging", run(context.model_copy(update={"work": options, "inputs": inputs}), helpers.reporter())
