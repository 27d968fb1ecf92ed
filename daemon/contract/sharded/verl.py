"""verl's pieces of FSDP: `model_world_size_W_rank_R.pt`, for each rank its own part of each tensor, as torch.save writes a state_dict.

The form is verl's (verl/utils/checkpoint/fsdp_checkpoint_manager.py, `save_checkpoint`; what reads it is
verl/model_merger/fsdp_model_merger.py): a mapping of names to tensors, of which those that FSDP has divided are torch's DTensor, whose
`_spec` has a placement for each dimension of the mesh. A rank's part is its chunk in the order of the ranks; with HSDP the ranks after the
first mesh repeat it.
Nothing of the pickle is run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from daemon.contract.disk.files import read_bounded
from daemon.contract.light import dataclass
from daemon.contract.sharded.archives import WRAPPER, OtherTensor, StoredTensor, is_shape, read_archive
from daemon.contract.sharded.pickles import Instance, Unreadable, inert, shown
from daemon.contract.sharded.pieces import Piece, ShardedTensor, Unsupported, tensor_name

NAME = re.compile(r"model_world_size_([0-9]{1,6})_rank_([0-9]{1,6})\.pt")
CONFIG = "fsdp_config.json"
"""Which number of ranks the pieces are of; older releases write none."""
LORA = "lora_train_meta.json"
"""Rank, alpha and task of the adapter in the pieces; `save_lora_adapter` of the merger makes its configuration of them."""
_MOST_JSON = 1 << 20
_PLACEMENTS = ("Shard", "Replicate", "Partial", "_Partial", "_StridedShard", "MaskPartial")
_PLACES = ("torch.distributed.tensor", "torch.distributed._tensor")
_KNOWN: dict[str, Any] = {
    WRAPPER: inert("wrapper"),
    **{f"{place}{inner}.DTensor": inert("DTensor") for place in _PLACES for inner in ("", ".api", "._api")},
    **{
        f"{place}.{module}.{name}": inert(name)
        for place in _PLACES
        for module in ("placement_types", "_dtensor_spec")
        for name in (*_PLACEMENTS, "DTensorSpec", "TensorMeta", "ShardOrderEntry")
    },
    "torch.distributed.device_mesh.DeviceMesh": inert("DeviceMesh"),
    "torch.distributed._mesh_layout._MeshLayout": inert("_MeshLayout"),
    "torch.distributed._mesh_layout._FlatLayout": inert("_FlatLayout"),
    "torch.serialization._get_layout": lambda name: name,
}
"""What the pickle of a DTensor names, by torch 2.3 to 2.13."""


def ranks(names: Collection[str], folder: Path) -> int:
    """Return of how many ranks the pieces with these names in `folder` are. Unreadable where that can't be told, or one is missing."""
    sizes = {int(match[1]) for name in names if (match := NAME.fullmatch(name))}
    said = _number_in(folder / CONFIG, "world_size") if len(sizes) > 1 else None
    if len(sizes) != 1 and said not in sizes:
        raise Unreadable(f"it holds the pieces of {len(sizes)} trainings with different numbers of ranks")
    count = said if said in sizes else next(iter(sizes))
    lacking = [rank for rank in range(count) if file_of(count, rank) not in names]
    if not count or lacking:
        raise Unreadable(f"{file_of(count, lacking[0] if lacking else 0)} is not there yet: the pieces are those of {count} ranks")
    return count


def file_of(count: int, rank: int) -> str:
    """Return the name of the file with the pieces of a rank."""
    return f"model_world_size_{count}_rank_{rank}.pt"


def read_tensors(folder: Path) -> dict[str, ShardedTensor]:
    """Name → tensor of the model in the pieces in `folder`.

    Raises Unsafe for a pickle that names code, Unreadable for one that is damaged or a rank that is missing, Unsupported, OSError.
    """
    count = ranks(os.listdir(folder), folder)
    parts = [_state_of(folder / file_of(count, rank)) for rank in range(count)]
    if any(part.keys() != parts[0].keys() for part in parts):
        raise Unreadable("its ranks do not hold the same tensors: they are those of two states")
    return {name: _tensor(name, [(file_of(count, rank), part[name]) for rank, part in enumerate(parts)]) for name in parts[0]}


def lora_of(folder: Path) -> dict[str, Any] | None:
    """Return what the training says of its adapter: r, lora_alpha and task_type; None where it says nothing that can be used."""
    value = _object(folder / LORA)
    rank, alpha = value.get("r"), value.get("lora_alpha")
    if type(rank) is not int or type(alpha) not in (int, float) or rank <= 0 or not alpha:
        return None
    task = value.get("task_type")
    return {"r": rank, "lora_alpha": alpha, "task_type": task if isinstance(task, str) else None}


