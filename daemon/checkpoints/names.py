"""How trainers name checkpoint directories, and what tells a directory that holds one: what scans and events go by.

Functions of names and listings, called by `daemon.watching.scan`, the layouts and whoever needs a step or a run.
`checkpoint-N` is a checkpoint by its name alone, and nothing below it is one. Every other directory is one by what it holds,
whatever it is called, and what lies below it is still looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from pathlib import Path

from daemon.contract.sharded import accelerate, dcp_safetensors, lightning, mlx, verl

_N = r"([0-9]{1,12})"
CHECKPOINT_NAME = re.compile(rf"checkpoint-{_N}")
_SAVED = r"(?:saved?|model|weights|adapter|checkpoint|chkpt|ckpt)"
_COUNTED = r"(?:checkpoint|chkpt|ckpt|global_?step|steps?|iterations?|iters?|it|updates?)"
_NUMBERED = re.compile(
    rf"(?:epoch[-_=]?[0-9]+[-_])?(?:{_SAVED}[-_])?{_COUNTED}[-_=]?{_N}(?:[-_](?:hf|merged|{_SAVED}))?"
    rf"|(?:{_SAVED}[-_])?epoch[-_=]?{_N}|(?:saved?|model|weights)[-_=]{_N}"
)
"""Names that trainers and loops of one's own give to steps. `adapter-2`, `lora-16`, `batch-32` are none: so people call different runs."""
_VAGUE = re.compile(r"(?:saved?|model|weights)[-_=][0-9]+")
"""Those of them that a downloaded model or a run may have too."""
_SAVED_LAST = "training_args.bin"
"""Written last by Trainer's `save_model` (transformers/trainer.py, `_save`); Trainer itself calls no step so."""
_EPOCH = re.compile(rf"(?:{_SAVED}[-_])?epoch[-_=]?{_N}")
_UNFINISHED = re.compile(rf"(?:tmp|temp)[-_.](?:{_NUMBERED.pattern})|(?:{_NUMBERED.pattern})[-_.](?:tmp|temp|partial|incomplete)")
"""What loops call a step's directory until they rename it, when all is written."""
_ENDING = re.compile(r"(?:final|last)(?:[-_](?:checkpoint|ckpt|adapter|model))?|adapter")
"""What people and tools call the directory that is written when training has ended."""
_LIGHTNING = re.compile(r".*\.ckpt")
_LOOSE = re.compile("|".join(pattern.pattern for pattern in (_NUMBERED, _ENDING, _LIGHTNING)))
_PART = re.compile(r"(?:pytorch_model_fsdp|optimizer)_[0-9]+")
"""Folders in which accelerate keeps the pieces of a model and of its optimizer: parts of the checkpoint around them."""
PARTS = frozenset({"actor", "lora_adapter", "huggingface", "dist_ckpt", "model", "consolidated", "hf_ckpt", "trainer", "weight",
                   "policy", "adapter", "lora", "hf"})  # fmt: skip
