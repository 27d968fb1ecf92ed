"""The header of a safetensors file: what it says, and whether it can be believed.

Called by whoever reads weights, and by the daemon when it asks whether a file is complete: a file's size is exactly what its header
says, which is what makes a half-written one visible. A header comes from wherever the file was downloaded, so that it is
held against the format's rules (https://github.com/huggingface/safetensors, "Format") and the file's size before anything is done
with it; memory stays bounded whatever it holds. Neither torch nor safetensors is imported, and no weight is read.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from daemon.contract.disk.files import check_values, open_plain
from daemon.contract.faults.errors import Permanent, from_oserror
from daemon.contract.faults.fault_codes import FaultCode

OPERATION = "read the safetensors header"
MAX_HEADER = 32 << 20
"""Bytes. The format allows three times as much, but a model of 100,000 tensors needs less than half of this."""
MAX_VALUES = 3_750_000
"""Marks of JSON values in a header (`check_values`), of which a tensor of two dimensions has twelve: for 312,000 tensors."""
MAX_DIMENSIONS = 16
MAX_NAME = 2048
"""Characters of a tensor's name: rules that take a name apart must come to an end."""
ZERO_BLOCK = 4096
_SURROGATES = re.compile("[\ud800-\udfff]")

DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "U8": ("uint8", 1), "BOOL": ("bool", 1),
    "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
}  # fmt: skip
"""Name in a header → (torch's name, bytes an element)."""
OPAQUE: dict[str, int] = {"F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
"""Further names of the format → bits an element. Such tensors can be copied, but not be computed with."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a safetensors file; `start` and `end` are byte positions in the file."""

    file: str
    dtype: str
    """As the header names it: "BF16", "F32"…"""
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


def parse_header(path: Path) -> dict[str, TensorInfo]:
    """Name → tensor of one safetensors file, in the header's order.

    ValueError, with the reason in words, when the header is unsound, the file is cut short or still being written. OSError when it
    can't be opened.
    """
    size, text = _raw(path)
    tensors = dict(_entry(path.name, 8 + len(text), name, value) for name, value in _table(text))
    _check_places(tensors.values(), 8 + len(text), size)
    return tensors


def parse_metadata(path: Path) -> dict[str, Any]:
    """What the header of one safetensors file says beside its tensors; {} where that is nothing. ValueError, OSError as `parse_header`."""
    said = _object(_raw(path)[1]).get("__metadata__")
    return said if isinstance(said, dict) else {}


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The same for a file that must be whole: Permanent when it is not."""
    try:
        return parse_header(path)
    except FileNotFoundError:
        raise _missing(path, OPERATION) from None
    except OSError as error:
        raise from_oserror(error, OPERATION, str(path)) from None
    except ValueError as error:
        raise Permanent(
            FaultCode.TRUNCATED_WEIGHTS, OPERATION, str(error), "copy or download the file again, or take another checkpoint", path=path
        ) from None


def _missing(path: Path, operation: str) -> Permanent:
    return Permanent(FaultCode.FILE_MISSING, operation, "the file does not exist", "check that the folder is complete", path=path)


def open_regular(path: Path, operation: str) -> BinaryIO:
    """The file opened for reading. Permanent when it is missing or can't be opened, ValueError when it is no regular file."""
    try:
        return open_plain(path)
    except FileNotFoundError:
        raise _missing(path, operation) from None
    except OSError as error:
        raise from_oserror(error, operation, str(path)) from None


def _raw(path: Path) -> tuple[int, bytes]:
    """Size of the file and the text of its header; ValueError when there can't be one."""
    with open_plain(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        prefix = stream.read(8)
        (length,) = struct.unpack("<Q", prefix) if len(prefix) == 8 else (0,)
        if length < 2:
            raise ValueError(f"the file has {size:,} bytes and no valid header length")
        if length > size - 8:
            raise ValueError(f"the header has {length:,} bytes, but the file only {size:,}")
        if length > MAX_HEADER:
            raise ValueError(f"the header has {length:,} bytes, more than the {MAX_HEADER:,} that any known model needs")
        text = stream.read(length)
    if len(text) < length:
        raise ValueError(f"the header has {length:,} bytes, but the file only {8 + len(text):,}")
    return size, text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the header names {_short(twice)} twice")
    return table


def _table(text: bytes) -> Iterable[tuple[str, Any]]:
    """The header's entries, without its metadata."""
    return ((name, value) for name, value in _object(text).items() if name != "__metadata__")


def _object(text: bytes) -> dict[str, Any]:
    check_values(text, MAX_VALUES)
    try:
        table = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"the header is not UTF-8 ({error.reason} at byte {error.start:,})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the header is not JSON ({error})") from None
    if not isinstance(table, dict):
        raise ValueError("the header is not a JSON object")
    return table


def _short(value: Any) -> str:
    """A value from the file for a sentence: bounded, and without characters that would act on a terminal."""
    text = value if isinstance(value, str) else repr(value)
    return ascii(text[:80])[1:-1] + ("…" if len(text) > 80 else "")


def is_name(text: str) -> bool:
    """Whether text can be a tensor's name: bounded, and without lone halves of surrogate pairs, which no other file can hold."""
    return len(text) <= MAX_NAME and _SURROGATES.search(text) is None


def _whole(value: Any) -> bool:
    """Whether a JSON value is a whole number that a size or an offset can be."""
    return type(value) is int and 0 <= value < 1 << 63


def _entry(file: str, start: int, name: str, value: Any) -> tuple[str, TensorInfo]:
    """One tensor; ValueError when its entry is not what the format says."""
    if not is_name(name):
        raise ValueError(f"the header names a tensor {_short(name)}, which is longer than {MAX_NAME} characters or is not Unicode text")
    if not isinstance(value, dict):
        raise ValueError(f"the header's entry of {_short(name)} is not an object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or (dtype not in DTYPES and dtype not in OPAQUE):
        raise ValueError(f"{_short(name)} has the dtype {_short(dtype)}, which is unknown")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_whole, shape)):
        raise ValueError(f"{_short(name)} has the shape {_short(shape)}, which is not valid")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)) or offsets[0] > offsets[1]:
        raise ValueError(f"{_short(name)} has the offsets {_short(offsets)}, which are not valid")
    info = TensorInfo(file, dtype, tuple(shape), start + offsets[0], start + offsets[1])
    bits = DTYPES[dtype][1] * 8 if dtype in DTYPES else OPAQUE[dtype]
    if 8 * info.size != info.elements * bits:
        raise ValueError(f"{_short(name)} has {info.size:,} bytes, which does not match its shape {_short(shape)} as {dtype}")
    return name, info


