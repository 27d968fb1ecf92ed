"""DeepSpeed's ZeRO: the tensors that lie cut up in the folder that `latest` names, in `*model_states.pt` and `*optim_states.pt`.

The form is DeepSpeed's (deepspeed/runtime/engine.py, `_save_checkpoint` and `_save_zero_checkpoint`), and the tensors are those that its
deepspeed/utils/zero_to_fp32.py gives: trained parameters from the optimizer's flat groups (in fp32 where it keeps them so), frozen ones
and buffers as they are stored. Stages 1 and 2 cut each group, all its parameters in one row, over the ranks. Stage 3 cuts each parameter
over the ranks, filled up to the same number of elements for each; a rank's part may go on in its next group.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daemon.contract.light import dataclass
from daemon.contract.models.safetensors import DTYPES, open_regular
from daemon.contract.sharded.archives import OtherTensor, StoredTensor, read_archive
from daemon.contract.sharded.lightning import PLAIN_CLASSES
from daemon.contract.sharded.pickles import Unreadable, inert
from daemon.contract.sharded.pieces import MOST_DIMENSIONS, Piece, ShardedTensor, Unsupported

LATEST = "latest"
"""File at the top that names the folder with the state. DeepSpeed writes it after its own rank's files."""
_ENDS = ("model_states.pt", "optim_states.pt")
_MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,6})_)?mp_rank_(\d{1,6})_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_optim_states\.pt")
_KNOWN: dict[str, Any] = {
    **PLAIN_CLASSES,
    "deepspeed.runtime.zero.config.ZeroStageEnum": lambda stage: stage,
    "deepspeed.runtime.fp16.loss_scaler.LossScaler": inert("LossScaler"),
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler": inert("DynamicLossScaler"),
    "deepspeed.utils.tensor_fragment.fragment_address": inert("fragment_address"),
}


@dataclass(frozen=True)
class _Run:
    """Elements that follow each other in a file."""

    file: str
    start: int
    elements: int
    dtype: str


def tag_in(folder: Path) -> str | None:
    """Name of the folder that `latest` names; None where there is no such file, or it names no folder here. Raises OSError."""
    try:
        if not (folder / LATEST).is_file() or (folder / LATEST).is_symlink():
            return None
        with open_regular(folder / LATEST, "read the checkpoint") as stream:
            tag = stream.read(256).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    if not tag or tag.startswith(".") or "/" in tag or "\0" in tag:
        return None
    place = folder / tag
    return tag if place.is_dir() and not place.is_symlink() else None


def files_in(folder: Path) -> list[str]:
    """Names, relative to `folder`, of the files with the state that `latest` names, and `latest`; [] where there is none."""
    tag = tag_in(folder)
    if tag is None:
        return []
    with os.scandir(folder / tag) as entries:
        names = [f"{tag}/{entry.name}" for entry in entries if entry.name.endswith(_ENDS) and entry.is_file(follow_symlinks=False)]
    return [LATEST, *sorted(names)] if names else []


def read_tensors(folder: Path) -> dict[str, ShardedTensor]:
    """Name → tensor of the model; the files of its pieces are relative to `folder`.

    Raises Unsupported for experts, pipelines and tensors that are cut over ranks; Unsafe, Unreadable, OSError.
    """
    tag = tag_in(folder)
    if tag is None:
        raise Unreadable(f"{LATEST} names no folder with DeepSpeed's state")
    models, optimizers = _ranks(folder / tag)
    if 0 not in models:
        raise Unreadable(f"the model states of rank 0 are not in {tag}")
    first = _read(folder, f"{tag}/{models[0]}")
    if first.get("autoep_layers") or first.get("ds_autoep_layers"):
        raise Unsupported("it contains experts that are divided over ranks")
    module, tensors = _mapping(first.get("module") or {}), dict[str, ShardedTensor]()
    if first.get("param_shapes") is None:
        if optimizers:
            raise Unreadable("its model states don't say how the optimizer's are divided")
        return {name: _whole(name, value, f"{tag}/{models[0]}") for name, value in module.items() if _is_tensor(value)}
    for name in first.get("buffer_names") or []:
        if name in module:
            tensors[str(name)] = _whole(str(name), module[name], f"{tag}/{models[0]}")
    states = [_mapping(_read(folder, f"{tag}/{file}").get("optimizer_state_dict")) for _, file in sorted(optimizers.items())]
    stage = _stage(states, optimizers)
    shapes = [{str(name): _shape(name, shape) for name, shape in _mapping(group).items()} for group in first["param_shapes"]]
    frozen = {str(name): _shape(name, shape) for name, shape in _mapping(first.get("frozen_param_shapes") or {}).items()}
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    files = [f"{tag}/{file}" for _, file in sorted(optimizers.items())]
    groups = [[_run(value, file) for value in _listed(state.get(key), file)] for state, file in zip(states, files, strict=True)]
    if stage == 3:
        tensors |= _frozen_of_ranks(folder, tag, models, frozen, len(states), first)
        tensors |= _cut_by_parameter({name: shape for group in shapes for name, shape in group.items()}, groups)
    else:
        fragments = _mapping(first.get("frozen_param_fragments") or {})
        tensors |= {name: _whole(name, fragments.get(name), f"{tag}/{models[0]}", shape) for name, shape in frozen.items()}
        tensors |= _cut_by_group(shapes, groups, states[0].get("param_alignment_paddings"))
    for alias, name in _mapping(first.get("shared_params") or {}).items():
        if name in tensors:
            tensors[str(alias)] = ShardedTensor(
                str(alias), tensors[name].dtype, tensors[name].shape, tensors[name].pieces, tensors[name].flat
            )
    for tensor in tensors.values():
        if problem := tensor.problem():
            raise Unreadable(problem)
    return tensors


