"""The keys of a GGUF file as the file has them, in one pass over its first bytes: llama.cpp says of some only what it made of them.

Used by the engine. The package gguf reads them too, but builds several objects for each token. Format: docs/gguf.md of ggml.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


def keys(path: Path) -> dict[str, Any]:
    """Key → value; texts that are no UTF-8 with replacement characters. ValueError for what is no GGUF file of version 2 or 3."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF" or struct.unpack_from("<I", data, 4)[0] not in (2, 3):
            raise ValueError(f"{path.name} is no GGUF file of version 2 or 3")
        try:
            return _read(data, struct.unpack_from("<Q", data, 16)[0])
        except (struct.error, KeyError) as error:
            raise ValueError(f"the keys of {path.name} can't be read: {error}") from error


def _read(data: mmap.mmap, count: int) -> dict[str, Any]:
    found, at = dict[str, Any](), 24
    for _ in range(count):
        name, at = _text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        found[name], at = _value(data, at + 4, kind)
    return found


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind == _TEXT:
        return _text(data, at)
    if kind != _LIST:
        code = f"<{_SCALARS[kind]}"
        return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
    inner, size = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in _SCALARS:
        code = f"<{size}{_SCALARS[inner]}"
        return list(struct.unpack_from(code, data, at)), at + struct.calcsize(code)
    found = []
    for _ in range(size):
        one, at = _value(data, at, inner)
        found.append(one)
    return found, at


def _text(data: mmap.mmap, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + size].decode("utf-8", "replace"), at + 8 + size
