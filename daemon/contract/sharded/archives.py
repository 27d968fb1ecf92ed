"""Archives of torch.save: the values in them, with each tensor as the place of its bytes.

The format is torch's (torch/serialization.py, `_save`): an uncompressed zip with `data.pkl`, a pickle whose tensors refer by key to the
entries `data/KEY`. Nothing of the pickle is run (`pickles`), and no tensor is read here.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from daemon.contract.models.safetensors import DTYPES, open_regular
from daemon.contract.sharded.pickles import MOST_BYTES, Instance, Named, Unreadable, inert, read_pickle, shown
from daemon.contract.sharded.pieces import MOST_DIMENSIONS, TORCH_DTYPES

MOST_CONTENTS = 16 << 20
"""Bytes of an archive's table of contents: 180,000 tensors."""
WRAPPER = "torch._utils._rebuild_wrapper_subclass"
"""What makes a tensor that holds others, a DTensor for example."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_STORAGES = {
    "Float": "F32", "Double": "F64", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32", "Short": "I16", "Char": "I8",
    "Byte": "U8", "Bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in an archive; `start` is the byte of the file at which its first element begins. All of it lies within its storage."""

    dtype: str
    """As a safetensors header names it."""
    shape: tuple[int, ...]
    start: int
    strides: tuple[int, ...] | None = None
    """Elements from one index to the next, in each dimension; None: it is contiguous."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes of its elements."""
        return self.elements * DTYPES[self.dtype][1]


@dataclass(frozen=True)
class OtherTensor:
    """A tensor that is in the archive in a form that can't be read by its bytes: the text says which."""

    reason: str


@dataclass(frozen=True)
class _Storage:
    dtype: str | None
    """None for bytes whose type the tensor names."""
    start: int
    size: int


class BoundedReader(io.BufferedReader):
    """A file for `zipfile`, which believes a length that the archive claims for its table of contents and makes an object of each row."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MOST_CONTENTS:
            raise zipfile.BadZipFile(f"has a table of contents of {size:,} bytes, more than the {MOST_CONTENTS:,} that are read")
        return super().read(size)


class _Window(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, stream: BinaryIO, start: int, length: int) -> None:
        self._stream, self._start, self._length, self._at = stream, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._at, 2: self._length}[whence]
        if base + offset < 0:
            raise OSError("before the window")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(0, self._length - self._at))
        self._stream.seek(self._start + self._at)
        data = self._stream.read(count)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, gradient: Any = None, hooks: Any = None, more: Any = None) -> Any:
    """What torch._utils._rebuild_tensor_v2 would make."""
    return _of_storage(storage, offset, shape, stride, None, more)


def _typed_tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, gradient: Any, hooks: Any, dtype: Any, more: Any = None
) -> StoredTensor | OtherTensor:
    """What torch._utils._rebuild_tensor_v3 would make."""
    return _of_storage(storage, offset, shape, stride, dtype if isinstance(dtype, str) else None, more)


def _of_storage(storage: Any, offset: Any, shape: Any, stride: Any, named: str | None, more: Any) -> StoredTensor | OtherTensor:
    if not isinstance(storage, _Storage) or not _whole(offset) or not is_shape(shape) or not is_shape(stride) or len(shape) != len(stride):
        raise Unreadable("it is damaged (an invalid tensor)")
    dtype = named.removeprefix("torch.") if named else None
    name = TORCH_DTYPES.get(dtype) if dtype else storage.dtype
    if name is None:
        return OtherTensor(f"has the dtype {shown(dtype) if dtype else 'of bytes'}")
    if more:  # torch.Tensor.conj and its imaginary part: the values are not those that are stored
        return OtherTensor("is saved as a view whose values are computed when it is read (conj or neg)")
    if not math.prod(shape):
        return StoredTensor(name, shape, storage.start)
    width = DTYPES[name][1]
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if (last + 1) * width > storage.size:
        raise Unreadable("it is damaged (a tensor that is larger than its storage)")
    return StoredTensor(name, shape, storage.start + offset * width, None if _is_contiguous(shape, stride) else stride)


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _typed(make: Any, kind: Any, arguments: Any, *state: Any) -> Any:
    """What torch._tensor._rebuild_from_type_v2 would make of a tensor with attributes of its own, without them; of a DTensor, its state."""
    if isinstance(make, Named) and make.name == WRAPPER:  # only known where the reader asks for it
        kept = state[0] if state else None  # of a class with slots: its dictionary, and then the slots
        return Instance(WRAPPER, _as_tuple(arguments), kept[1] if isinstance(kept, tuple) and len(kept) == 2 else kept)
    if not isinstance(make, Named) or make.name not in _REBUILDERS or not isinstance(kind, Named) or kind.name not in _TYPES:
        raise Unreadable("it is damaged (an invalid tensor)")
    if not isinstance(arguments, tuple):
        raise Unreadable("it is damaged (an invalid tensor)")
    return make.make(*arguments)


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def is_shape(value: Any) -> bool:
    """Whether a value is the shape of a tensor."""
    return isinstance(value, tuple) and len(value) <= MOST_DIMENSIONS and all(map(_whole, value))


def _as_tuple(values: Any = ()) -> tuple[Any, ...]:
    return tuple(values)


def as_dict(pairs: Any = ()) -> dict[Any, Any]:
    """What a mapping's class is called with: nothing, or by older protocols a list of pairs."""
    entries = dict[Any, Any]()
    for key, value in pairs:
        if not isinstance(key, (str, int)):
            raise Unreadable("it has a key that is not text")
        entries[key] = value
    return entries


