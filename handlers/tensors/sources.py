"""Sources: objects that give the values of one tensor row by row, whatever form it is stored in.

Used by the merge, by stages that quantize, and where a model is run layer by layer. A source has a shape and the dtype in which it will be
written, and fills buffers that its caller owns; it never holds a whole tensor. Bytes are read by offset and not memory-mapped, since mapped
pages count as memory of the process. One source is used by one thread at a time.
"""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Protocol

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import DTYPES, TensorInfo
from handlers.tensors.file_io import read_into


class Source(Protocol):
    """A tensor of the base that can be read by rows, the slices along its first dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    """As it will be written."""

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """Fill `out`, contiguous, of `count` × the other dimensions, in fp32 or in `dtype`, with rows from `first` on."""
        ...


def torch_dtype(name: str, path: Path) -> torch.dtype:
    """torch's dtype for a name in a safetensors header; Permanent for one that torch does not have."""
    if name not in DTYPES:
        raise Permanent(
            FaultCode.UNKNOWN_DTYPE,
            "read the weights",
            f"{name} is not a dtype that can be read",
            "save the model in 16 or 32 bits",
            path=path,
        )
    return getattr(torch, DTYPES[name][0])  # type: ignore[no-any-return]


def row_elements(shape: tuple[int, ...]) -> int:
    """Elements of one row; a tensor without dimensions is one row of one element."""
    return math.prod(shape[1:])


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor, for reading into and writing from."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


class TensorReader:
    """Reads ranges of one tensor of a safetensors file."""

    def __init__(self, path: Path, info: TensorInfo, dtype: torch.dtype | None = None) -> None:
        """`dtype` reads the tensor's bytes as another type than the header names."""
        self.path, self.info = path, info
        self.dtype = dtype or torch_dtype(info.dtype, path)

    def read(self, first: int, out: torch.Tensor) -> None:
        """Fill `out`, which is contiguous and of the stored dtype, with the elements from `first` on."""
        assert out.dtype == self.dtype
        view = as_bytes(out)
        # Opened for each block: a model has more tensors than a process may have files open.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            read_into(descriptor, view, self.info.start + first * self.dtype.itemsize, self.path)
        finally:
            os.close(descriptor)

    def whole(self) -> torch.Tensor:
        """The tensor in memory, in its stored dtype and shape; for small ones."""
        out = torch.empty(self.info.elements, dtype=self.dtype)
        if self.info.elements:
            self.read(0, out)
        return out.view(self.info.shape)


class _Scratch(threading.local):
    """One buffer for each dtype and thread, which all sources share: a model has thousands of tensors, each with a source of its own."""

    def __init__(self) -> None:
        self._buffers: dict[torch.dtype, torch.Tensor] = {}

    def of(self, dtype: torch.dtype, elements: int) -> torch.Tensor:
        """A buffer of so many elements, valid until the same thread asks for the next one."""
        buffer = self._buffers.get(dtype)
        if buffer is None or buffer.numel() < elements:
            with torch.inference_mode(False):  # a tensor made in that mode could not be written to outside of it
                buffer = self._buffers[dtype] = torch.empty(elements, dtype=dtype)
        return buffer[:elements]


_scratch = _Scratch()


class StoredSource:
    """A tensor of a safetensors file, as it is stored."""

    def __init__(self, name: str, path: Path, info: TensorInfo) -> None:
        self._reader = TensorReader(path, info)
        self.name, self.shape, self.dtype = name, info.shape, self._reader.dtype

    def place(self, first: int) -> tuple[Path, int]:
        """The file, and the position in it, of the row `first`; the rows that follow lie behind it."""
        return self._reader.path, self._reader.info.start + first * row_elements(self.shape) * self.dtype.itemsize

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """As Source says; into the stored dtype without a second buffer."""
        width = row_elements(self.shape)
        if out.dtype == self.dtype:
            self._reader.read(first * width, out)
            return
        read = _scratch.of(self.dtype, count * width)
        self._reader.read(first * width, read)
        out.view(-1).copy_(read)


class CastSource:
    """A source that is written in another dtype than it has."""

    def __init__(self, source: Source, dtype: torch.dtype) -> None:
        self._source = source
        self.name, self.shape, self.dtype = source.name, source.shape, dtype

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """As Source says; by way of fp32, from which there is one rounding. Permanent where a value does not fit into the dtype."""
        if out.dtype == torch.float32:
            self._source.rows(first, count, out)
            return
        exact = _scratch.of(torch.float32, out.numel()).view(out.shape)
        self._source.rows(first, count, exact)
        out.copy_(exact)
        check_overflow(exact, out, self.name)


def check_overflow(exact: torch.Tensor, rounded: torch.Tensor, name: str, path: Path | None = None) -> None:
    """Permanent when a finite value of `exact` became infinite in `rounded`; one that was infinite already may stay so."""
    if exact.numel() == 0 or torch.finfo(rounded.dtype).max >= torch.finfo(exact.dtype).max:
        return
    lowest, highest = (float(edge) for edge in torch.aminmax(rounded))
    if math.isfinite(lowest) and math.isfinite(highest):
        return
    lost = exact[torch.isinf(rounded) & torch.isfinite(exact)]
    if lost.numel():
        worst, dtype = float(lost[lost.abs().argmax()]), str(rounded.dtype).removeprefix("torch.")
        wider = {"float16": '"bfloat16" or ', "bfloat16": '"float32" or '}.get(dtype, "")
        raise Permanent(
            FaultCode.DTYPE_OVERFLOW,
            f"write {name} as {dtype}",
            f"it holds {worst:.6g}, and the largest {dtype} value is {torch.finfo(rounded.dtype).max:.6g}",
            f'set merge.dtype to {wider}"base"',
            path=path,
        )