# Files and what is in them


def _ranks(folder: Path) -> tuple[dict[int, str], dict[int, str]]:
    """Rank → name of the file with its model states, and of the one with its optimizer's."""
    models, optimizers = dict[int, str](), dict[int, str]()
    for name in sorted(os.listdir(folder)):
        if not name.endswith(_ENDS):
            continue
        matched = _MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name)
        if matched is None:
            raise Unsupported(f"{folder.name}/{name} is the state of an expert or of a pipeline's layer")
        if int(matched[2]):
            raise Unsupported(f"{folder.name}/{name} belongs to a model whose tensors are split over ranks (tensor parallel)")
        held = models if name.endswith(_ENDS[0]) else optimizers
        if held.setdefault(int(matched[1] or 0), name) != name:
            raise Unreadable(f"{folder.name} holds the states of two saves: {held[int(matched[1] or 0)]} and {name}")
    return models, optimizers


def _read(folder: Path, file: str) -> Mapping[Any, Any]:
    try:
        return _mapping(read_archive(folder / file, _KNOWN))
    except Unreadable as error:
        if type(error) is Unreadable:
            raise Unreadable(f"{file}: {error}") from None
        raise


def _stage(states: Sequence[Mapping[Any, Any]], ranks: Mapping[int, str]) -> int:
    """The stage of ZeRO, once every rank's optimizer state is there."""
    if not states:
        raise Unreadable("the optimizer's states, which hold the weights, are not there")
    stage, count = states[0].get("zero_stage"), states[0].get("partition_count")
    count = max(count, default=0) if isinstance(count, list) and all(type(part) is int for part in count) else count
    if stage not in (1, 2, 3) or type(count) is not int:
        raise Unsupported(f"it is of ZeRO's stage {stage!r:.40}, but only 1, 2 and 3 are known")
    if sorted(ranks) != list(range(count)):
        raise Unreadable(f"it was saved by {count:,} ranks, but only the optimizer's states of {len(ranks):,} are there")
    return int(stage)


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise Unreadable("it is damaged, or is not a state of DeepSpeed (a mapping is missing)")
    return value


def _listed(value: Any, file: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise Unreadable(f"{file} has no flat groups of weights")
    return value


def _shape(name: Any, value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, (tuple, list))
        or len(value) > MOST_DIMENSIONS
        or not all(type(size) is int and 0 <= size < 1 << 62 for size in value)
    ):
        raise Unreadable(f"it gives no shape for {name}")
    return tuple(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (StoredTensor, OtherTensor))


def _stored(value: Any, what: str) -> StoredTensor:
    if isinstance(value, StoredTensor):
        return value
    raise Unreadable(f"{what} {value.reason}" if isinstance(value, OtherTensor) else f"{what} is not there")


def _run(value: Any, file: str) -> _Run:
    tensor = _stored(value, f"a flat group in {file}")
    if tensor.strides is not None:
        raise Unreadable(f"a flat group in {file} is saved as a view that is not contiguous")
    return _Run(file, tensor.start, tensor.elements, tensor.dtype)


def _whole(name: str, value: Any, file: str, shape: tuple[int, ...] | None = None) -> ShardedTensor:
    """A tensor that lies in one file as it is."""
    tensor = _stored(value, f"{name} in {file}")
    if shape is not None and tensor.shape != shape:
        raise Unreadable(f"{name} in {file} has the shape {list(tensor.shape)}, but should have {list(shape)}")
    piece = Piece(file, tensor.start, tensor.size, (0,) * len(tensor.shape), tensor.shape, strides=tensor.strides)
    return ShardedTensor(name, tensor.dtype, tensor.shape, (piece,))


