"""A GGUF file with its weights in fp32: what llama.cpp computes without rounding what it multiplies them with.

llama.cpp rounds activations to the kind of numbers that a matrix is stored in (8 bits beside K-quants, halves beside halves), and so not at
all beside fp32. All keys are copied as bytes, so that what is wrong in the file stays wrong here. Format: docs/gguf.md of ggml.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import gguf

from handlers.gguf.reading import header, stored

ROWS_BYTES = 64 << 20
"""Bytes in fp32 that are unpacked at a time."""


def write(source: Path, target: Path) -> None:
    """Write it. Raises OSError, and ValueError for a file that can't be read."""
    known = header.read(source)
    tensors = stored.tensors(source, known)
    with open(target, "wb") as out, open(source, "rb") as file:
        out.write(file.read(known.table))
        at = 0
        for entry in known.entries:
            out.write(_described(entry, at))
            at += -(-4 * math.prod(entry.sizes) // known.align) * known.align
        for tensor in tensors:
            out.write(b"\0" * (-out.tell() % known.align))
            step = max(1, ROWS_BYTES // (4 * tensor.shape[-1]))
            for start in range(0, len(tensor.rows), step):
                out.write(tensor.values(slice(start, start + step)).astype("<f4", copy=False).tobytes())
        out.write(b"\0" * (-out.tell() % known.align))


def _described(entry: header.Entry, at: int) -> bytes:
    """The entry of a tensor in fp32 whose numbers begin `at` bytes behind the first one's."""
    text, count = entry.name.encode(), len(entry.sizes)
    return struct.pack(f"<Q{len(text)}sI{count}QIQ", len(text), text, count, *entry.sizes, gguf.GGMLQuantizationType.F32, at)
