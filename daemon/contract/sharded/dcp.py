"""torch.distributed.checkpoint: what `.metadata` says of the tensors in the `*.distcp` files, held against the format and the files.

The form is torch's (torch/distributed/checkpoint/metadata.py and filesystem.py): `.metadata` is a pickle of a `Metadata`, which maps each
flattened name to shape, dtype and chunks, and each chunk to file, offset and length; there lies an archive of torch.save with the chunk.
torch reads it with `pickle.load`, which runs whatever it names; here nothing is run.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

from daemon.contract.models.safetensors import open_regular
from daemon.contract.sharded.archives import PLAIN
from daemon.contract.sharded.pickles import MOST_BYTES, Instance, Unreadable, inert, read_pickle, shown
from daemon.contract.sharded.pieces import MOST_DIMENSIONS, TORCH_DTYPES, Piece, ShardedTensor, tensor_name

METADATA = ".metadata"
SUFFIX = ".distcp"
_MODULE = "torch.distributed.checkpoint.metadata."
_CLASSES = (
    "Metadata", "MetadataIndex", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "BytesStorageMetadata", "StorageMeta",
    "_MEM_FORMAT_ENCODING",
)  # fmt: skip
_PATHS = ("PosixPath", "PurePosixPath", "Path", "PurePath", "WindowsPath", "PureWindowsPath")
_KNOWN: dict[str, Any] = {
    **PLAIN,
    **{_MODULE + name: inert(name) for name in _CLASSES},
    "torch.distributed.checkpoint.filesystem._StorageInfo": inert("_StorageInfo"),
    "torch.serialization._get_layout": lambda name: name,
    "torch.memory_format": inert("torch.memory_format"),
    **{f"pathlib.{name}": inert(name) for name in _PATHS},
    **{f"pathlib._local.{name}": inert(name) for name in _PATHS},
}
_BESIDE_MODEL = ("optimizer", "optimizers", "optim", "lr_scheduler")
_OPTIMIZER = ("optim", "lr_scheduler", "scheduler", "train_state", "dataloader", "rng", "ema_", "callbacks", "loops")
"""How the first parts of the names of what is no model's begin."""