"""Folders into which trainers divide what they write for a step (verl, NeMo AutoModel, VeOmni, prime-rl: `parts` knows them), and loops of
one's own."""
_MOST_PARTS = 3
_CONSOLIDATED = "sharded"
"""Folder in which torch's HuggingFaceStorageWriter keeps the pieces of the model that it has put together beside it."""

ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
REFERENCE = "ref"
"""TRL keeps a second, frozen adapter in this folder: never an export of its own, never merged."""
EXPORT = "MANIFEST.json"
STATE = "journal.sqlite3"
"""A directory with one of them, and what goes with it, is an export or a state directory of ours: what lies in it is no training's."""
_ADAPTER = frozenset({*ADAPTERS, "adapter_config.json"})
_MODEL = frozenset({"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"})
PIPELINE = "model_index.json"
"""File of a diffusers pipeline, whose parts lie in folders beside it."""
_OTHER = frozenset({
    ".metadata", "pytorch_model_fsdp_0", "zero_to_fp32.py", "lit_model.pth", "lit_model.pth.lora", PIPELINE,
    "pytorch_lora_weights.safetensors", "pytorch_lora_weights.bin", mlx.FILE,
})  # fmt: skip
"""What torch.distributed.checkpoint, FSDP, DeepSpeed, litgpt, diffusers and mlx-lm leave where there is no adapter and no model."""
ORBAX = "_CHECKPOINT_METADATA"
"""What Orbax (MaxText) writes into the directory of each step (orbax/checkpoint/_src/metadata/checkpoint.py)."""
_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"
"""In the name of a step's directory until Orbax renames it, when all is written (orbax/checkpoint/_src/path/atomicity_types.py)."""
_MEGATRON = re.compile(r"mp_rank_[0-9]{2}(?:_[0-9]{3}){0,2}|common\.pt")
"""What Megatron writes into an `iter_N` (megatron/training/checkpointing.py) beside the files of torch.distributed.checkpoint."""
COMPOSER = re.compile(r"ep([0-9]{1,12})-ba([0-9]{1,12})-rank0\.pt")
"""What MosaicML's Composer calls a checkpoint by default (composer/trainer/trainer.py, `save_filename`)."""
_FOLDERS = frozenset({"pytorch_model_fsdp_0"})
"""Those that are folders. A folder with the name of a file, Lightning's `NAME.ckpt` for example, tells nothing of what is around it."""
_TRAINERS = frozenset({
    "trainer_state.json", "training_args.bin", "training_args.json", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin",
    accelerate.RANDOM,
})  # fmt: skip
"""Files beside the weights that a training leaves, and whoever publishes a model does not."""
_MARKS = _ADAPTER | _MODEL | _OTHER | {EXPORT, STATE}
_CONTENT = re.compile(r"adapter_(?:model|config)\..+|(?:model|pytorch_model).*\.(?:safetensors|bin)|lit_model\.pth.*|pytorch_model_fsdp.*")


class Candidate(Enum):
    """What a directory is by its name and listing."""

    NONE = "none"
    CHECKPOINT = "checkpoint"
    UNTRAINED = "untrained"
    """It holds a whole model, and nothing says that a training wrote it: a base model, say, or a download."""
    OURS = "ours"
    """An export of ours, or the state of a daemon: copies of checkpoints lie in it."""


def is_checkpoint_name(name: str) -> bool:
    """Whether a directory is a checkpoint by its name alone, so that nothing below it is one."""
    return CHECKPOINT_NAME.fullmatch(name) is not None


def is_loose_name(name: str) -> bool:
    """Whether a directory of this name belongs to the run around it, as soon as it holds what trainers write."""
    return _LOOSE.fullmatch(name) is not None


def is_unfinished_name(name: str) -> bool:
    """Whether a directory of this name becomes a step when it is renamed."""
    return _UNFINISHED.fullmatch(name) is not None


def is_others_part(name: str) -> bool:
    """Whether a directory of this name is a part of the checkpoint around it, whatever it holds."""
    return name == REFERENCE or _PART.fullmatch(name) is not None


def is_of_training(entries: Iterable[str]) -> bool:
    """Whether a directory with these entries is a checkpoint of a training's or a run's: what lies beside its checkpoints belongs to the
    training too."""
    return any(entry in _TRAINERS or entry in ADAPTERS or is_checkpoint_name(entry) for entry in entries)


def candidate(name: str, entries: Mapping[str, bool]) -> Candidate:
    """What the directory `name` is, where it is not called `checkpoint-N`. `entries`: name → whether it is a folder, without links.

    An adapter in any form counts, a whole model only where its name or a trainer's files tell that a training wrote it; whether a run's
    directory is around it (`is_of_training`) the caller must ask.
    """
    there = _MARKS.intersection(entries) if len(entries) < len(_MARKS) else {mark for mark in _MARKS if mark in entries}
    marks = {mark for mark in there if not entries[mark] or mark in _FOLDERS}
    if (EXPORT in marks and ("report.json" in entries or "report.html" in entries)) or (STATE in marks and "pins" in entries):
        return Candidate.OURS
    if is_others_part(name):
        return Candidate.NONE
    loose = is_loose_name(name) and not _VAGUE.fullmatch(name)
    if marks & _ADAPTER or _is_sharded(marks, entries) or any(entry.endswith(".ckpt") and not entries[entry] for entry in entries):
        return Candidate.CHECKPOINT
    if name != _CONSOLIDATED and any(map(_is_piece, entries)):
        return Candidate.CHECKPOINT
    if any(COMPOSER.fullmatch(entry) and not entries[entry] for entry in entries):
        return Candidate.CHECKPOINT
    if ORBAX in entries:
        return Candidate.NONE if _ORBAX_TEMPORARY in name else Candidate.CHECKPOINT
    if loose and any(map(_MEGATRON.fullmatch, entries)):
        return Candidate.CHECKPOINT
    if loose and (any(_CONTENT.fullmatch(entry) for entry in entries) or (_LIGHTNING.fullmatch(name) is not None and bool(entries))):
        return Candidate.CHECKPOINT
    if not marks & _MODEL:
        return Candidate.NONE
    return Candidate.CHECKPOINT if is_of_training(entries) else Candidate.UNTRAINED


