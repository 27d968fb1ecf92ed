"""The table of layouts: what each trainer writes, when that is complete, and what cannot be exported as it is.

`daemon.checkpoints.inspection.inspect` asks `recognize` for the first row that fits a directory and applies its rules.
docs/checkpoints.md says the same in words, row by row, and a test compares the names. A layout is data and small
functions over a listing; the rules read headers and small files only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from daemon.checkpoints.completeness import INDEXES, Weights, unfinished, weight_problems, whole_adapter, whole_model
from daemon.checkpoints.files import ADAPTER_CONFIG, TRAINER_STATE, Look
from daemon.checkpoints.names import ADAPTERS, CHECKPOINT_NAME, COMPOSER, ORBAX, PIPELINE
from daemon.checkpoints.others import MEGATRON_RANK, composer_files, iteration_in, megatron_files, orbax_files, says_megatron
from daemon.checkpoints.pieces import (
    GLOBAL_STEP,
    archives,
    dcp_metadata,
    deepspeed_latest,
    fsdp_metadata,
    in_pieces,
    is_written_last,
    lightning,
    mlx_adapter,
    of_verl,
    random_states,
    training_state,
    verl_config,
    zero,
)
from daemon.checkpoints.unsupported import DIFFUSERS_LORA, refuse_composer, refuse_diffusers, refuse_litgpt, refuse_megatron, refuse_orbax
from daemon.contract.faults.errors import Fault
from daemon.contract.light import dataclass
from daemon.contract.sharded import accelerate, dcp_safetensors, mlx
from daemon.contract.sharded.deepspeed import LATEST
from daemon.contract.sharded.forms import FSDP, is_ranks
from daemon.contract.sharded.lightning import SUFFIX

ACCELERATE = "accelerate"
PATIENCE_SECONDS = 30.0
"""Extra quiet time for what has no last file to tell that it is done: longer than any pause between two files of one
`save_pretrained` that we met."""
_TRAINERS = re.compile(r"training_args\.bin|rng_state.*\.pth")
"""Files beside the model that only transformers' Trainer writes, all of them before trainer_state.json. Loops of one's own have an
optimizer.pt and a scheduler.pt too, accelerate a scaler.pt; beside a model or an adapter Trainer has written training_args.bin before."""
_TRAINERS_BESIDE_PIECES = re.compile(rf"{_TRAINERS.pattern}|optimizer\.pt|scheduler\.pt")
"""The same where its weights lie in pieces, beside which it writes no training_args.bin."""
_DIFFUSERS_PARTS = ("unet", "unet_ema", "transformer", "controlnet", "prior")
"""Folders in which diffusers' examples (examples/*/train_*.py, `save_model_hook`) save the part that they train."""
_TORCHTUNE = re.compile(r"adapter_(?:model|[0-9]+)\.pt|recipe_state\.pt")
_FULL_WEIGHTS = re.compile(r"(?:model|pytorch_model).*\.(?:safetensors|bin)")


def has_adapter(look: Look) -> bool:
    """Whether an adapter, or a part of one, is there."""
    return ADAPTER_CONFIG in look.names or any(name.startswith("adapter_model.") for name in look.names)


def has_model(look: Look) -> bool:
    """Whether weights of a whole model, or a part of them, or their index are there."""
    return _has_model_files(look) or any(name in look.names for name in INDEXES)


def has_weights(look: Look) -> bool:
    """Whether weights that are read as they are lie at the top."""
    return _has_model_files(look) or any(name in look.names for name in ADAPTERS)


def _has_model_files(look: Look) -> bool:
    return any(_FULL_WEIGHTS.fullmatch(name) for name in look.names)


def has_deepspeed(look: Look) -> bool:
    """Whether DeepSpeed keeps its state here, or has begun to write it."""
    if any(GLOBAL_STEP.fullmatch(name) and _is_of_deepspeed(look.path / name) for name in look.folders):
        return True
    return LATEST in look.files and ("zero_to_fp32.py" in look.files or look.path.suffix == SUFFIX)


