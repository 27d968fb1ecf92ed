"""The weight file of a Core ML package: arrays behind a header of 64 bytes each, read where they lie.

Called by `package`. Free of Core ML Tools, so that what its writer wrote is read by another reader. The format is described in
coremltools' mlmodel/src/MILBlob/Blob/StorageFormat.hpp: a count and a version, then for each array 64 bytes (a mark, a type, the size and
the place of its bytes, unused bits at its end) and the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

VERSION, MARK, HEADER = 2, 0xDEADBEEF, 64
BITS = {"uint1": 1, "uint2": 2, "uint3": 3, "uint4": 4, "int4": 4, "uint6": 6}
"""Types that have no whole bytes → their bits. They are packed from the lowest bit of the first byte on."""
DTYPES: dict[str, type[np.generic]] = {
    "bool": np.bool_, "float16": np.float16, "float32": np.float32, "float64": np.float64, "int8": np.int8, "int16": np.int16,
    "int32": np.int32, "int64": np.int64, "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
}  # fmt: skip
"""Types by the names that are used here → numpy's."""
_HEADER = np.dtype([("mark", "<u4"), ("kind", "<u4"), ("size", "<u8"), ("place", "<u8"), ("unused", "<u8")])


class Unreadable(ValueError):
    """A package is damaged, or written in a way that is not known here."""


@dataclass(frozen=True)
class Blob:
    """One array of the file, read when it is asked for."""

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> np.ndarray:
        """The array, as it is stored where that is possible. Raises Unreadable."""
        try:
            mapped = np.memmap(self.path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise Unreadable(f"its weight file can't be read ({error})") from error
        if len(mapped) < HEADER or int(mapped[4:8].view("<u4")[0]) != VERSION:
            raise Unreadable(f"its weight file is not of version {VERSION}")
        if self.offset + HEADER > len(mapped):
            raise Unreadable("its weight file is cut short")
        header = mapped[self.offset : self.offset + _HEADER.itemsize].view(_HEADER)[0]
        if int(header["mark"]) != MARK:
            raise Unreadable(f"its weight file has no array at {self.offset}")
        wanted = -(-int(np.prod(self.shape, dtype=np.int64)) * _bits(self.dtype) // 8)
        if int(header["size"]) != wanted:
            raise Unreadable(f"its weight file has an array of {int(header['size'])} bytes where {wanted} belong")
        place = int(header["place"])
        data = mapped[place : place + wanted]
        if len(data) < wanted:
            raise Unreadable("its weight file is cut short")
        return unpacked(data, self.dtype, self.shape)


def unpacked(data: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes as an array of a type; types without whole bytes come as int8 or uint8."""
    if dtype not in BITS:
        plain: np.ndarray = data.view(DTYPES[dtype]).reshape(shape)
        return plain
    count, width = int(np.prod(shape, dtype=np.int64)), BITS[dtype]
    if width == 4:
        pairs = np.empty((len(data), 2), np.uint8)
        pairs[:, 0], pairs[:, 1] = data & 15, data >> 4
        numbers = pairs.reshape(-1)[:count]
    else:
        bits = np.unpackbits(data, bitorder="little")[: count * width].reshape(count, width)
        numbers = (bits << np.arange(width, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
    signed = (numbers.astype(np.int8) ^ 8) - 8 if dtype == "int4" else numbers
    return signed.reshape(shape)


def _bits(dtype: str) -> int:
    return BITS[dtype] if dtype in BITS else 8 * np.dtype(DTYPES[dtype]).itemsize
