"""Whether a whole model is what a training wrote, or a base or a download that lies among its checkpoints.

Used by `daemon.watching.scan`, for a directory with a model whose own name and files say nothing of a training. What lies beside it says
more; so do what the run's adapters call their base, and which was there first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from daemon.checkpoints.completeness import read_json
from daemon.checkpoints.files import ADAPTER_CONFIG
from daemon.checkpoints.names import ADAPTERS, is_checkpoint_name, is_loose_name, is_of_training, is_run_itself, run_of
from daemon.watching.entries import names_in

UNTRAINED = (
    "it contains a whole model, but no file there shows that a training wrote it;"
    ' set watch.models = "all", or export it with `ckptd export`'
)
_EXPORT = "; if it is to be exported, run `ckptd export` on it"
NAMED_AS_BASE = f"the adapters of the run around it name it as their base{_EXPORT}"
OLDER = f"it contains a whole model that is older than every checkpoint of the run around it, as a base is{_EXPORT}"
OF_PIPELINE = "it is a part of a pipeline of diffusers, which ckptd does not export"
NOT_OF_A_TRAINING = frozenset({UNTRAINED, NAMED_AS_BASE, OLDER, OF_PIPELINE})
_ENCODERS = re.compile(r"(?:text|image)_encoder(?:_[0-9])?|safety_checker")
"""Folders of a pipeline that hold models of transformers (diffusers/pipelines/*, `register_modules`)."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def is_of_run(folder: str) -> bool:
    """Whether a directory is a run's: by what lies in it, or in its directories that are called as checkpoints are."""
    names = names_in(folder)
    if is_of_training(names):
        return True
    steps = (f"{folder}/{name}" for name, is_folder in names.items() if is_folder and is_loose_name(name))
    return any(is_of_training(names_in(step)) and not is_run_itself(Path(step)) for step in steps)


def training_of(checkpoint: Path) -> Path:
    """The directory of a checkpoint's training: its run's; of one with a name of its own the directory around it, if that is a run's."""
    run = run_of(checkpoint)
    return run.parent if run == checkpoint and is_of_run(str(run.parent)) else run


def why_untrained(folder: str, in_run: Callable[[str], bool] = is_of_run) -> str:
    """Why a model without a sign of a training in it is not taken, "" where it is that of a run. `in_run`: whether a directory is one."""
    around = os.path.dirname(folder)
    if _ENCODERS.fullmatch(os.path.basename(folder)) and _has_part_of_diffusers(around):
        return OF_PIPELINE
    run = around if in_run(around) else folder if in_run(folder) else None
    if run is None:
        return UNTRAINED
    checkpoints = [
        f"{run}/{name}"
        for name, is_folder in names_in(run).items()
        if is_folder and f"{run}/{name}" != folder and (is_checkpoint_name(name) or is_loose_name(name))
    ]
    if os.path.realpath(folder) in map(_base_of, [run, *sorted(checkpoints)[:1]]):
        return NAMED_AS_BASE
    ours, theirs = _moments(folder, _WEIGHTS), [moment for path in checkpoints for moment in _moments(path, (*_WEIGHTS, *ADAPTERS))]
    return OLDER if ours and theirs and max(ours) < min(theirs) else ""


def _has_part_of_diffusers(around: str) -> bool:
    """Whether a folder below a directory holds what diffusers alone writes: a pipeline's list of its parts is written after all of them."""
    folders = (name for name, is_folder in names_in(around).items() if is_folder)
    return any(
        entry.startswith(("diffusion_pytorch_model.", "scheduler_config.")) for name in folders for entry in names_in(f"{around}/{name}")
    )


def _base_of(folder: str) -> str | None:
    """The real path of the folder that an adapter names as its base; None where it names none by an absolute path."""
    try:
        config = read_json(Path(folder, ADAPTER_CONFIG))
    except (OSError, ValueError, RecursionError):
        return None
    name = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return os.path.realpath(name) if isinstance(name, str) and os.path.isabs(name) and "\0" not in name else None


def _moments(folder: str, names: tuple[str, ...]) -> list[int]:
    """When those of these files were written that are in a directory; ns."""
    moments = []
    for name in names:
        try:
            moments.append(os.stat(f"{folder}/{name}", follow_symlinks=False).st_mtime_ns)
        except OSError:
            continue
    return moments