def _is_of_deepspeed(folder: Path) -> bool:
    """Whether DeepSpeed's state of a step lies in a folder, or nothing yet: loops of one's own call their steps so too."""
    names = os.listdir(folder)
    return not names or any(name.endswith("_states.pt") for name in names)


def is_of_trainer(look: Look) -> bool:
    """Whether transformers' Trainer wrote it: its state is there, or files that come before its state."""
    if TRAINER_STATE in look.files:
        return True
    named = CHECKPOINT_NAME.fullmatch(look.path.name) is not None
    own = _TRAINERS if has_weights(look) else _TRAINERS_BESIDE_PIECES
    return named and (any(map(own.fullmatch, look.files)) or _has_trainers_sibling(look.path))


def _has_trainers_sibling(path: Path) -> bool:
    """Whether a `checkpoint-N` beside this one has a trainer's state: then this one is Trainer's too, half-made or half-deleted."""
    with os.scandir(path.parent) as entries:
        return any(
            CHECKPOINT_NAME.fullmatch(entry.name) and entry.path != str(path) and os.path.isfile(os.path.join(entry.path, TRAINER_STATE))
            for entry in entries
        )


@dataclass(frozen=True)
class Layout:
    """A row of the table."""

    name: str
    writer: str
    """Who writes it, for people."""
    fits: Callable[[Look], bool]
    weights: Callable[[Look], Weights]
    checks: tuple[Callable[[Look], list[str]], ...] = (unfinished,)
    last_file: str | None = None
    """The file that the writer ends with. Without one, quiet is all that can be asked, and more of it."""
    refusal: Callable[[Path], Fault] | None = None
    """Why a complete one is not exported, and the command that makes one that is."""
    in_pieces: bool = False
    """Its weights must be put together first; their description is written last."""
    undescribed: bool = False
    """Of its pieces nothing is written last that tells of all."""
    goes_on: bool = False
    """After the description its writer goes on with the optimizer, and only Trainer says by its state that it is done."""

    def patience(self, look: Look) -> float:
        """Seconds of quiet beyond the settle time that it needs before it may be taken.

        A last file only tells in a directory that is written once: in a run's own one it may be that of an earlier training.
        """
        ended = self.last_file is not None and CHECKPOINT_NAME.fullmatch(look.path.name) is not None
        described = self.in_pieces and not self.undescribed and not (self.goes_on and TRAINER_STATE not in look.files)
        if self.name == ACCELERATE:
            described = is_written_last(look)
        return 0.0 if ended or self.refusal or described else PATIENCE_SECONDS


def _is_lightning(look: Look) -> bool:
    return look.path.suffix == SUFFIX or any(file.endswith(SUFFIX) for file in look.files)


def _is_megatron(look: Look) -> bool:
    if any(map(MEGATRON_RANK.fullmatch, look.folders)) or iteration_in(look):
        return not has_weights(look)
    pieces = any(name.endswith(".distcp") for name in look.files)
    named = look.path.name.startswith("iter_") or look.path.name == "dist_ckpt"  # verl's
    return pieces and ("common.pt" in look.files or named or says_megatron(look.path))


def _is_torchtune(look: Look) -> bool:
    """Whether torchtune's own form lies beside an adapter in PEFT's: it is written before that (torchtune's _checkpointer.py)."""
    return has_adapter(look) and any(map(_TORCHTUNE.fullmatch, look.files))


def _is_state(look: Look) -> bool:
    """Whether accelerate's `save_state` wrote it. What else calls its optimizer so says by a config.json that it is a model's folder."""
    return has_model(look) and accelerate.is_state(look.files if "config.json" not in look.files else look.files & {accelerate.RANDOM})


def _is_diffusers(look: Look) -> bool:
    """Whether a LoRA, a pipeline, or the part of one that a training of diffusers' examples saves with its state is there."""
    parts = accelerate.is_state(look.files) and not look.folders.isdisjoint(_DIFFUSERS_PARTS)
    return parts or any(name in look.files for name in (*DIFFUSERS_LORA, PIPELINE))


def _diffusers_problems(look: Look) -> list[str]:
    return [problem for name in DIFFUSERS_LORA if name in look.files for problem in weight_problems(look.path, name)]