# Parameters in flat groups


def _cut_by_group(
    shapes: Sequence[Mapping[str, tuple[int, ...]]], groups: Sequence[Sequence[_Run]], paddings: Any
) -> dict[str, ShardedTensor]:
    """Stages 1 and 2: the ranks' parts of a group, one behind the other, are its parameters in their order."""
    if any(len(group) != len(shapes) for group in groups):
        raise Unreadable("its ranks have other groups of parameters than it says")
    tensors, align = dict[str, ShardedTensor](), 2 * len(groups)
    for number, held in enumerate(shapes):
        row, at = [group[number] for group in groups], 0
        behind = _paddings(paddings, number, len(held))
        for (name, shape), padding in zip(held.items(), behind, strict=True):
            tensors[name] = _flat(name, shape, row, at)
            at += math.prod(shape) + padding
        # DeepSpeed fills a group up to a multiple of twice its ranks, and leaves some of that out of the file.
        if -(-at // align) != -(-sum(run.elements for run in row) // align):
            raise Unreadable(f"the group {number} has {sum(run.elements for run in row):,} elements, but its parameters have {at:,}")
    return tensors


def _paddings(value: Any, number: int, count: int) -> list[int]:
    """Elements behind each parameter of a group, which newer releases leave to align them."""
    if value is None:
        return [0] * count
    sizes = value[number] if isinstance(value, list) and number < len(value) else None
    if not isinstance(sizes, (list, tuple)) or len(sizes) != count or not all(type(size) is int and 0 <= size < 1 << 32 for size in sizes):
        raise Unreadable("it is damaged (the alignment of parameters)")
    return list(sizes)


def _cut_by_parameter(shapes: Mapping[str, tuple[int, ...]], groups: Sequence[Sequence[_Run]]) -> dict[str, ShardedTensor]:
    """Stage 3: each rank has an equal part of every parameter, the last of them filled up; its groups follow each other."""
    ranks, at = len(groups), 0
    tensors = dict[str, ShardedTensor]()
    for name, shape in shapes.items():
        elements = math.prod(shape)
        part = -(-elements // ranks)
        runs = [run for group in groups for run in _part(group, at, part)]
        tensors[name] = _flat(name, shape, runs, 0)
        at += part
    if any(sum(run.elements for run in group) != at for group in groups):
        raise Unreadable(f"its ranks have {sum(run.elements for run in groups[0]):,} elements each, but its parameters need {at:,}")
    return tensors


def _frozen_of_ranks(
    folder: Path, tag: str, models: Mapping[int, str], shapes: Mapping[str, tuple[int, ...]], ranks: int, first: Mapping[Any, Any]
) -> dict[str, ShardedTensor]:
    """Stage 3's parameters that are not trained: a part in each rank's model states."""
    if not shapes:
        return {}
    if sorted(models) != list(range(ranks)):
        raise Unreadable(f"it was saved by {ranks:,} ranks, but only the model states of {len(models):,} are there")
    files = {rank: f"{tag}/{name}" for rank, name in sorted(models.items())}
    held = [first if rank == 0 else _read(folder, file) for rank, file in files.items()]
    parts = [_mapping(state.get("frozen_param_fragments")) for state in held]
    return {
        name: _flat(name, shape, [_run(part.get(name), file) for part, file in zip(parts, files.values(), strict=True)], 0)
        for name, shape in shapes.items()
    }


def _part(row: Sequence[_Run], start: int, count: int) -> list[_Run]:
    """The elements `start` to `start + count` of runs that follow each other."""
    runs, before = [], 0
    for run in row:
        begin, end = max(start, before), min(start + count, before + run.elements)
        if begin < end:
            runs.append(_Run(run.file, run.start + (begin - before) * DTYPES[run.dtype][1], end - begin, run.dtype))
        before += run.elements
    return runs


def _flat(name: str, shape: tuple[int, ...], row: Sequence[_Run], start: int) -> ShardedTensor:
    """The tensor whose elements begin at `start` of the runs; what they don't hold shows as a gap in it."""
    runs = _part(row, start, math.prod(shape))
    dtypes = {run.dtype for run in runs} or {run.dtype for run in row}
    if len(dtypes) != 1:
        raise Unreadable(f"the parts of {name} have the dtypes {', '.join(sorted(dtypes)) or 'of nothing'}")
    (dtype,) = dtypes
    places = itertools.accumulate((run.elements for run in runs), initial=0)
    pieces = [
        Piece(run.file, run.start, run.elements * DTYPES[dtype][1], (at,), (run.elements,)) for run, at in zip(runs, places, strict=False)
    ]
    return ShardedTensor(name, dtype, shape, tuple(pieces), flat=True)
