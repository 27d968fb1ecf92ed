"""Reads a written checkpoint back: taken apart to transformers' names, every weight must be the merged model's, to the bit.

Called by the stage after it has written, and by the engine. It knows the file by its own header and config.json alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.models.safetensors import TensorInfo, read_header
from daemon.contract.values import Json
from handlers.models.folder import ModelFolder
from handlers.tensorrt.llm import mapping


def difference(path: Path, config: Json, wanted: ModelFolder) -> str | None:
    """Why the weights in a file are not those of a folder, as a clause; None where they are."""
    left = set(wanted.headers)
    for name, info in read_header(path).items():
        try:
            parts = mapping.apart(name, _bytes(path, info), config)
        except mapping.Unmapped as error:
            return str(error)
        for ours, stored in parts.items():
            source = mapping.TABLE if ours == mapping.HEAD and ours not in wanted.headers else ours
            if source not in wanted.headers:
                return f"it has {ours}, which the merged model has not"
            left.discard(source)
            theirs = wanted.headers[source]
            if info.dtype != theirs.dtype or not np.array_equal(stored, _bytes(wanted.path / theirs.file, theirs)):
                return f"{source} differs"
    return f"it lacks {min(left)}" if left else None


def _bytes(path: Path, info: TensorInfo) -> Any:
    """A tensor's bytes by rows; nothing is read before it is compared."""
    rows = info.shape[0] if info.shape else 1
    return np.memmap(path, np.uint8, "r", offset=info.start, shape=(rows, info.size // max(1, rows)))