PLAIN: dict[str, Any] = {
    "collections.OrderedDict": as_dict,
    "torch.Size": _as_tuple,
    **{f"torch.{name}": f"torch.{name}" for name in [*TORCH_DTYPES, "strided"]},
}
"""What every pickle of torch may name."""
_REBUILDERS: dict[str, Any] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": lambda data, *rest: data,
    "torch._utils._rebuild_parameter_with_state": lambda data, *rest: data,
}
_TYPES: dict[str, Any] = {
    "torch.Tensor": lambda data=None, *rest: data,
    "torch.nn.parameter.Parameter": lambda data=None, *rest: data,
}
_TENSORS: dict[str, Any] = {
    **_REBUILDERS,
    **_TYPES,
    "torch._tensor._rebuild_from_type_v2": _typed,
    "torch.device": inert("torch.device"),
    **{f"torch.{name}Storage": lambda *rest: None for name in _STORAGES},
    "torch.storage.UntypedStorage": lambda *rest: None,
    "torch.UntypedStorage": lambda *rest: None,
    "torch.storage.TypedStorage": lambda *rest: None,
}


def read_archive(path: Path, known: Mapping[str, Any], *, start: int = 0, length: int | None = None) -> Any:
    """The value in an archive, which is `length` bytes of the file from `start` on (None: to its end), its tensors as `StoredTensor`.

    `known`: names that its pickle may use beside those of tensors. Raises Unreadable (Unsafe for another name), OSError.
    """
    with open_regular(path, "read the checkpoint") as stream:
        size = os.fstat(stream.fileno()).st_size
        window = size - start if length is None else length
        if window < 0 or start + window > size:
            raise Unreadable(f"the file ends at byte {size:,}, before the end of its contents")
        try:
            with zipfile.ZipFile(BoundedReader(_Window(stream, start, window))) as archive:
                return _Archive(archive, stream, start, window).value({**PLAIN, **_TENSORS, **known})
        except Unreadable:
            raise
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OverflowError, ValueError, struct.error) as error:
            raise Unreadable(f"it is not a complete archive of torch.save ({error})") from None


class _Archive:
    def __init__(self, archive: zipfile.ZipFile, stream: BinaryIO, start: int, length: int) -> None:
        self._stream, self._start, self._length = stream, start, length
        self._entries = {info.filename: info for info in archive.infolist()}

    def value(self, known: Mapping[str, Any]) -> Any:
        pickles = [name for name in self._entries if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise Unreadable("it is not an archive of torch.save")
        self._folder = pickles[0].removesuffix("data.pkl")
        if (order := self._entries.get(f"{self._folder}byteorder")) is not None and self._read(order, 16) != b"little":
            raise Unreadable("it was written on a machine with the other byte order")
        return read_pickle(self._read(self._entries[pickles[0]], MOST_BYTES), known, self._storage)

    def _read(self, entry: zipfile.ZipInfo, most: int) -> bytes:
        at = self._place(entry)
        if entry.file_size > most:
            raise Unreadable(f"its {shown(entry.filename)} has {entry.file_size:,} bytes")
        self._stream.seek(at)
        return self._stream.read(entry.file_size)

    def _place(self, entry: zipfile.ZipInfo) -> int:
        """Byte of the file at which an entry's contents begin."""
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.compress_size != entry.file_size:
            raise Unreadable("it is compressed, but torch.save never compresses")
        if not 0 <= entry.header_offset < self._length:
            raise Unreadable("it is not a complete archive of torch.save (an entry is outside the file)")
        self._stream.seek(self._start + entry.header_offset)
        head = self._stream.read(_LOCAL_HEADER.size)
        mark, name, extra = _LOCAL_HEADER.unpack(head) if len(head) == _LOCAL_HEADER.size else (b"", 0, 0)
        at = int(entry.header_offset + _LOCAL_HEADER.size + name + extra)
        if mark != b"PK\3\4" or at + entry.file_size > self._length:
            raise Unreadable("it is not a complete archive of torch.save (an entry is outside the file)")
        return self._start + at

    def _storage(self, reference: Any) -> _Storage:
        if not isinstance(reference, tuple) or len(reference) != 5 or reference[0] != "storage" or not isinstance(reference[1], Named):
            raise Unreadable("it is damaged (an invalid reference to a storage)")
        if not isinstance(reference[2], str):
            raise Unreadable("it is damaged (a tensor without its data)")
        kind = reference[1].name.rpartition(".")[2].removesuffix("Storage")
        entry = self._entries.get(f"{self._folder}data/{reference[2]}")
        if entry is None or not _whole(reference[4]):
            raise Unreadable("it is damaged (a tensor without its data)")
        dtype = _STORAGES.get(kind)
        if dtype and reference[4] * DTYPES[dtype][1] != entry.file_size:
            raise Unreadable("it is damaged (the sizes of a storage and its data differ)")
        return _Storage(dtype, self._place(entry), entry.file_size)
