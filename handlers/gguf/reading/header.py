"""Keys and table of tensors of a GGUF file as the file has them, in one pass over its first bytes.

Used by the engine, and by what compares a file. The package gguf reads them too, but builds several objects for each token: for a
vocabulary of 150,000 it takes a hundred times as long. Format: docs/gguf.md of ggml.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


@dataclass(frozen=True)
class Entry:
    """A tensor, as the table of a file has it."""

    name: str
    sizes: tuple[int, ...]
    """In ggml's order: that of a row first."""
    kind: int
    """Number of a type of ggml's."""
    at: int
    """Bytes behind the first tensor's."""


@dataclass(frozen=True)
class Header:
    """What stands before the tensors."""

    keys: dict[str, Any]
    """Texts that are no UTF-8 with replacement characters."""
    entries: tuple[Entry, ...]
    table: int
    """Where the first entry begins, in bytes."""
    start: int
    """Where the first tensor begins."""
    align: int
    """Tensors begin at multiples of so many bytes."""


def read(path: Path) -> Header:
    """Of a file. ValueError for what is no GGUF file of version 2 or 3."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF" or struct.unpack_from("<I", data, 4)[0] not in (2, 3):
            raise ValueError(f"{path.name} is no GGUF file of version 2 or 3")
        try:
            return _read(data, *struct.unpack_from("<QQ", data, 8))
        except (struct.error, KeyError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
            raise ValueError(f"the keys of {path.name} can't be read: {error}") from error


def _read(data: mmap.mmap, tensors: int, count: int) -> Header:
    keys, entries, at = dict[str, Any](), list[Entry](), 24
    for _ in range(count):
        name, at = _text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        keys[name], at = _value(data, at + 4, kind)
    table = at
    for _ in range(tensors):
        name, at = _text(data, at)
        (dimensions,) = struct.unpack_from("<I", data, at)
        *sizes, kind, place = struct.unpack_from(f"<{dimensions}QIQ", data, at + 4)
        entries.append(Entry(name, tuple(sizes), kind, place))
        at += 16 + 8 * dimensions
    align = int(keys.get("general.alignment", 32))
    return Header(keys, tuple(entries), table, -(-at // align) * align, align)


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
    items = []
    for _ in range(size):
        item, at = _value(data, at, inner)
        items.append(item)
    return items, at


def _text(data: mmap.mmap, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + size].decode("utf-8", "replace"), at + 8 + size