def adapter_config_of(meta: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the adapter_config.json of a LoRA, as verl's merger would write it. `names`: its tensors', as PEFT calls them."""
    modules = {re.sub(r"\.lora_(?:A|B|embedding_A|embedding_B)(?:\.weight)?$", "", name) for name in names}
    targets = sorted(module.removeprefix("base_model.model.") for module in modules)
    return {"peft_type": "LORA", **meta, "target_modules": targets, "bias": "none", "base_model_name_or_path": None}


def _state_of(file: Path) -> dict[str, Any]:
    try:
        value = read_archive(file, _KNOWN)
    except Unreadable as error:
        if type(error) is Unreadable:
            raise Unreadable(f"{file.name}: {error}") from None
        raise
    if not isinstance(value, dict):
        raise Unreadable(f"{file.name} has no tensors by name")
    return {tensor_name(name): tensor for name, tensor in value.items()}


@dataclass(frozen=True)
class _Division:
    """How a tensor is divided between the ranks."""

    shape: tuple[int, ...]
    axis: int | None = None
    """The dimension along which it is divided; None: every rank has all of it."""
    repeated: bool = True
    """Ranks hold copies: of what is not divided all, and with HSDP each mesh after the first."""


def _tensor(name: str, parts: Sequence[tuple[str, Any]]) -> ShardedTensor:
    """Put the parts of all ranks, in order, together."""
    division, pieces, begun, dtypes = _division(name, parts[0][1]), list[Piece](), 0, set[str]()
    shape, axis = division.shape, division.axis
    for file, value in parts:
        if _division(name, value) != division:
            raise Unreadable(f"{name} is not divided alike in all ranks")
        local = value.state["_local_tensor"] if isinstance(value, Instance) else value
        if isinstance(local, OtherTensor):
            raise Unreadable(f"{name} in {file} {local.reason}")
        if not isinstance(local, StoredTensor) or len(local.shape) != len(shape):
            raise Unreadable(f"{name} in {file} is no tensor with {len(shape)} dimensions")
        dtypes.add(local.dtype)
        if pieces and division.repeated and (axis is None or begun >= shape[axis]):
            continue
        offsets = tuple(begun if place == axis else 0 for place in range(len(shape)))
        pieces.append(Piece(file, local.start, local.size, offsets, local.shape, strides=local.strides))
        begun += local.shape[axis] if axis is not None else 0
    if len(dtypes) > 1:
        raise Unreadable(f"{name} has different dtypes in different ranks")
    tensor = ShardedTensor(name, dtypes.pop(), shape, tuple(pieces))
    if problem := tensor.problem():
        raise Unreadable(problem)
    return tensor


def _division(name: str, value: Any) -> _Division:
    if isinstance(value, StoredTensor):
        return _Division(value.shape)
    if isinstance(value, OtherTensor):
        return _Division(())
    spec = value.state.get("_spec") if isinstance(value, Instance) and isinstance(value.state, dict) else None
    if not isinstance(spec, Instance) or value.name != WRAPPER or "_local_tensor" not in value.state or len(value.arguments) < 3:
        raise Unsupported(f"{name} is no tensor, but {shown(getattr(value, 'name', type(value).__name__))}")
    shape, placements = value.arguments[2], spec.field("placements")
    if not isinstance(placements, (tuple, list)) or not is_shape(shape):
        raise Unreadable(f"{name} does not say how it is divided")
    kinds = [placement.name if isinstance(placement, Instance) else "?" for placement in placements]
    if any(kind not in ("Shard", "Replicate") for kind in kinds) or "Shard" in kinds[:-1]:
        raise Unsupported(f"{name} is divided in a way that only verl puts together ({', '.join(kinds)})")
    if kinds[-1:] != ["Shard"]:
        return _Division(shape)
    last = placements[-1]
    axis = last.field("dim") if last.state is not None else next(iter(last.arguments), None)
    if type(axis) is not int or not -len(shape) <= axis < len(shape):
        raise Unreadable(f"{name} does not say along which dimension it is divided")
    return _Division(shape, axis % len(shape), len(kinds) > 1)


def _number_in(file: Path, key: str) -> int | None:
    value = _object(file).get(key)
    return value if type(value) is int else None


def _object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_bounded(file, _MOST_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
