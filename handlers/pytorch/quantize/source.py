"""The merged model as the smaller forms are made of it: tensor by tensor, in blocks of rows, each value rounded once.

Called by the stages of this room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from daemon.contract.models.safetensors import TensorInfo
from handlers.merge.plan.output_layout import Output
from handlers.models.folder import ModelFolder
from handlers.pytorch.quantize.writing import LARGEST, WeightFiles
from handlers.tensors.sources import StoredSource, row_elements

BLOCK = 1 << 22
"""Elements that are read and rounded at once."""
_FLOATS = {"F64", "F32", "F16", "BF16"}


@dataclass
class Rounded:
    """What became of the weights that were rounded to 16 bits."""

    elements: int = 0
    """Of tensors that were stored in another dtype."""
    flushed: int = 0
    """Those of them that are not zero and became zero."""


@dataclass
class Merged:
    """The merged model, and the dtype of what is not quantized."""

    model: ModelFolder
    dtype: torch.dtype
    variant: str
    rounded: Rounded = field(default_factory=Rounded)

    def written_as(self, info: TensorInfo) -> str:
        """The header's name of the dtype in which a tensor is written that is not quantized."""
        return {torch.float16: "F16", torch.bfloat16: "BF16"}[self.dtype] if info.dtype in _FLOATS else info.dtype

    def declare(self, name: str) -> Output:
        """A tensor that is not quantized, as it will be written."""
        info = self.model.headers[name]
        return Output(name, "", self.written_as(info), info.shape)

    def rows(self, name: str) -> Iterator[tuple[int, torch.Tensor]]:
        """(first row, rows) of a tensor as it is stored, in blocks; the memory is used again for the next block."""
        info = self.model.headers[name]
        source = StoredSource(name, self.model.path_of(info), info)
        length, step = (info.shape[0] if info.shape else 1), max(1, BLOCK // max(1, row_elements(info.shape)))
        buffer = torch.empty((min(step, length), *info.shape[1:]), dtype=source.dtype)
        for first in range(0, length, step):
            block = buffer[: min(step, length - first)]
            source.rows(first, len(block), block)
            yield first, block

    def whole(self, name: str) -> torch.Tensor:
        """A tensor in fp32, for one matrix at a time. Permanent `not-finite` where it holds NaN or infinity."""
        info = self.model.headers[name]
        out = torch.empty(info.shape)
        StoredSource(name, self.model.path_of(info), info).rows(0, info.shape[0], out)
        if not bool(torch.isfinite(out.sum())) and not bool(torch.isfinite(out).all()):
            remedy = "take an earlier checkpoint: the training has diverged"
            raise Permanent(FaultCode.NOT_FINITE, f"quantize {name}", "it holds NaN or infinity", remedy, path=self.model.path_of(info))
        return out

    def copy(self, name: str, files: WeightFiles) -> None:
        """Write a tensor that is not quantized. Permanent `dtype-overflow` where a value is too large for the dtype."""
        info = self.model.headers[name]
        if not info.elements:
            return
        for first, block in self.rows(name):
            block = block.view(info.shape) if not info.shape else block
            files.put(name, self.round(name, block) if info.dtype in _FLOATS else block, first)

    def round(self, name: str, exact: torch.Tensor) -> torch.Tensor:
        """Values in the dtype. Permanent `dtype-overflow` where a finite one is too large for it."""
        if exact.dtype == self.dtype:
            return exact
        rounded = self.fitting(name, exact, self.dtype)
        self.rounded.elements += exact.numel()
        self.rounded.flushed += int(((rounded == 0) & (exact != 0)).sum())
        return rounded

    def fitting(self, name: str, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Values in another dtype. Permanent `dtype-overflow` where a finite one is too large for it."""
        rounded = exact.to(dtype)
        lost = exact[torch.isinf(rounded) & torch.isfinite(exact)]
        if lost.numel():
            worst, said = float(lost[lost.abs().argmax()]), str(dtype).removeprefix("torch.")
            raise Permanent(
                FaultCode.DTYPE_OVERFLOW,
                f"write {name} as {said}",
                f"it holds {worst:.6g}, and the largest {said} value is {torch.finfo(dtype).max:.6g}",
                f"use pytorch-bf16, which has the range of fp32, and leave {self.variant} out",
                path=self.model.path_of(self.model.headers[name]),
            )
        return rounded


def limit(context: StageContext) -> int:
    """Bytes of a weight file, as they were asked for."""
    return int(context.work.merge.max_shard_size or LARGEST)
