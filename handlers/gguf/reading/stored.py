"""The tensors of a GGUF file as arrays on the disk. Used by what compares a file; needs the package gguf for its types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from handlers.gguf.reading import header


@dataclass(frozen=True)
class StoredTensor:
    """One tensor."""

    name: str
    shape: tuple[int, ...]
    """As numpy has it, the reverse of ggml's."""
    kind: Any
    """gguf.GGMLQuantizationType."""
    rows: np.ndarray
    """(R, bytes of a row) uint8, read only."""

    def values(self, part: slice = slice(None)) -> np.ndarray:
        """Some rows in fp32."""
        values: np.ndarray = gguf.quants.dequantize(np.ascontiguousarray(self.rows[part]), self.kind)
        return values


def tensors(path: Path, known: header.Header) -> list[StoredTensor]:
    """All of a file, in its order. ValueError where one is of an unknown type or lies outside of the file."""
    data, tensors = np.memmap(path, np.uint8, "r"), list[StoredTensor]()
    for entry in known.entries:
        kind, shape = gguf.GGMLQuantizationType(entry.kind), tuple(reversed(entry.sizes))
        block, size = gguf.GGML_QUANT_SIZES[kind]
        width, rows = shape[-1] // block * size, int(np.prod(shape[:-1], dtype=np.int64))
        first = known.start + entry.at
        if first + rows * width > len(data):
            raise ValueError(f"{entry.name} goes beyond the end of the file")
        tensors.append(StoredTensor(entry.name, shape, kind, data[first : first + rows * width].reshape(rows, width)))
    return tensors
