"""Checkpoints in pieces (FSDP, DeepSpeed, torch.distributed.checkpoint, Lightning): what they hold, and what is missing.

The rows of `daemon.checkpoints.layouts` name these rules. Whether the pieces are an adapter or a model, the names of their tensors say;
what they lack beside the weights may lie in the run's directory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon.checkpoints.completeness import Weights, archive_problems, describe, read_object, side_file_problems, weight_problems
from daemon.checkpoints.files import ADAPTER_CONFIG, OPTIMIZER, TRAINER_STATE, Look, absent
from daemon.checkpoints.names import counts_epochs, run_of
from daemon.checkpoints.parts import config_folders
from daemon.checkpoints.unsupported import (
    refuse_deepspeed,
    refuse_lightning,
    refuse_mlx,
    refuse_no_adapter_config,
    refuse_no_tensors,
    refuse_several,
    refuse_unsafe,
    refuse_verl,
)
from daemon.contract.disk.files import open_plain
from daemon.contract.faults.errors import CkptdError, Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.light import dataclass
from daemon.contract.sharded import accelerate, dcp, deepspeed, mlx, verl
from daemon.contract.sharded.forms import FSDP, is_adapter, is_ranks, newest_module, read_tensors
from daemon.contract.sharded.lightning import SUFFIX, step_in
from daemon.contract.sharded.pickles import Unsafe
from daemon.contract.sharded.pieces import Unsupported

_OF_MODEL = re.compile(
    r"(generation_config|config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config|processor_config)\.json"
    r"|chat_template\.(jinja|json)|vocab\.txt|merges\.txt|.+\.(model|spm|tiktoken)"
)
"""Files that a model in pieces takes from its run's directory where it has none of that name itself."""
_VOCABULARY = re.compile(r"tokenizer\.json|vocab\.(?:json|txt)|.+\.(?:model|spm|tiktoken)")
GLOBAL_STEP = re.compile(r"global_step([0-9]{1,12})")


def in_pieces(look: Look, refuse: Callable[[Path, str], Fault] | None = None) -> Weights:
    """An adapter or a model by the names of its tensors; what it lacks beside them may lie in the run's directory.

    `refuse`: gives the refusal of what its own tool reads and nothing here does.
    """
    weights = Weights(missing=side_file_problems(look.path, look.names - {TRAINER_STATE}))
    try:
        holds = _held(look.path, _state_of_pieces(look))
    except CkptdError as error:
        if error.fault.code != FaultCode.FILE_MISSING:  # what is not there yet, the row's checks say
            weights.missing.append(f"its parts can't be read: {error.fault.cause}")
        return weights
    if holds.unsafe is not None:
        weights.refusal = refuse(look.path, str(holds.unsafe)) if refuse else refuse_unsafe(look.path, holds.unsafe.name)
    elif holds.unsupported is not None:
        weights.refusal = (refuse or refuse_deepspeed)(look.path, holds.unsupported)
    elif holds.problem is not None:
        weights.missing.append(f"its parts can't be merged: {holds.problem}")
    elif holds.tensors == 0:
        weights.refusal = refuse_no_tensors(look.path)
    elif holds.adapter:
        _borrow_adapter_config(look, weights)
    else:
        weights.method, weights.borrowed = "full", tuple(_of_model(look))
        for path in weights.borrowed:
            weights.missing += side_file_problems(path.parent, [path.name])
    return weights


def lightning(look: Look) -> Weights:
    """The newest of Lightning's files; of a class in it that is not known nothing can be read."""
    name = newest_module(look.path)
    if name is None and not any(file.endswith(SUFFIX) for file in look.files):
        return Weights([f"nothing that Lightning ends a {SUFFIX} directory with is in it yet: DeepSpeed's latest, or torch's parts"])
    if name is None:
        return Weights(refusal=refuse_lightning(look.path, "it is not clear which of its .ckpt files is the newest"))
    weights = in_pieces(look)
    weights.step = step_in(name)
    if weights.refusal is not None and weights.refusal.code == FaultCode.UNSAFE_PICKLE:
        weights.refusal = refuse_lightning(look.path / name, weights.refusal.cause)
    return weights


