"""A model's weight files, written tensor by tensor: headers first, since names, dtypes and shapes are known before any value is.

Called by the stages of this room. Memory is what the caller hands over at a time; files have the limit and the names that transformers'
own `save_pretrained` gives them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

import torch

from handlers.merge.plan.output_layout import Output, new_file, resharded
from handlers.merge.weights.unpacked_base import header_dtype
from handlers.models.folder import INDEX
from handlers.tensors.file_io import create, write_from
from handlers.tensors.sources import as_bytes

LARGEST = 5 * 10**9
"""Bytes of a weight file where `merge.max_shard_size` does not say."""


def declared(name: str, dtype: torch.dtype, shape: Iterable[int]) -> Output:
    """A tensor that will be written."""
    return Output(name, "", header_dtype(dtype), tuple(shape))


class WeightFiles:
    """The safetensors files of `tensors` in a folder, in their order, each of at most `limit` bytes unless one tensor is larger.

    All files are made at once with their full size. `put` takes the values in any order, whole or by rows.
    """

    def __init__(self, folder: Path, tensors: Sequence[Output], limit: int) -> None:
        self._folder = folder
        self._index: dict[str, object] | None = None
        self._descriptors: list[int] = []
        self._places: dict[str, tuple[int, int, Output]] = {}
        self._missing = {tensor.name: tensor.size for tensor in tensors}
        assert len(self._missing) == len(tensors), "a name is declared twice"
        named, shards = {tensor.name: tensor for tensor in tensors}, resharded(((tensor.name, tensor.size) for tensor in tensors), limit)
        try:
            for file, names in shards.items():
                self._begin(file, [named[name] for name in names])
        except BaseException:
            self._close()
            raise
        self.size = sum(tensor.size for tensor in tensors)
        """Bytes of all tensors, headers left out."""
        if len(shards) > 1:
            table = {name: file for file, names in shards.items() for name in names}
            parameters = sum(tensor.elements for tensor in tensors)
            self._index = {"metadata": {"total_parameters": parameters, "total_size": self.size}, "weight_map": dict(sorted(table.items()))}

    def _begin(self, name: str, shard: list[Output]) -> None:
        plan = new_file(name, shard)
        descriptor = create(self._folder / name, plan.size)
        self._descriptors.append(descriptor)
        write_from(descriptor, memoryview(plan.header or b""), 0)
        self._places.update({tensor.name: (descriptor, start, tensor) for tensor, start in zip(plan.outputs, plan.starts, strict=True)})

    def put(self, name: str, values: torch.Tensor, first: int = 0) -> None:
        """Write a tensor, or its rows from `first` on. The dtype must be the declared one."""
        descriptor, start, tensor = self._places[name]
        row = tensor.size // max(1, tensor.shape[0]) if tensor.shape else tensor.size
        kind = header_dtype(values.dtype)
        assert kind == tensor.dtype and values.shape[1:] == tensor.shape[1:], (name, kind, values.shape, tensor)
        data = as_bytes(values.contiguous()) if values.numel() else memoryview(b"")
        assert first * row + len(data) <= tensor.size, name
        write_from(descriptor, data, start + first * row)
        self._missing[name] -= len(data)

    def __enter__(self) -> WeightFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the files; without an error every declared byte must be there."""
        self._close()
        if error is None:
            left = [name for name, count in self._missing.items() if count]
            assert not left, f"{len(left)} tensors are not written as declared, for example {left[0]}"
            if self._index is not None:
                (self._folder / INDEX).write_text(json.dumps(self._index, indent=2) + "\n", encoding="utf-8")

    def _close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
