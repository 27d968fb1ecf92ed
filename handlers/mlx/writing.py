"""Writes a layout as safetensors files, a block of rows at a time. Called by the stages, inside the toolchain `mlx`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from handlers.mlx.layout import Part, Planned
from handlers.models.folder import INDEX, SINGLE

SHARD_BYTES = 5 << 30
"""Bytes of a file; a tensor is never divided."""


def write(tensors: list[Planned], folder: Path, said: Callable[[float], None]) -> int:
    """Write them; gives the bytes of all. Each tensor is let go as soon as it is written, so `tensors` is empty afterwards."""
    shards = _divided(tensors)
    names = [SINGLE] if len(shards) == 1 else [f"model-{at + 1:05}-of-{len(shards):05}.safetensors" for at in range(len(shards))]
    whole = sum(part.size for tensor in tensors for part in tensor.parts)
    table = {part.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard for part in tensor.parts}
    tensors.clear()
    done = 0
    for name, shard in zip(names, shards, strict=True):
        done = _write_file(folder / name, shard, done, lambda written: said(written / max(1, whole)))
    if len(shards) > 1:
        index = {"metadata": {"total_size": whole}, "weight_map": dict(sorted(table.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=4) + "\n", encoding="utf-8")
    return whole


def _divided(tensors: list[Planned]) -> list[list[Planned]]:
    shards: list[list[Planned]] = [[]]
    size = 0
    for tensor in tensors:
        more = sum(part.size for part in tensor.parts)
        if shards[-1] and size + more > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += more
    return shards


def _write_file(path: Path, tensors: list[Planned], done: int, said: Callable[[int], None]) -> int:
    places = _places([part for tensor in tensors for part in tensor.parts])
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    for part, start in places.values():
        header[part.name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [start, start + part.size]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        while tensors:
            tensor = tensors.pop(0)
            ends = [8 + len(text) + places[part.name][1] for part in tensor.parts]
            for block in tensor.blocks():
                for at, rows in enumerate(block):
                    stream.seek(ends[at])
                    stream.write(rows.tobytes())
                    ends[at] += rows.nbytes
                    done += rows.nbytes
                said(done)
    return done


def _places(parts: list[Part]) -> dict[str, tuple[Part, int]]:
    """Name → part and where it begins behind the header: one after the other, those of wide numbers first, so that all are aligned."""
    places, at = {}, 0
    for part in sorted(parts, key=lambda part: (-part.size // max(1, math.prod(part.shape)), part.name)):
        places[part.name] = (part, at)
        at += part.size
    return places
