"""Whether an MLX folder has the weights of the merged model: every tensor of both, in blocks of rows, to the bit.

Called by the engine, in a worker, before the model is loaded: a form in few bits differs from the live model anyway, so that its answers
alone can't show one damaged block. Packed numbers, scales and biases must be those that MLX makes of the merge's weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from daemon.contract.models.safetensors import TensorInfo, parse_header
from daemon.contract.values import Json
from handlers.child.variants import NotPossible
from handlers.mlx import layout
from handlers.mlx.layout import Part, Planned
from handlers.models.files import read_json
from handlers.models.folder import ModelFolder

NAMED = 3


def difference(folder: Path, merged: Path) -> str | None:
    """Why the files of a folder do not have the weights of the merged model, as a clause; None where they have."""
    try:
        config: Json = read_json(folder / "config.json", "read the configuration of the MLX folder")
        said = config.get("quantization") or {}
        wanted = layout.of(ModelFolder(merged), said.get("bits"))
    except NotPossible:
        return None  # which the stage has said
    if wanted.config.get("quantization", {}) != said:
        return _describe(["config.json says other bits of its layers than its form has"])
    try:
        headers = {name: info for path in sorted(folder.glob("model*.safetensors")) for name, info in parse_header(path).items()}
    except (ValueError, OSError) as error:
        return f"its weights are not those of the merge: a file of them can't be read ({str(error)[:200]})"
    known = {part.name for planned in wanted.tensors for part in planned.parts}
    faults = []
    while wanted.tensors:
        planned = wanted.tensors.pop(0)  # what was computed of it is let go
        if fault := next(_faults(planned, folder, headers), None):
            faults.append(fault)
    faults += [f"{name} is there, which the merge does not give" for name in sorted(headers.keys() - known)]
    return _describe(faults) if faults else None


def _describe(faults: list[str]) -> str:
    more = f", and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return f"its weights are not those of the merge: {'; '.join(faults[:NAMED])}{more}. So it is damaged, or of another checkpoint"


def _faults(planned: Planned, folder: Path, headers: dict[str, TensorInfo]) -> Iterator[str]:
    stored = []
    for part in planned.parts:
        info = headers.get(part.name)
        if info is None:
            yield f"{part.name} is missing"
            return
        if (info.dtype, info.shape) != (part.dtype, part.shape):
            yield f"{part.name} is {info.dtype} {list(info.shape)} instead of {part.dtype} {list(part.shape)}"
            return
        stored.append((folder / info.file, info.start))
    at = [0] * len(stored)
    for block in planned.blocks():
        for place, (part, rows) in enumerate(zip(planned.parts, block, strict=True)):
            wanted = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
            path, start = stored[place]
            mine = np.fromfile(path, np.uint8, wanted.size, offset=start + at[place])
            at[place] += wanted.size
            if not np.array_equal(wanted, mine):
                yield _where(part, at[place] - wanted.size + int(np.argmax(wanted != mine)))
                return


def _where(part: Part, byte: int) -> str:
    rows = math.prod(part.shape[:-1])
    return f"{part.name} is not that of the merge from row {byte // (part.size // rows)} of {rows} on"