def read_tensors(folder: Path) -> dict[str, ShardedTensor]:
    """Name → tensor of the model that the checkpoint in `folder` holds; the optimizer's are left out.

    Raises Unsafe for a `.metadata` that names code, Unreadable, with the reason in words, for one that is damaged or does not fit its
    files; OSError.
    """
    metadata = _metadata(folder)
    described, stored = metadata.field("state_dict_metadata"), metadata.field("storage_data")
    paths = metadata.field("planner_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise Unreadable("it describes no tensors")
    places = _Places()
    for index, place in stored.items():
        if not isinstance(index, Instance) or not isinstance(place, Instance):
            raise Unreadable("it is damaged (an invalid place)")
        places[_place_key(index.field("fqn"), index.field("offset"))] = place
    files = _Files(folder)
    for place in places.values():  # the optimizer's too: a file that is cut short is still being copied, or damaged
        files.check(place)
    tensors = dict[str, ShardedTensor]()
    left = len(places)
    for named, value in described.items():
        if not isinstance(value, Instance):
            raise Unreadable("it is damaged (a tensor without a description)")
        name = tensor_name(named)
        if value.name != "TensorStorageMetadata" or is_of_training(name, paths):
            continue
        chunks = value.field("chunks")
        if not isinstance(chunks, (list, tuple)):
            raise Unreadable(f"{name} has no pieces")
        left -= len(chunks)
        if left < 0:  # one list of pieces may stand in many tensors
            raise Unreadable("it does not say where all of its pieces are: it has more pieces than places")
        tensor = _tensor(name, value, chunks, places, files)
        if problem := tensor.problem():
            raise Unreadable(problem)
        tensors[name] = tensor
    return tensors


def files_named(folder: Path) -> list[str]:
    """Names, sorted, of the files in which `.metadata` says that pieces lie. Raises Unsafe, Unreadable, OSError."""
    stored = _metadata(folder).field("storage_data")
    places = stored.values() if isinstance(stored, dict) else ()
    files = (place.field("relative_path") for place in places if isinstance(place, Instance))
    return sorted({tensor_name(file) for file in files if _is_name(file)})


def _metadata(folder: Path) -> Instance:
    with open_regular(folder / METADATA, "read the checkpoint") as stream:
        data = stream.read(MOST_BYTES + 1)
    metadata = read_pickle(data, _KNOWN)
    if not isinstance(metadata, Instance) or metadata.name != "Metadata":
        raise Unreadable("it is not a description of torch.distributed.checkpoint")
    return metadata


_Places = dict[str, Instance]


def _place_key(name: Any, offset: Any) -> str:
    # A text, since its hash can't be foreseen, and that of a tuple of numbers can.
    return f"{tensor_name(name)}\0{'' if offset is None else _numbers(offset)}"


def is_of_training(name: str, paths: Any) -> bool:
    """Whether a tensor is the optimizer's or the training's, and no model's. `paths`: name → the keys that it is made of, if known."""
    path = paths.get(name) if isinstance(paths, dict) else None
    given = path[:3] if isinstance(path, (tuple, list)) and path else name.split(".", 3)
    parts = [part if isinstance(part, str) else "" for part in given]  # others are positions in a list
    return parts[0].lower().startswith(_OPTIMIZER) or (len(parts) > 2 and parts[1] in _BESIDE_MODEL)


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or len(value) > MOST_DIMENSIONS or not all(map(_is_whole, value)):
        raise Unreadable("it is damaged (an invalid shape)")
    return tuple(value)


def _tensor(name: str, value: Instance, chunks: Sequence[Any], places: _Places, files: _Files) -> ShardedTensor:
    properties = value.field("properties")
    state = properties.state if isinstance(properties, Instance) else None
    named = state[0] if isinstance(state, tuple) and state else None
    dtype = TORCH_DTYPES.get(named.removeprefix("torch.")) if isinstance(named, str) else None
    if dtype is None:
        raise Unreadable(f"{name} has the dtype {shown(named)}, which safetensors does not support")
    shape = _numbers(value.field("size"))
    pieces = []
    for chunk in chunks:
        if not isinstance(chunk, Instance):
            raise Unreadable("it is damaged (an invalid chunk)")
        offsets, sizes = _numbers(chunk.field("offsets")), _numbers(chunk.field("sizes"))
        place = places.get(_place_key(name, offsets)) or (places.get(_place_key(name, None)) if len(chunks) == 1 else None)
        if place is None:
            raise Unreadable(f"it does not say where the piece of {name} at {list(offsets)} is")
        if place.field("transform_descriptors"):
            raise Unreadable(f"{name} is stored through an extension of torch's storage")
        pieces.append(files.piece(name, place, offsets, sizes))
    return ShardedTensor(name, dtype, shape, tuple(pieces))


def _is_name(file: Any) -> TypeGuard[str]:
    return isinstance(file, str) and file.endswith(SUFFIX) and "/" not in file and "\0" not in file


class _Files:
    """The files beside `.metadata`, and how long they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}

    def check(self, place: Instance) -> None:
        """Unreadable where the file of a place is shorter than the place says; one that is not there is no fault of this place."""
        file, (start, length) = place.field("relative_path"), _numbers([place.field("offset"), place.field("length")])
        if _is_name(file) and (self._folder / file).is_file() and start + length > self._size(file):
            raise Unreadable(f"{file} ends at byte {self._size(file):,}, before byte {start + length:,}, which it should contain")

    def piece(self, name: str, place: Instance, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Piece:
        """The piece at a place. Unreadable where that is no part of a file here."""
        file, (start, length) = place.field("relative_path"), _numbers([place.field("offset"), place.field("length")])
        if not _is_name(file):
            raise Unreadable(f"it says that {name} is in {shown(file)!r}, which is not the name of a file in its folder")
        size = self._size(file)
        if start + length > size:
            raise Unreadable(f"{file} ends at byte {size:,}, but {name} continues to byte {start + length:,}")
        return Piece(file, start, length, offsets, sizes, archived=True)

    def _size(self, file: str) -> int:
        if file not in self._sizes:
            try:
                status = os.lstat(self._folder / file)
            except FileNotFoundError:
                raise Unreadable(f"{file}, which it names, is not there") from None
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable(f"{file} is not a regular file")
            self._sizes[file] = status.st_size
        return self._sizes[file]
