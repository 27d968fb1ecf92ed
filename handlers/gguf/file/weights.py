"""A model's safetensors as fp32 rows, a few at a time: a tensor is never in memory as a whole where it does not have to be."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import TensorInfo
from handlers.models.folder import ModelFolder

ROWS_BYTES = 64 << 20
"""Bytes in fp32 that are read at a time."""
STORED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"), "F64": np.dtype("<f8")}
"""Dtype of weights, as safetensors names it → as it is read; bf16 as the upper halves of fp32."""


def read(path: Path, info: TensorInfo, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Rows start…stop of a tensor of a file, in fp32. Its dtype must be one of STORED."""
    mapped: np.ndarray = np.memmap(path, dtype=STORED[info.dtype], mode="r", offset=info.start, shape=info.shape)
    part = mapped[start:stop]
    if info.dtype == "BF16":
        widened: np.ndarray = (part.astype("<u4") << 16).view("<f4")
        return widened
    return np.asarray(part, dtype="<f4")


class Weights:
    """The tensors of a folder, by name."""

    def __init__(self, folder: ModelFolder) -> None:
        self.folder = folder
        self.headers = folder.headers

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes, as transformers has them."""
        return self.headers[name].shape

    @functools.cached_property
    def dtypes(self) -> set[str]:
        """The dtypes of the weights, as safetensors names them."""
        return {info.dtype for info in self.headers.values() if info.dtype in STORED}

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows start…stop of a tensor, in fp32. Permanent for a dtype that is not one of weights."""
        info = self.headers[name]
        if info.dtype not in STORED:
            cause = f"{name} is stored as {info.dtype}, which is not a dtype of plain weights"
            raise Permanent(
                FaultCode.FORM_NOT_POSSIBLE, "write GGUF", cause, "leave the gguf variants out of export.variants", path=info.file
            )
        return read(self.folder.path / info.file, info, start, stop)

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """All of it in blocks of rows."""
        shape = self.shape(name)
        width = 4 * int(np.prod(shape[1:], dtype=np.int64)) or 4
        step = max(1, ROWS_BYTES // width)
        for at in range(0, shape[0], step):
            yield self.rows(name, at, min(at + step, shape[0]))