def _is_sharded(marks: Collection[str], entries: Collection[str]) -> bool:
    """`.metadata` is a common name: it counts with the parts that it describes, and these without it, since it comes last."""
    return any(mark in _OTHER and mark != ".metadata" for mark in marks) or any(entry.endswith(".distcp") for entry in entries)


def _is_piece(entry: str) -> bool:
    """Whether an entry is a file that says of itself that it holds pieces."""
    return entry.startswith(("shard-", "model_world_size_")) and any(form.NAME.fullmatch(entry) for form in (dcp_safetensors, verl))


def may_make_checkpoint(entry: str) -> bool:
    """Whether a file of this name may turn the directory around it into a checkpoint: worth looking at its listing."""
    if entry in _MARKS or entry in _TRAINERS or entry == ORBAX or entry.endswith((".ckpt", ".distcp")):
        return True
    return _is_piece(entry) or COMPOSER.fullmatch(entry) is not None


def is_run_itself(path: Path) -> bool:
    """Whether a directory that is called as a step or an ending is a run's own, as `model-1` of a Trainer's `output_dir="model-1"`.

    Then `checkpoint-N` lie in it, or under a name that runs have too what Trainer's `save_model` writes last. Asks the file system.
    """
    if _VAGUE.fullmatch(path.name) and os.path.isfile(path / _SAVED_LAST):
        return True
    try:
        with os.scandir(path) as entries:
            return any(is_checkpoint_name(entry.name) and entry.is_dir(follow_symlinks=False) for entry in entries)
    except OSError:
        return False


def step_folder(path: Path) -> Path:
    """The directory of the step that `path` is a part of, as `global_step_20` for `global_step_20/actor/lora_adapter`; else `path`."""
    folder = path
    for _ in range(_MOST_PARTS):
        if folder.name not in PARTS:
            break
        folder = folder.parent
        if _NUMBERED.fullmatch(folder.name) and not is_run_itself(folder):
            return folder
    return path


def step_of(path: Path) -> int | None:
    """N of `checkpoint-N`, `step_N`, `epoch=M-step=N`, `epoch_N` and the like, with leading zeros or without; None for every other name.

    Lightning's directories have such a name before `.ckpt`, or a `step=N` anywhere in it. A part of a step has the step's. A run's own
    directory has none, whatever it is called.
    """
    folder = step_folder(path)
    match = _NUMBERED.fullmatch(folder.name.removesuffix(lightning.SUFFIX))
    if match is None:
        return lightning.step_in(folder.name) if folder.suffix == lightning.SUFFIX else None
    if not is_checkpoint_name(folder.name) and is_run_itself(folder):
        return None
    return int(next(filter(None, match.groups())))


def counts_epochs(path: Path) -> bool:
    """Whether the number in the name is one of epochs, which training's own step count need not equal."""
    return _EPOCH.fullmatch(step_folder(path).name.removesuffix(lightning.SUFFIX)) is not None


def run_of(path: Path) -> Path:
    """The run's directory: the one around a checkpoint's step, or the directory itself where the adapter lies in the run's own."""
    folder = step_folder(path)
    if is_checkpoint_name(folder.name) or (is_loose_name(folder.name) and not is_run_itself(folder)):
        return folder.parent
    return folder


def newest_step_beside(path: Path) -> int:
    """The highest step of the checkpoints of the run that `path` belongs to; 0 without any, or where it can't be listed.

    What is written when training ends has no step in its name; it is at least as far as the last checkpoint.
    """
    run = run_of(path)
    try:
        names = os.listdir(run)
    except PermissionError:
        return 0
    steps = ((accelerate.steps_made(run / name) if counts_epochs(Path(name)) else None, step_of(run / name)) for name in names)
    return max((step for pair in steps for step in pair if step is not None), default=0)
