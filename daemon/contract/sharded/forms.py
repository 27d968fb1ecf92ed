"""Which sharded form a folder holds, and the tensors in it, by one function for all forms."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from daemon.contract.sharded import accelerate, dcp, dcp_safetensors, deepspeed, lightning, mlx, verl
from daemon.contract.sharded.pickles import Unreadable
from daemon.contract.sharded.pieces import ShardedTensor

FSDP = "pytorch_model_fsdp_0"
"""Folder of the model in what accelerate and transformers' Trainer save with SHARDED_STATE_DICT; in it is torch's own form."""
_TORCHTITAN = re.compile(r"tok_embeddings\.weight|layers\.0\.attention\.(?:qkv_linear\.)?wq\.weight")
"""Two names that every release of torchtitan gives to a transformer's tensors; since 0.3 the queries lie in `qkv_linear`."""
_ADAPTER = re.compile(
    r"(?:^|\.)(?:lora_(?:A|B|embedding_A|embedding_B|magnitude_vector|E|ranknum)|hada_[tw]\w*|lokr_[tw]\w*|ia3_l|oft_[RSs]\w*|boft_[RSs]\w*"
    r"|vera_lambda_[bd]|randlora_\w+|bone_\w+|c3a_kernel|trainable_tokens_delta)(?:\.|$)"
)
"""What the names of an adapter's tensors have among their parts (peft/mapping.py, PEFT_TYPE_TO_PREFIX_MAPPING, and the tuners)."""


def shards_in(entries: Iterable[os.DirEntry[str]]) -> list[str]:
    """Names, relative to the folder with these entries, of the files in which a sharded form lies; [] where there is none."""
    files, metadata, folder, latest, modules, ranks = [], [], None, None, [], []
    for entry in entries:
        if entry.name == FSDP and entry.is_dir(follow_symlinks=False):
            folder = entry
        elif entry.name == dcp.METADATA and entry.is_file(follow_symlinks=False):
            metadata = [entry.name]
        elif (entry.name.endswith(dcp.SUFFIX) or dcp_safetensors.NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False):
            files.append(entry.name)
        elif verl.NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            ranks.append(entry.name)
        elif entry.name.endswith(lightning.SUFFIX) and entry.is_file(follow_symlinks=False):
            modules.append(entry.name)
        elif entry.name == deepspeed.LATEST and entry.is_file(follow_symlinks=False):
            latest = entry
    if folder is not None:
        with os.scandir(folder.path) as inside:
            return [
                f"{FSDP}/{entry.name}"
                for entry in inside
                if (entry.name == dcp.METADATA or entry.name.endswith(dcp.SUFFIX)) and entry.is_file(follow_symlinks=False)
            ]
    if files:
        return [*metadata, *files]
    if ranks:
        return ranks
    if latest is not None and (states := deepspeed.files_in(Path(latest.path).parent)):
        return states
    chosen = lightning.newest(modules)
    return [chosen] if chosen else []


@functools.lru_cache(4096)
def may_be_shard(name: str) -> bool:
    """Whether an entry of this name may be a part of a sharded form."""
    return name in (dcp.METADATA, FSDP, deepspeed.LATEST) or name.endswith((dcp.SUFFIX, lightning.SUFFIX)) or is_ranks(name)


def is_ranks(name: str) -> bool:
    """Whether a file of this name holds what one rank of verl's FSDP saves of a model."""
    return verl.NAME.fullmatch(name) is not None


def is_sharded(folder: Path) -> bool:
    """Whether a sharded form lies in a folder."""
    with os.scandir(folder) as entries:
        return bool(shards_in(entries))


def read_tensors(folder: Path) -> dict[str, ShardedTensor]:
    """Name → tensor of the model in a folder with a sharded form; the files of its pieces are relative to that folder.

    Raises Unsafe, Unreadable, OSError as the forms' own modules do.
    """
    if (folder / FSDP).is_dir():
        return {name: _below(FSDP, tensor) for name, tensor in dcp.read_tensors(folder / FSDP).items()}
    if (folder / dcp.METADATA).is_file() or any(name.endswith(dcp.SUFFIX) for name in os.listdir(folder)):
        return dcp.read_tensors(folder)
    if any(dcp_safetensors.NAME.fullmatch(name) for name in os.listdir(folder)):
        return dcp_safetensors.read_tensors(folder)
    if any(map(is_ranks, os.listdir(folder))):
        return verl.read_tensors(folder)
    if deepspeed.tag_in(folder) is not None:
        return deepspeed.read_tensors(folder)
    chosen = newest_module(folder)
    if chosen is not None:
        return lightning.read_tensors(folder / chosen)
    if (folder / mlx.FILE).is_file():
        return mlx.read_tensors(folder)
    if any((folder / name).is_file() for name in accelerate.WEIGHTS):
        return accelerate.read_tensors(folder)
    raise Unreadable("it has no known sharded form")


def newest_module(folder: Path) -> str | None:
    """Name of the newest of Lightning's files in a folder; None where there is none, or where the newest can't be told."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(lightning.SUFFIX) and entry.is_file(follow_symlinks=False)]
    return lightning.newest(names)


def _below(folder: str, tensor: ShardedTensor) -> ShardedTensor:
    return replace(tensor, pieces=tuple(replace(piece, file=f"{folder}/{piece.file}") for piece in tensor.pieces))


def is_adapter(names: Iterable[str]) -> bool:
    """Whether tensors of these names are an adapter, with or without the base's beside them."""
    return any(_ADAPTER.search(name) for name in names)


def is_torchtitan(names: Iterable[str]) -> bool:
    """Whether tensors have torchtitan's own names, which are no model's of transformers."""
    return sum(_TORCHTITAN.fullmatch(name) is not None for name in names) == 2


def is_adapters(name: str) -> bool:
    """Whether a tensor of this name is one that an adapter's method adds."""
    return _ADAPTER.search(name) is not None
