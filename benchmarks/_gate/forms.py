"""The forms of the artifacts: what the project's own stages make of a merged folder, sound or not."""

from __future__ import annotations

import io
import pkgutil
import shutil
from collections.abc import Mapping
from pathlib import Path

from benchmarks import _stages
from benchmarks._gate.subjects import Subject
from daemon.contract.faults.errors import CkptdError
from daemon.contract.jobs.messages import ChildLimits, StageContext
from handlers.child.progress import Reporter

PLAIN = "as merged"
FORMS = {
    PLAIN: "pytorch",
    "fp16": "pytorch-fp16",
    "bf16": "pytorch-bf16",
    "int8, bitsandbytes": "pytorch-bnb-int8",
    "int8, compressed-tensors": "pytorch-w8a8",
    "nf4, bitsandbytes": "pytorch-bnb-nf4",
    "int8 in blocks, ONNX": "onnx-int8-weight",
    "int4 in blocks, ONNX": "onnx-int4",
}
"""Form → its variant."""
GRAPHS = ("causal", "classes", "vectors")
"""Families whose model is one graph."""


def sources(subject: Subject, variant: str) -> dict[str, Path]:
    """Give the sound folders that a form is to be compared with, by the names of their stages."""
    made = {"merge": subject.merged}
    return {**made, "onnx": subject.folder / "onnx"} if variant.startswith("onnx") else made


def written(subject: Subject, form: str, merged: Path, folder: Path) -> Path | None:
    """Give the form that is made in `folder` of a merged model, `merged` itself where it is no other; None where it can't be made."""
    variant = FORMS[form]
    if form == PLAIN:
        return merged
    graphs = variant.startswith("onnx")
    if graphs and subject.kind.family not in GRAPHS:
        return None
    try:
        if graphs and not (sound := subject.folder / "onnx").is_dir():
            shutil.copytree(_made(subject, "onnx", {"merge": subject.merged}, folder / "sound"), sound)
        inputs = {"merge": merged}
        return _made(subject, variant, {**inputs, "onnx": _made(subject, "onnx", inputs, folder / "graphs")} if graphs else inputs, folder)
    except CkptdError:  # no stage of a job that can't end well says it otherwise
        return None


def _made(subject: Subject, stage: str, inputs: Mapping[str, Path], folder: Path) -> Path:
    """Run a stage; give the folder that it made."""
    path = _stages.job_file(
        folder / stage, stage, dict(inputs), subject.checkpoint, base=subject.base, limits=ChildLimits(threads=1),
        cache=subject.folder / "cache",
    )  # fmt: skip
    context = StageContext.model_validate_json(path.read_bytes())
    pkgutil.resolve_name(context.entry)(context, Reporter(io.StringIO()))
    return Path(context.staging)
