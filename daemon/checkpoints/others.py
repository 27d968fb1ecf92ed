"""Whether a checkpoint is whole that only its trainer's own tools read (Megatron-Core's, Orbax's, Composer's), by its files alone.

Megatron: megatron/core/dist_checkpointing/serialization.py (`save`), megatron/training/checkpointing.py. Orbax:
orbax/checkpoint/_src/path/atomicity.py and _src/metadata/checkpoint.py. Composer: composer/utils/checkpoint.py (`_write_checkpoint_file`).
"""

from __future__ import annotations

import re
from pathlib import Path

from daemon.checkpoints.completeness import archive_problems, read_object
from daemon.checkpoints.files import Look, absent, look_at
from daemon.checkpoints.names import COMPOSER, ORBAX, is_checkpoint_name
from daemon.contract.sharded import dcp
from daemon.contract.sharded.pickles import MOST_BYTES, Unsafe
from daemon.contract.values import Json

MEGATRON_RANK = re.compile(r"mp_rank_[0-9]{2}(?:_[0-9]{3}){0,2}")
"""Folder of one rank in Megatron's older form."""
_ITERATION = re.compile(r"iter_[0-9]{7,}")
_CONFIG = "metadata.json"
"""Megatron-Core writes it when every rank is done, also of an asynchronous save."""
_COMMON = "common.pt"
"""What is the same in every rank: Megatron-Core writes it first, up to 0.18."""
_COMMON_STATE = b"common_state"
"""Its name in `.metadata`, where it is a piece itself, from 0.19 on."""
_RANK_FILE = "model_optim_rng.pt"
_MANIFESTS = ("manifest.ocdbt", "_METADATA")


def iteration_in(look: Look) -> str | None:
    """Name of the folder with Megatron's files in a `checkpoint-N` of ms-swift; None where there is none."""
    named = is_checkpoint_name(look.path.name)
    return next((name for name in sorted(look.folders) if named and _ITERATION.fullmatch(name)), None)


def says_megatron(path: Path) -> bool:
    """Whether the description beside pieces of torch.distributed.checkpoint is Megatron-Core's."""
    return "sharded_backend" in (_object(path, _CONFIG) or {})


def megatron_files(look: Look) -> list[str]:
    """Return what is missing of a checkpoint of Megatron's, in the new form or the old; ms-swift has it in a folder of its own."""
    if inner := iteration_in(look):
        return megatron_files(look_at(look.path / inner))
    ranks = sorted(name for name in look.folders if MEGATRON_RANK.fullmatch(name))
    if ranks:
        return [problem for rank in ranks for problem in archive_problems(look.path / rank, _RANK_FILE)]
    last = (dcp.METADATA, _CONFIG) if _has_config(look) else (dcp.METADATA,)
    missing = [absent(look.path, name, why=", which is written when every rank is done, is not there yet")
               for name in last if name not in look.files]  # fmt: skip
    if missing:
        return missing
    if _CONFIG in last:
        read_object(look.path, _CONFIG, missing)
    try:
        named = dcp.files_named(look.path)
    except Unsafe:  # objects of Megatron's own lie in it
        return missing
    except ValueError as error:
        return [*missing, f"{dcp.METADATA}: {error}"]
    return [*missing, *(absent(look.path, name) for name in named if name not in look.files)]


def _has_config(look: Look) -> bool:
    """Whether Megatron-Core's description belongs to these pieces: not to those of its own FSDP (fsdp_dtensor), which torch writes."""
    if _CONFIG in look.files or _COMMON in look.files or dcp.METADATA not in look.files:
        return True
    with (look.path / dcp.METADATA).open("rb") as stream:
        return _COMMON_STATE in stream.read(MOST_BYTES)


def orbax_files(look: Look) -> list[str]:
    """Return what is missing of a step of Orbax's: that it says when it was committed, and the arrays' own index."""
    missing: list[str] = []
    said = read_object(look.path, ORBAX, missing)
    if said is not None and "commit_timestamp_nsecs" in said and not said["commit_timestamp_nsecs"]:
        missing.append(f"{ORBAX} says that it is still being written")
    if not any((look.path / folder / name).is_file() for folder in (*look.folders, ".") for name in _MANIFESTS):
        missing.append("no folder in it has an index of its arrays yet")
    return missing


def composer_files(look: Look) -> list[str]:
    """Return which of Composer's files are not whole: it writes them in their place."""
    return [problem for name in sorted(look.files) if COMPOSER.fullmatch(name) for problem in archive_problems(look.path, name)]


def _object(path: Path, name: str) -> Json | None:
    try:
        return read_object(path, name, [])
    except OSError:
        return None
