"""A GGUF file with its weights in fp32: what llama.cpp computes without rounding what it multiplies them with.

llama.cpp rounds activations to the kind of numbers that a matrix is stored in (8 bits beside K-quants, halves beside halves), and so not at
all beside fp32. All keys are copied as bytes, so that what is wrong in the file stays wrong here. Format: docs/gguf.md of ggml.
"""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np

ROWS_BYTES = 64 << 20
"""Bytes in fp32 that are unpacked at a time."""


def write(source: Path, target: Path) -> None:
    """Write it. Raises OSError, and what the package gguf raises for a file that it can't read."""
    reader = gguf.GGUFReader(source)
    align = int(reader.alignment)
    first = min((tensor.field.offset for tensor in reader.tensors), default=0)
    with open(target, "wb") as out:
        out.write(reader.data[:first].tobytes())
        at = 0
        for tensor in reader.tensors:
            out.write(_described(tensor.name, [int(size) for size in tensor.shape], at))
            at += -(-4 * int(tensor.n_elements) // align) * align
        for tensor in reader.tensors:
            out.write(b"\0" * (-out.tell() % align))
            rows = tensor.data.reshape(-1, tensor.data.shape[-1])
            step = max(1, ROWS_BYTES // (4 * int(tensor.shape[0])))
            for start in range(0, len(rows), step):
                values = gguf.quants.dequantize(np.ascontiguousarray(rows[start : start + step]), tensor.tensor_type)
                out.write(values.astype("<f4", copy=False).tobytes())
        out.write(b"\0" * (-out.tell() % align))


def _described(name: str, sizes: list[int], at: int) -> bytes:
    """The entry of a tensor in fp32 whose numbers begin `at` bytes behind the first one's."""
    text = name.encode()
    return struct.pack(f"<Q{len(text)}sI{len(sizes)}QIQ", len(text), text, len(sizes), *sizes, gguf.GGMLQuantizationType.F32, at)
