"""accelerate's `save_state`: the model's weights in one plain file, under the names that the training's wrappers give them.

The form is accelerate's (accelerate/checkpointing.py, `save_accelerator_state`): `model.safetensors`, or `pytorch_model.bin` with
`safe_serialization=False`, then `optimizer.bin`, `scheduler.bin` and `sampler.bin`, and last `random_states_RANK.pkl` by each rank. It
writes no configuration. The state of a PEFT model holds the whole base beside the adapter; a second model is `model_1.safetensors`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from pathlib import Path

from daemon.contract.faults.errors import CkptdError
from daemon.contract.models.safetensors import parse_header
from daemon.contract.sharded.archives import read_archive
from daemon.contract.sharded.lightning import PLAIN_CLASSES, of_state
from daemon.contract.sharded.pieces import Piece, ShardedTensor, tensor_name

FSDP_WHOLE = "pytorch_model_fsdp.bin"
"""The model with FSDP's FULL_STATE_DICT (accelerate/utils/fsdp_utils.py, `save_fsdp_model`). Trainer has it beside `model.safetensors`."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin", FSDP_WHOLE)
RANDOM = "random_states_0.pkl"
"""What the first rank writes after all that it writes before."""
_RANDOM = re.compile(r"random_states_[0-9]{1,6}\.pkl")
_BESIDE = re.compile(r"(?:optimizer|scheduler|sampler|dl_state_dict)(?:_[0-9]+)?\.bin")
_SECOND = re.compile(r"(?:model|pytorch_model)_[1-9][0-9]*\.(?:safetensors|bin)")
_SCHEDULER = "scheduler.bin"
MOST_STEPS = 10**12


def is_state(files: Collection[str]) -> bool:
    """Whether a directory with these files is one that `save_state` writes, or has begun to write."""
    return any(map(_is_states, files))


@functools.lru_cache(4096)
def _is_states(name: str) -> bool:
    return _RANDOM.fullmatch(name) is not None or _BESIDE.fullmatch(name) is not None


def several(files: Collection[str]) -> list[str]:
    """The weights of all models, where they are more than one."""
    others = sorted(name for name in files if _SECOND.fullmatch(name))
    return [*(name for name in WEIGHTS if name in files), *others] if others else []


def read_tensors(folder: Path) -> dict[str, ShardedTensor]:
    """Name → tensor of the model's state. Raises Unsafe, Unreadable, OSError."""
    file = next(folder / name for name in WEIGHTS if (folder / name).is_file())
    if file.suffix == ".bin":
        return of_state(read_archive(file, PLAIN_CLASSES), file.name)
    tensors = {}
    for name, info in parse_header(file).items():
        piece = Piece(file.name, info.start, info.size, (0,) * len(info.shape), info.shape)
        tensors[tensor_name(name)] = ShardedTensor(tensor_name(name), info.dtype, info.shape, (piece,))
    return tensors


def steps_made(folder: Path) -> int | None:
    """The steps of the optimizer that a state's scheduler has counted; None where there is none, or one of another kind.

    accelerate's scheduler (accelerate/scheduler.py, `AcceleratedScheduler.step`) makes as many steps for each as there are ranks.
    """
    try:
        ranks = sum(_RANDOM.fullmatch(entry.name) is not None for entry in folder.iterdir())
        state = read_archive(folder / _SCHEDULER, PLAIN_CLASSES)
    except (OSError, ValueError, CkptdError):
        return None
    made = state.get("last_epoch") if isinstance(state, dict) else None
    return made // max(1, ranks) if type(made) is int and 0 <= made <= MOST_STEPS else None
