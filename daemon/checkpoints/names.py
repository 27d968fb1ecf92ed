"""How trainers name checkpoint directories, and which other directories hold one: what scans and events go by.

Functions of names and listings, called by `daemon.watching.scan`, the layouts and whoever needs a step or a run.
`checkpoint-N` is a checkpoint by its name alone. Every other name is also used for runs and plain folders, so
those count only once they hold what a trainer writes, and what lies below them is still looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

_N = r"([0-9]{1,12})"
CHECKPOINT_NAME = re.compile(rf"checkpoint-{_N}")
_NUMBERED = re.compile(rf"(?:checkpoint-|step[-_]|epoch[-_]){_N}")
_EPOCH = re.compile(rf"epoch[-_]{_N}")
_ENDING = re.compile(r"final(?:[-_](?:checkpoint|adapter|model))?|adapter")
"""What people and tools call the directory that is written when training has ended."""
_LIGHTNING = re.compile(r".*\.ckpt")
_LOOSE = re.compile("|".join(pattern.pattern for pattern in (_NUMBERED, _ENDING, _LIGHTNING)))
_STAGING = re.compile(r"tmp-checkpoint-[0-9]+")

ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
TRAINERS_MARK = "training_args.bin"
"""transformers' Trainer writes it with each model that it saves, right after the model."""
REFERENCE = "ref"
"""TRL keeps a second, frozen adapter in this folder: never an export of its own, never merged."""
_CONTENT = re.compile(r"adapter_(?:model|config)\..+|(?:model|pytorch_model).*\.(?:safetensors|bin)|lit_model\.pth.*|pytorch_model_fsdp.*")


def is_checkpoint_name(name: str) -> bool:
    """Whether a directory is a checkpoint by its name alone, so that nothing below it is one."""
    return CHECKPOINT_NAME.fullmatch(name) is not None


def is_staging_name(name: str) -> bool:
    """Whether an older transformers is still writing under this name; it renames the directory when it is done."""
    return _STAGING.fullmatch(name) is not None


def is_loose_name(name: str) -> bool:
    """Whether a directory of this name is a checkpoint as soon as it holds what trainers write."""
    return _LOOSE.fullmatch(name) is not None


def holds_checkpoint(name: str, entries: Collection[str]) -> bool:
    """Whether the directory `name` with these entries is a checkpoint although it is not called `checkpoint-N`.

    A name of the table with weights in it, or a run's own directory into which Trainer saved the adapter at its end.
    """
    if is_loose_name(name):
        if is_checkpoint_name(name):
            return False
        return any(_CONTENT.fullmatch(entry) for entry in entries) or (_LIGHTNING.fullmatch(name) is not None and bool(entries))
    if name == REFERENCE or (ADAPTERS[0] not in entries and ADAPTERS[1] not in entries):
        return False
    return TRAINERS_MARK in entries or any(is_checkpoint_name(entry) for entry in entries)


def may_make_checkpoint(entry: str) -> bool:
    """Whether a file of this name may turn the directory around it into a checkpoint: worth looking at its listing."""
    return entry in ADAPTERS or entry in (TRAINERS_MARK, "adapter_config.json")


def step_of(path: Path) -> int | None:
    """N of `checkpoint-N`, `step_N` and `epoch_N`, with leading zeros or without; None for every other name."""
    match = _NUMBERED.fullmatch(path.name)
    return int(match[1]) if match else None


def counts_epochs(path: Path) -> bool:
    """Whether the number in the name is one of epochs, which training's own step count need not equal."""
    return _EPOCH.fullmatch(path.name) is not None


def run_of(path: Path) -> Path:
    """The run's directory: the one around a checkpoint, or the directory itself where the adapter lies in the run's own."""
    return path.parent if is_checkpoint_name(path.name) or is_loose_name(path.name) else path


def newest_step_beside(path: Path) -> int:
    """The highest N of the `checkpoint-N` of the run that `path` belongs to; 0 without any, or where the run can't be listed.

    What is written when training ends has no step in its name; it is at least as far as the last checkpoint.
    """
    try:
        names = os.listdir(run_of(path))
    except PermissionError:
        return 0
    return max((int(match[1]) for match in map(CHECKPOINT_NAME.fullmatch, names) if match), default=0)