TABLE = (
    Layout("fsdp-sharded", "transformers Trainer or accelerate with FSDP SHARDED_STATE_DICT",
           lambda look: FSDP in look.folders and not has_weights(look), in_pieces, (unfinished, fsdp_metadata), in_pieces=True,
           goes_on=True),
    Layout("verl-sharded", "verl with FSDP", lambda look: any(map(is_ranks, look.files)) and not has_weights(look), of_verl,
           (unfinished, verl_config), in_pieces=True, undescribed=True),
    Layout("megatron", "Megatron-Core, and what trains with it", _is_megatron, lambda look: Weights(), (unfinished, megatron_files),
           refusal=refuse_megatron),
    Layout("orbax", "Orbax, with which MaxText saves", lambda look: ORBAX in look.files, lambda look: Weights(), (orbax_files,),
           refusal=refuse_orbax),
    Layout("dcp-sharded", "torchtitan, or torch.distributed.checkpoint by itself",
           lambda look: any(name.endswith(".distcp") for name in look.files) and not has_weights(look), in_pieces,
           (unfinished, dcp_metadata), in_pieces=True),
    Layout("dcp-safetensors", "torch.distributed.checkpoint's HuggingFaceStorageWriter without consolidation",
           lambda look: any(map(dcp_safetensors.NAME.fullmatch, look.files)) and not has_weights(look), in_pieces, in_pieces=True,
           undescribed=True),
    Layout("deepspeed-sharded", "DeepSpeed ZeRO without gathered weights", lambda look: has_deepspeed(look) and not has_weights(look),
           zero, (unfinished, deepspeed_latest), in_pieces=True),
    Layout("lightning", "PyTorch Lightning", lambda look: _is_lightning(look) and not has_weights(look), lightning, (archives,),
           in_pieces=True),
    Layout("deepspeed-adapter", "transformers Trainer with DeepSpeed ZeRO and PEFT", lambda look: has_adapter(look) and has_deepspeed(look),
           whole_adapter, (unfinished, deepspeed_latest), TRAINER_STATE),
    Layout("deepspeed-full", "transformers Trainer with DeepSpeed ZeRO", lambda look: has_model(look) and has_deepspeed(look),
           whole_model, (unfinished, deepspeed_latest), TRAINER_STATE),
    Layout("mlx-lm-adapter", "mlx-lm", lambda look: mlx.FILE in look.files and not any(name in look.files for name in ADAPTERS),
           mlx_adapter, in_pieces=True, undescribed=True),
    Layout("trainer-adapter", "transformers Trainer 4.x and 5.x with PEFT, and TRL", lambda look: has_adapter(look) and is_of_trainer(look),
           whole_adapter, last_file=TRAINER_STATE),
    Layout("torchtune-adapter", "torchtune, adapter in PEFT's form", _is_torchtune, whole_adapter),
    Layout("adapter", "PEFT's save_pretrained, as in a training loop of one's own", has_adapter, whole_adapter),
    Layout("trainer-full", "transformers Trainer 4.x and 5.x", lambda look: has_model(look) and is_of_trainer(look), whole_model,
           last_file=TRAINER_STATE),
    Layout(ACCELERATE, "accelerate's save_state", _is_state, training_state, (unfinished, random_states), in_pieces=True),
    Layout("full", "transformers' save_pretrained, as in a training loop of one's own", has_model, whole_model),
    Layout("diffusers", "diffusers: a LoRA, a part or a pipeline", _is_diffusers, lambda look: Weights(_diffusers_problems(look)),
           refusal=refuse_diffusers),
    Layout("litgpt", "litgpt", lambda look: any(name.startswith("lit_model.pth") for name in look.files), lambda look: Weights(), (),
           refusal=refuse_litgpt),
    Layout("composer", "MosaicML's Composer", lambda look: any(map(COMPOSER.fullmatch, look.files)), lambda look: Weights(),
           (composer_files,), refusal=refuse_composer),
)  # fmt: skip
"""First match wins."""


def recognize(look: Look) -> Layout | None:
    """The row of the table that fits, None where nothing of a checkpoint is there yet."""
    return next((layout for layout in TABLE if layout.fits(look)), None)
