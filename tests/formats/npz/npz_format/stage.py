"""The stages: the merged model's weights as arrays, exact or coarse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from npz_format.format import NpzOptions

Arrays = dict[str, np.ndarray]


def full(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `npz`."""
    from safetensors.torch import load_file

    merged = Path(context.inputs["merge"])
    arrays = {name: tensor.float().numpy() for path in sorted(merged.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    base = Path(context.base or context.pin)
    for source in (merged / "config.json", *base.glob("tokenizer*"), *base.glob("generation_config.json")):
        shutil.copyfile(source, Path(context.staging, source.name))
    return _write(context, arrays)


def coarse(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `npz-coarse`."""
    source = Path(context.inputs["npz"])
    with np.load(source / "weights.npz") as stored:
        arrays = {name: _rounded(stored[name]) for name in stored}
    for path in source.glob("*.json"):
        shutil.copyfile(path, Path(context.staging, path.name))
    return _write(context, arrays)


def _rounded(array: np.ndarray) -> np.ndarray:
    step = np.abs(array).max() / 32 or 1.0
    return (np.round(array / step) * step).astype(np.float32)


def _write(context: StageContext, arrays: Arrays) -> StageOutput:
    save: Callable[..., None] = np.savez_compressed if context.work.options(NpzOptions).compress else np.savez
    save(Path(context.staging, "weights.npz"), **arrays)
    return StageOutput(figures={"arrays": len(arrays)})
