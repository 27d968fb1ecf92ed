"""The stages of the formats `web…`, run in the test's process on models that are made here."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from daemon.contract.formats.catalog import catalog
from handlers.child.progress import StageOutput
from tests.merge import helpers
from tests.onnx.conftest import make_context, silent
from tests.pytorch import forms

VARIANTS = {"web": "onnx", "web-int8": "onnx-int8", "web-int4": "onnx-int4"}
"""Variant → the stage that makes its graphs."""


def onnx(model: Path, work: Path, tokenizer: Path | None = None) -> dict[str, Path]:
    """Stage → the ONNX folder of a model. `tokenizer`: a folder whose tokenizer the graphs are published with."""
    plain = forms.make("onnx", model, work / "onnx")[0]
    for path in (tokenizer or model).iterdir():
        if path.name.startswith(("tokenizer", "chat_template")) and not (plain / path.name).exists():
            (plain / path.name).write_bytes(path.read_bytes())
    return {"onnx": plain, **{name: _run(name, {"onnx": plain}, work / name)[0] for name in ("onnx-int8", "onnx-int4")}}


def make(variant: str, graphs: dict[str, Path], work: Path) -> tuple[Path, StageOutput]:
    """The folder that a stage makes, and what it says."""
    return _run(variant, {VARIANTS[variant]: graphs[VARIANTS[variant]]}, work)


def _run(stage: str, inputs: dict[str, Path], work: Path) -> tuple[Path, StageOutput]:
    context = make_context(work, stage, inputs, next(iter(inputs.values())))
    run = pkgutil.resolve_name(catalog().variants[stage].entry)
    return Path(context.staging), run(context, silent())


__all__ = ["VARIANTS", "helpers", "make", "onnx"]