def training_state(look: Look) -> Weights:
    """What accelerate's `save_state` writes: a model's weights, or an adapter's with the base's among them."""
    if files := accelerate.several(look.files):
        return Weights(refusal=refuse_several(look.path, files))
    name = next((name for name in accelerate.WEIGHTS if name in look.names), None)
    missing = weight_problems(look.path, name) if name else [absent(look.path, *accelerate.WEIGHTS)]
    weights = Weights(missing) if missing else in_pieces(look)
    if counts_epochs(look.path):
        weights.step = accelerate.steps_made(look.path)
    return weights


def mlx_adapter(look: Look) -> Weights:
    """mlx-lm's adapter: the newest of a directory's saves, whose number other files beside it tell."""
    weights = Weights(weight_problems(look.path, mlx.FILE))
    config = read_object(look.path, ADAPTER_CONFIG, weights.missing)
    if config is None or weights.missing:
        return weights
    try:
        described, holds = mlx.peft_config(config), _held(look.path, _state_of_pieces(look))
    except mlx.WrongConfig as error:
        described, holds = {}, _Held(unsupported=f"its {ADAPTER_CONFIG} is not mlx-lm's for an adapter: {error}")
    if problem := holds.unsupported or holds.problem:
        weights.refusal = refuse_mlx(look.path, problem)
        return weights
    describe(weights, described, look.path)
    numbered = [os.stat(look.path / name).st_mtime_ns for name in look.files if mlx.NUMBERED.fullmatch(name)]
    ended = os.stat(look.path / mlx.FILE).st_mtime_ns > max(numbered, default=0)
    weights.step = mlx.step_of(look.files, config.get("iters"), ended=ended)
    return weights


def random_states(look: Look) -> list[str]:
    """accelerate ends with the states of the random generators, each rank with its own."""
    if accelerate.RANDOM not in look.files:
        return [f"{accelerate.RANDOM}, which accelerate writes last, is not there yet"]
    return archive_problems(look.path, accelerate.RANDOM)


def is_written_last(look: Look) -> bool:
    """Whether accelerate's last file is not older than the weights, which are then not being written again."""
    moments = [os.lstat(look.path / name).st_mtime_ns for name in (accelerate.RANDOM, *accelerate.WEIGHTS) if name in look.files]
    return accelerate.RANDOM in look.files and moments[0] >= max(moments)


def zero(look: Look) -> Weights:
    """What `latest` names. A state of a kind that is not put together here, or with objects of unknown classes, is refused."""
    tag = deepspeed.tag_in(look.path)
    if tag is None:  # the row's check says so
        return Weights()
    weights = in_pieces(look, refuse_deepspeed)
    matched = GLOBAL_STEP.fullmatch(tag)
    weights.step = int(matched[1]) if matched else step_in(look.path.name)
    return weights


def of_verl(look: Look) -> Weights:
    """What the ranks of verl's FSDP hold; what no tensor is in them, or is divided otherwise, its own merger has to read."""
    return in_pieces(look, refuse_verl)


def verl_config(look: Look) -> list[str]:
    """verl writes huggingface/ with configuration and tokenizer after the pieces, and then fsdp_config.json, which older releases lack."""
    config, tokenizer = (look.path / "huggingface" / name for name in ("config.json", "tokenizer_config.json"))
    if verl.CONFIG in look.files and config.is_file():
        return []
    if not config.is_file() or not (tokenizer.is_file() and any(map(_VOCABULARY.fullmatch, os.listdir(config.parent)))):
        return [f"huggingface/ with configuration and tokenizer, and {verl.CONFIG}, which verl writes after the pieces, are not there yet"]
    return []


def deepspeed_latest(look: Look) -> list[str]:
    """DeepSpeed writes `latest`, the name of the folder with its state, after that folder."""
    try:
        with open_plain(look.path / "latest") as stream:
            named = stream.read(256).decode(errors="replace").strip()
    except ValueError as error:
        return [f"latest can't be read: {error}"]
    except FileNotFoundError:
        return ["latest, which DeepSpeed writes last, is not there yet"]
    return [] if named in look.folders else [f"latest names the folder {named!r}, which is not there"]


