"""Whether a published merged model has the weights that the merge gave, by their bytes. Called by the stage `merged`.

Two steps of one run may answer alike on the prompts: only the weights themselves tell them apart.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.models.safetensors import TensorInfo
from handlers.models.folder import ModelFolder
from handlers.validate.engines.arrays import same_start

WHOLE = 64 << 20
"""Bytes of a file up to which all of it is compared."""
EVERY = 1 << 20
BLOCK = 1 << 16
"""Of a larger one: so many bytes at the beginning of every so many, so that no tensor of more than EVERY is left out."""


def difference(folder: Path, merged: Path) -> str | None:
    """Say why a transformers folder does not have the weights of the merged one, as a clause; None where it has, as far as was compared."""
    wanted, artifact = ModelFolder(merged), ModelFolder(folder)
    if set(wanted.files.names) != set(artifact.files.names):
        return f"its weights lie in {', '.join(artifact.files.names)}, and those of the merge in {', '.join(wanted.files.names)}"
    for name in wanted.files.names:
        place = _first_difference(folder / name, merged / name)
        if place is not None:
            inside = next((key for key, info in _tensors(wanted).items() if info.file == name and info.start <= place < info.end), None)
            where = f"{name}, tensor {inside}" if inside else name
            return f"its weights are not those of the merge ({where} has other bytes): it is of another checkpoint, or damaged"
    return None


def _tensors(model: ModelFolder) -> dict[str, TensorInfo]:
    return {} if model.pickled else model.headers


def _first_difference(first: Path, second: Path) -> int | None:
    """Give the place of a block that differs; None where none does, and of one and the same file."""
    if first.samefile(second):
        return None
    size = first.stat().st_size
    if size != second.stat().st_size:
        return 0
    block, step = (EVERY, EVERY) if size <= WHOLE else (BLOCK, EVERY)
    with first.open("rb") as mine, second.open("rb") as theirs:
        for place in range(0, size, step):
            mine.seek(place)
            theirs.seek(place)
            a, b = mine.read(block), theirs.read(block)
            if a != b:
                return place + same_start(a, b)
    return None
