"""Small files that a careless reader would take for ever over, or all memory: each by name, written into a checkpoint's folder.

`python -m tests.consolidate.bombs FOLDER…` looks into folders as the daemon does, with little memory, and prints what it found in each.
"""

from __future__ import annotations

import os
import resource
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

START = b"\x80\x04"
MEMORY = 3 << 30
"""Bytes of address space: several times what the worst of them is allowed to take."""
_OF_METADATA = b"ctorch.distributed.checkpoint.metadata\n"
_COUNT = 100_000


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def _made(qualified: bytes, fields: dict[str, bytes]) -> bytes:
    return qualified + b"\n)\x81}(" + b"".join(_text(key) + value for key, value in fields.items()) + b"ub"


def _shared(levels: int = 60) -> bytes:
    """A tuple of two references to a tuple of two references …: small, and endless to print."""
    return b")\x94" + b"".join(b"0h" + bytes([at]) + b"h" + bytes([at]) + b"\x86\x94" for at in range(levels))


def _nested() -> bytes:
    return b"]" * _COUNT + b"a" * (_COUNT - 1)


def _repeated(called: bytes, pushes: bytes = b"](", ends: bytes = b"e", packed: bytes = b"\x85") -> bytes:
    """A long list, copied again and again by a call of two bytes."""
    return START + pushes + b"N" * _COUNT + ends + b"\x94" + called + b"\n\x94" + (b"h\x01h\x00" + packed + b"R") * 20_000 + b"."


def _metadata(described: bytes = b"}", stored: bytes = b"}", planner: bytes = b"N") -> bytes:
    fields = {"state_dict_metadata": described, "planner_data": planner, "storage_data": stored}
    return START + _made(_OF_METADATA + b"Metadata", fields) + b"."


def _tensor(dtype: bytes, chunks: bytes = b"]") -> bytes:
    properties = _OF_METADATA + b"TensorProperties\n)\x81(" + dtype + b"tb"
    return _made(_OF_METADATA + b"TensorStorageMetadata", {"properties": properties, "size": b"K\x02\x85", "chunks": chunks})


def _chunk() -> bytes:
    return _made(_OF_METADATA + b"ChunkStorageMetadata", {"offsets": b"K\x00\x85", "sizes": b"K\x02\x85"})


def _index(name: bytes, offset: bytes = b"K\x00\x85") -> bytes:
    return _made(_OF_METADATA + b"MetadataIndex", {"fqn": name, "offset": offset, "index": b"N"})


