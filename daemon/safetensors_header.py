"""Structure of a safetensors file, read from its header alone.

A file is `8 bytes little-endian header length + JSON header + tensor data`, and its size is exactly what the
header says (https://github.com/huggingface/safetensors, "Format"). That is what makes a half-written file visible.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

MAX_HEADER = 100_000_000


def read_header(path: Path) -> dict[str, Any]:
    """The JSON header without `__metadata__`: tensor name → {dtype, shape, data_offsets}.

    Raises ValueError, with the reason in words, for anything but a complete file.
    """
    size = path.stat().st_size
    with open(path, "rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise ValueError(f"is {size} bytes long, shorter than any safetensors file")
        (length,) = struct.unpack("<Q", prefix)
        if not 2 <= length <= MAX_HEADER:
            raise ValueError(f"begins with a header length of {length}, so it is not a safetensors file or is not written yet")
        raw = stream.read(length)
    if len(raw) < length:
        raise ValueError(f"ends inside its header ({size} of at least {8 + length} bytes)")
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has a header that is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ValueError("has a header that is not a JSON object")
    header.pop("__metadata__", None)
    end = 0
    for name, tensor in header.items():
        try:
            first, last = tensor["data_offsets"]
            shape = tensor["shape"]
            if not all(type(number) is int and number >= 0 for number in (first, last, *shape)) or first > last:
                raise ValueError
            end = max(end, last)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"has a malformed entry for {name!r}") from error
    expected = 8 + length + end
    if size != expected:
        raise ValueError(f"is {size} bytes long, but its header promises {expected}: it is truncated or still being written")
    return header


def find_hole(path: Path) -> int | None:
    """Offset of the first hole of a sparse file, None without one.

    A writer that preallocates leaves a full-size file of holes; trained weights have none.
    """
    with open(path, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size == 0:
            return None
        try:
            hole = os.lseek(stream.fileno(), 0, os.SEEK_HOLE)
        except OSError:
            return None  # the file system can't tell
        return hole if hole < size else None


def has_zero_tail(path: Path, header: dict[str, Any], block: int = 4096) -> bool:
    """Whether the data ends in a tensor whose last bytes, up to a block, are all zero although its first are not.

    LoRA's B starts as zeros, so that a tensor of zeros alone says nothing; one that stops in the middle does.
    """
    if not header:
        return False
    start, end = max((tensor["data_offsets"] for tensor in header.values()), key=lambda pair: (pair[1], pair[0]))
    length = end - start
    if length < 2 * block:
        return False
    size = path.stat().st_size
    with open(path, "rb", buffering=0) as stream:
        stream.seek(size - length)
        head = stream.read(block)
        stream.seek(size - block)
        tail = stream.read(block)
    return any(head) and not any(tail)


def model_size(headers: list[dict[str, Any]]) -> tuple[int, int]:
    """Stored bytes and number of elements of all tensors."""
    stored = elements = 0
    for header in headers:
        for tensor in header.values():
            first, last = tensor["data_offsets"]
            stored += last - first
            count = 1
            for dimension in tensor["shape"]:
                count *= dimension
            elements += count
    return stored, elements
