"""torch.distributed.checkpoint in safetensors: each rank's file says of every piece in it where in the whole tensor it lies.

The form is torch's (torch/distributed/checkpoint/hf_storage.py, `HuggingFaceStorageWriter` with `save_distributed` and without
consolidation). There is no description of the whole: a tensor is as large as its pieces reach, and what base or config.json say of its
shape tells whether a rank's file is missing.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from daemon.contract.models.safetensors import TensorInfo, parse_header, parse_metadata
from daemon.contract.sharded.dcp import is_of_training
from daemon.contract.sharded.pickles import Unreadable
from daemon.contract.sharded.pieces import Piece, ShardedTensor

NAME = re.compile(r"shard-[0-9]{5,}-model-[0-9]{5,}-of-[0-9]{5,}\.safetensors")
_KEY = "DCP_SHARDING_INFO"


def read_tensors(folder: Path) -> dict[str, ShardedTensor]:
    """Name → tensor of the model in the files of `folder`; the optimizer's are left out. Raises Unreadable, OSError."""
    parts = dict[str, list[tuple[TensorInfo, tuple[int, ...]]]]()
    for file in sorted(name for name in os.listdir(folder) if NAME.fullmatch(name)):
        places = _places(folder / file)
        for name, info in parse_header(folder / file).items():
            if not is_of_training(name, None):
                parts.setdefault(name, []).append((info, _offsets(places.get(name), info, name)))
    tensors = {}
    for name, pieces in parts.items():
        dtypes, dimensions = {info.dtype for info, _ in pieces}, {len(info.shape) for info, _ in pieces}
        if len(dtypes) != 1 or len(dimensions) != 1:
            raise Unreadable(f"the pieces of {name} have different dtypes or numbers of dimensions")
        ends = [tuple(at + size for at, size in zip(offsets, info.shape, strict=True)) for info, offsets in pieces]
        shape = tuple(map(max, *ends)) if len(ends) > 1 else ends[0]
        boxes = tuple(Piece(info.file, info.start, info.size, offsets, info.shape) for info, offsets in pieces)
        tensors[name] = ShardedTensor(name, next(iter(dtypes)), shape, boxes)
        if problem := tensors[name].problem():
            raise Unreadable(problem)
    return tensors


def _places(path: Path) -> dict[str, Any]:
    said = parse_metadata(path).get(_KEY)
    try:
        places = json.loads(said) if isinstance(said, str) else None
    except (ValueError, RecursionError):
        places = None
    if not isinstance(places, dict):
        raise Unreadable(f"{path.name} does not say where its pieces are")
    return places


def _offsets(place: Any, info: TensorInfo, name: str) -> tuple[int, ...]:
    offsets = place.get("saved_offsets") if isinstance(place, dict) else None
    if (
        not isinstance(offsets, list)
        or len(offsets) != len(info.shape)
        or not all(type(offset) is int and 0 <= offset < 1 << 62 for offset in offsets)
    ):
        raise Unreadable(f"{info.file} does not say where the piece of {name} is")
    return tuple(offsets)