def _place(file: bytes, **more: bytes) -> bytes:
    fields = {"relative_path": file, "offset": b"K\x00", "length": b"K\x00", **more}
    return _made(b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo", fields)


def _one(dtype: bytes, place: bytes) -> bytes:
    return _metadata(b"}" + _text("w") + _tensor(dtype, b"]" + _chunk() + b"a") + b"s", b"}" + _index(_text("w")) + place + b"s")


FILE, FLOAT = _text("__0_0.distcp"), _text("torch.float32")

DESCRIPTIONS: dict[str, Callable[[], bytes]] = {
    "sets": lambda: START + b"\x8f" * (60 << 20) + b".",
    "lists": lambda: START + b"]" * (60 << 20) + b".",
    "texts": lambda: START + b"\x8c\x02ab" * (15 << 20) + b".",
    "nested lists": lambda: START + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "copies made by a call": lambda: _repeated(b"ctorch\nSize"),
    "copies made of arguments": lambda: _repeated(_OF_METADATA + b"Metadata", b"(", b"t", b""),
    "long keys": lambda: START + b"(" + b"N" * _COUNT + b"t\x94}" + b"h\x00Ns" * 20_000 + b".",
    "keys of one hash": lambda: (
        START + b"}(" + b"".join(b"\x8a\x0c" + ((2**61 - 1) * at).to_bytes(12, "little") + b"N" for at in range(1, 150_000)) + b"u."
    ),
    "a name that is endless": lambda: _metadata(stored=b"}" + _index(_shared()) + _place(FILE) + b"s"),
    "a dtype that is endless": lambda: _one(_shared(), _place(FILE)),
    "a file that is endless": lambda: _one(FLOAT, _place(_shared())),
    "an extension that is endless": lambda: _one(FLOAT, _place(FILE, transform_descriptors=_shared())),
    "a path that is endless": lambda: _metadata(b"}" + _text("w") + _tensor(FLOAT) + b"s", planner=b"}" + _text("w") + _shared() + b"s"),
    "a name that is nested": lambda: _metadata(stored=b"}" + _index(_nested()) + _place(FILE) + b"s"),
    "a dtype that is nested": lambda: _one(_nested(), _place(FILE)),
    "pieces that many tensors share": lambda: _metadata(
        b"](" + _chunk() + b"\x94" + b"h\x00" * _COUNT + b"e\x940}("
        + b"".join(_text(f"n{at}") + _tensor(FLOAT, b"h\x01") for at in range(2000)) + b"u",
        b"}(" + b"".join(_index(_text(f"n{at}")) + _place(FILE) for at in range(2000)) + b"u",
    ),
    "a long offset that many places share": lambda: _metadata(
        stored=b"(" + b"K\x00" * _COUNT + b"t\x940}("
        + b"".join(_index(_text(f"n{at}"), b"h\x00") + _place(FILE) for at in range(5000)) + b"u"
    ),
    "a name without an end": lambda: _metadata(b"}" + _text("m" * (30 << 20)) + _tensor(FLOAT) + b"s"),
}  # fmt: skip
"""What `.metadata` may hold."""


def _pickled(folder: Path, value: bytes) -> None:
    with zipfile.ZipFile(folder / "last.ckpt", "w") as archive:
        archive.writestr("archive/data.pkl", value)


def _stored(key: bytes, reference: bytes) -> bytes:
    storage = b"((" + _text("storage") + b"ctorch\nFloatStorage\n" + reference + _text("cpu") + b"K\x02tQK\x00K\x02\x85K\x01\x85\x89NtR"
    return START + b"}" + _text("state_dict") + b"}" + key + b"ctorch._utils\n_rebuild_tensor_v2\n" + storage + b"ss."


def _many_entries(folder: Path) -> None:
    with zipfile.ZipFile(folder / "last.ckpt", "w") as archive:
        for number in range(300_000):
            archive.writestr(f"archive/data/{number}", b"")


def _claimed_contents(path: Path, size: int = 60 << 30) -> None:
    """An archive that says that its table of contents has `size` bytes, and a file without blocks that is as long."""
    with open(path, "wb") as stream:
        stream.truncate(size)
        stream.seek(0, os.SEEK_END)
        stream.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 5, 5, size, 0))
        stream.write(struct.pack("<4sLQL", b"PK\6\7", 0, size, 1))
        stream.write(struct.pack("<4s4H2LH", b"PK\5\6", 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))


ARCHIVES: dict[str, Callable[[Path], None]] = {
    "a storage that is endless": lambda folder: _pickled(folder, _stored(_text("w"), _shared())),
    "a key that is endless": lambda folder: _pickled(folder, START + b"}" + _text("state_dict") + b"}cargparse\nNamespace\n)\x81"
                                             + _shared() + b"bNss."),
    "copies made by list": lambda folder: _pickled(folder, _repeated(b"cbuiltins\nlist")),
    "copies made by set": lambda folder: _pickled(folder, _repeated(b"cbuiltins\nset")),
    "many entries": _many_entries,
    "a claimed table of contents": lambda folder: _claimed_contents(folder / "last.ckpt"),
}  # fmt: skip
"""What a `.ckpt` file may be."""


def main() -> None:
    """Look into the folders that are named."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from daemon.checkpoints.files import fingerprint
    from daemon.checkpoints.inspection import inspect

    for folder in map(Path, sys.argv[1:]):
        fingerprint(folder)
        inspection = inspect(folder)
        print("complete" if inspection.complete else inspection.missing)


if __name__ == "__main__":
    main()