def _check_places(infos: Iterable[TensorInfo], start: int, size: int) -> None:
    """The tensors fill the file from the header to its end, without gaps and without overlapping."""
    position = start
    for info in sorted(infos, key=lambda info: (info.start, info.end)):
        if info.start != position:
            kind = "overlap" if info.start < position else "leave a gap"
            raise ValueError(f"its tensors {kind} at byte {min(info.start, position):,}")
        position = info.end
    if size != position:
        raise ValueError(f"the file has {size:,} bytes, but its header describes {position:,}")


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


def has_zero_tail(path: Path, header: Mapping[str, TensorInfo]) -> bool:
    """Whether the data ends in a tensor whose last bytes, up to a block, are all zero although its first are not.

    LoRA's B starts as zeros, so that a tensor of zeros alone says nothing; one that stops in the middle does.
    """
    if not header:
        return False
    length = max(header.values(), key=lambda info: (info.end, info.start)).size
    if length < 2 * ZERO_BLOCK:
        return False
    size = path.stat().st_size
    with open(path, "rb", buffering=0) as stream:
        stream.seek(size - length)
        head = stream.read(ZERO_BLOCK)
        stream.seek(size - ZERO_BLOCK)
        tail = stream.read(ZERO_BLOCK)
    return any(head) and not any(tail)


def model_size(headers: Iterable[Mapping[str, TensorInfo]]) -> tuple[int, int]:
    """Stored bytes and number of elements of all tensors."""
    infos = [info for header in headers for info in header.values()]
    return sum(info.size for info in infos), sum(info.elements for info in infos)