def fsdp_metadata(look: Look) -> list[str]:
    """torch.distributed.checkpoint writes .metadata when every rank's part is written; the optimizer's folder comes after the model's."""
    begun = [FSDP, *(name for name in (OPTIMIZER,) if name in look.folders)]
    return [
        f"{name}/.metadata, which torch writes when every rank is done, is not there yet"
        for name in begun
        if not (look.path / name / ".metadata").is_file()
    ]


def dcp_metadata(look: Look) -> list[str]:
    """Return what is missing of what torch.distributed.checkpoint writes by itself."""
    return [] if ".metadata" in look.files else [".metadata, which torch writes when every rank is done, is not there yet"]


def archives(look: Look) -> list[str]:
    """Return which of Lightning's files are not whole."""
    return [problem for name in sorted(look.files) if name.endswith(".ckpt") for problem in archive_problems(look.path, name)]


def pieces_to_come(path: Path) -> tuple[str, ...]:
    """Name the files that a description of pieces promises; none where there is no such description, or it can't be read."""
    with contextlib.suppress(OSError, CkptdError):
        status = os.lstat(path / dcp.METADATA)
        return _named(path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return ()


@dataclass(frozen=True)
class _Held:
    """What pieces hold, or why that can't be told: they ask to run something, or are of a kind that is not put together here."""

    tensors: int = 0
    adapter: bool = False
    problem: str | None = None
    unsafe: Unsafe | None = None
    unsupported: str | None = None


@functools.lru_cache(maxsize=1024)
def _held(path: Path, state: tuple[tuple[Any, ...], ...]) -> _Held:
    """What the pieces below `path` hold. Their description may take seconds to read, and every scan asks again: `state` tells whether
    they have changed. Raises CkptdError, which is not remembered."""
    try:
        tensors = read_tensors(path)
    except Unsafe as error:
        return _Held(unsafe=error)
    except Unsupported as error:
        return _Held(unsupported=str(error))
    except ValueError as error:
        return _Held(problem=str(error))
    return _Held(len(tensors), is_adapter(tensors))


def _state_of_pieces(look: Look) -> tuple[tuple[Any, ...], ...]:
    states = ((name, os.lstat(look.path / name)) for name in sorted(look.names))
    return tuple((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) for name, status in states)


@functools.lru_cache(maxsize=1024)
def _named(folder: Path, state: tuple[int, ...]) -> tuple[str, ...]:
    """The files that a description names, which every scan asks for again: `state` tells whether it has changed."""
    try:
        return tuple(dcp.files_named(folder))
    except ValueError:
        return ()


def _borrow_adapter_config(look: Look, weights: Weights) -> None:
    folders = [look.path] if ADAPTER_CONFIG in look.names else config_folders(look.path)
    place = next((folder for folder in folders if (folder / ADAPTER_CONFIG).is_file()), None)
    if place is None and verl.LORA in look.names and (said := verl.lora_of(look.path)) is not None:
        weights.method, weights.metadata = "LORA", {"rank": said["r"], "alpha": said["lora_alpha"]}
        return
    if place is None and any(map(is_ranks, look.files)):
        weights.missing.append(
            f"what says how its adapter is made is not there yet: verl writes {verl.LORA}, or lora_adapter/; or put the training's"
            f" {ADAPTER_CONFIG} into {run_of(look.path)}"
        )
        return
    if place is None:
        weights.refusal = refuse_no_adapter_config(look.path, run_of(look.path))
        return
    config = read_object(place, ADAPTER_CONFIG, weights.missing)
    if config is not None:
        describe(weights, config, place)
    weights.borrowed = () if place == look.path else (place / ADAPTER_CONFIG,)


def _of_model(look: Look) -> list[Path]:
    run, folders = run_of(look.path), config_folders(look.path)
    if "config.json" in look.names:
        return []
    place = next((folder for folder in folders if (folder / "config.json").is_file()), None if run == look.path else run)
    if place is None:
        return []
    with os.scandir(place) as entries:
        return sorted(
            Path(entry.path)
            for entry in entries
            if _OF_MODEL.fullmatch(entry.name) and entry.name not in look.names and entry.is_file(follow_symlinks=False)
        )
