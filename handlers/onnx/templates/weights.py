"""The tensors of a folder's safetensors files, views of the mapped files. Free of torch."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from pathlib import Path

import ml_dtypes
import numpy as np

from daemon.contract.models.safetensors import TensorInfo, parse_header
from handlers.graphs.weights import pages
from handlers.models.folder import ModelFolder

_COMPARED = 16 << 20
"""Bytes that are compared at once: the answers take as much memory."""
_NUMPY = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


class Weights:
    """All tensors of a model, those of the modules in its subfolders too, by names that say the folder: "2_Dense/linear.weight".

    `unread`: names in the folder itself that are left out, since the model does not read them.
    """

    def __init__(self, folder: Path, unread: Collection[str] = ()) -> None:
        self.folder = folder
        self._files: dict[Path, np.memmap] = {}
        own = {name: info for name, info in ModelFolder(folder).headers.items() if name not in unread}
        self.folders: dict[str, dict[str, TensorInfo]] = {"": own}
        for path in sorted(folder.glob("*/*.safetensors")):
            self.folders.setdefault(path.parent.name, {}).update(parse_header(path))

    @functools.cached_property
    def infos(self) -> dict[str, TensorInfo]:
        """Name → tensor."""
        return {f"{folder}/{name}" if folder else name: info for folder, infos in self.folders.items() for name, info in infos.items()}

    @functools.cached_property
    def equal(self) -> tuple[tuple[str, ...], ...]:
        """Groups of equal matrices outside of the layers: weights that are tied but stored twice, as which they are loaded."""
        by_shape: dict[tuple[str, tuple[int, ...]], list[list[str]]] = {}
        for name, info in sorted(self.infos.items()):
            if len(info.shape) < 2 or any(part.isdigit() for part in name.split(".")):
                continue
            groups = by_shape.setdefault((info.dtype, info.shape), [])
            group = next((members for members in groups if self._same(members[0], name)), None)
            if group is None:
                groups.append([name])
            else:
                group.append(name)
        return tuple(tuple(group) for groups in by_shape.values() for group in groups if len(group) > 1)

    def _same(self, name: str, other: str) -> bool:
        mine, theirs = self._bytes(name), self._bytes(other)
        return all(
            np.array_equal(mine[first : first + _COMPARED], theirs[first : first + _COMPARED]) for first in range(0, len(mine), _COMPARED)
        )

    def _bytes(self, name: str) -> np.ndarray:
        return self.stored(name.rpartition("/")[0], self.infos[name])

    def tensor(self, name: str) -> np.ndarray:
        """A tensor in the type that it is stored in, a view of the file. KeyError for one that is not there."""
        info, folder = self.infos[name], name.rpartition("/")[0]
        raw: np.ndarray = self.stored(folder, info).view(_NUMPY[info.dtype])
        return raw.reshape(info.shape)

    def stored(self, folder: str, info: TensorInfo) -> np.ndarray:
        """The bytes of a tensor of `folder`, uint8."""
        path = self.folder / folder / info.file
        if path not in self._files:
            self._files[path] = np.memmap(path, np.uint8, mode="r")
        return self._files[path][info.start : info.end]

    def release(self, names: Iterable[str]) -> None:
        """The pages of these tensors count for this process no more until they are read again."""
        for name in names:
            info = self.infos[name]
            file = self._files.get(self.folder / name.rpartition("/")[0] / info.file)
            if file is not None:
                pages.release(file, info.start, info.end)

    def unmap(self) -> None:
        """Let go of the mapped files, so that their pages count for this process no more; what is read later maps them again."""
        self._files.clear()
