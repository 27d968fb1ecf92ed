"""The stages of TensorRT's formats, run in the test's process on models that are made here."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from daemon.contract.formats.catalog import catalog
from handlers.child.progress import StageOutput
from handlers.onnx.options import OnnxOptions
from tests import stages
from tests.merge import helpers

STAND_IN = Path(__file__).parent / "stand_in"


def onnx(model: Path, work: Path, opset: int = 18, **options: Any) -> Path:
    """The ONNX folder of a model."""
    context = helpers.context(work, model, None, method="full", merge=model)
    chosen = context.work.with_options(OnnxOptions(**options))
    chosen = chosen.model_copy(update={"export": chosen.export.model_copy(update={"opset": opset})})
    pkgutil.resolve_name(catalog().variants["onnx"].entry)(context.model_copy(update={"work": chosen}), helpers.reporter())
    return work / "staging"


def make(variant: str, source: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The folder that a stage makes of the folder of what it needs, and what it says."""
    return stages.make(variant, source, work, **{"max_tokens": 128, "optimal_tokens": 16, **options})


def verified(folder: Path, *words: str, backend: str = "onnxruntime", python: Path | str = sys.executable) -> tuple[int, dict[str, Any]]:
    """Exit code and verdict of a folder's own verify.py, run with nothing of ours."""
    command = [str(python), "-I", "-B", str(folder / "verify.py"), *(["--backend", backend] if backend else []), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout)


def on_gpu(folder: Path, driver: Path, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script of a folder, where a GPU and TensorRT are stood in for."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(STAND_IN), **variables}
    command = [sys.executable, "-B", str(folder / script), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
