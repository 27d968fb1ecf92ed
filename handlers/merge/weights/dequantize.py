"""Sources of tensors that the base stores packed: bitsandbytes' 4 and 8 bits, and scaled fp8.

Called by `handlers.merge.weights.quantized_base`, which finds out how each tensor is packed. Values are computed block by block and equal,
bit by bit, those of the library that packed them: bitsandbytes' own functions unpack its formats. The scales and tables that belong to a
tensor are small; they are read at its first block and dropped after the last one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import TensorInfo
from daemon.contract.values import Json
from handlers.child import foreign
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import Source, TensorReader, row_elements

OPERATION = "dequantize the base"
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Block sizes that bitsandbytes knows."""
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def damaged(path: Path, cause: str) -> Permanent:
    """Return the error for packed weights whose parts do not fit together."""
    return Permanent(
        FaultCode.DAMAGED_QUANTIZATION, OPERATION, cause, "copy or download the base again, or use its 16-bit original", path=path
    )


def reader(model: ModelFolder, name: str, dtype: torch.dtype | None = None) -> TensorReader:
    """Reads a stored tensor, as another dtype than the header names if one is given."""
    info = model.headers[name]
    return TensorReader(model.path_of(info), info, dtype)


def part(model: ModelFolder, name: str, packed: str, elements: int | None = None) -> torch.Tensor:
    """Return a small tensor that is needed to unpack the tensor `packed`; Permanent when it is missing or of another size."""
    info = model.headers.get(name)
    if info is None:
        raise damaged(model.path_of(model.headers[packed]), f"{name} is missing; without it, {packed} can't be dequantized")
    if elements is not None and info.elements != elements:
        raise damaged(model.path_of(info), f"{name} has {info.elements:,} values, but {packed} needs {elements:,}")
    return reader(model, name).whole()


@dataclass(frozen=True)
class Packing:
    """What bitsandbytes notes about a 4-bit tensor."""

    kind: str
    """"nf4" or "fp4"."""
    block: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    nested_block: int = 0
    """0: the blocks' maxima are stored as they are."""
    nested_offset: float = 0.0


def _packing(model: ModelFolder, name: str, state: str) -> Packing:
    """Return what the tensor `state` says about the packed tensor `name`; Permanent when it contradicts the tensor."""
    path = model.path_of(model.headers[state])
    if model.headers[state].size > 1 << 16:
        raise damaged(path, f"{state} is far too large for what it should hold")
    raw = bytes(part(model, state, name).view(torch.uint8).tolist())
    try:
        note: Json = json.loads(raw)
        shape = tuple(int(size) for size in note["shape"])
        packing = Packing(
            str(note["quant_type"]), int(note["blocksize"]), FLOATS[note["dtype"]], shape,
            int(note["nested_blocksize"]) if "nested_offset" in note else 0, float(note.get("nested_offset", 0.0)),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise damaged(path, f"{state} is not what bitsandbytes writes ({foreign.in_words(error)})") from None
    elements = math.prod(packing.shape)
    sound = packing.kind in ("nf4", "fp4") and packing.block in BLOCKS and (packing.nested_block == 0 or packing.nested_block in BLOCKS)
    if (
        not sound
        or not shape
        or min(shape) < 1
        or model.headers[name].size != (elements + 1) // 2
        or not math.isfinite(packing.nested_offset)
    ):
        packed = f"{name} has {model.headers[name].size:,} packed bytes"
        raise damaged(path, f"{packed}, but is said to be {list(shape)} in {packing.kind} by blocks of {packing.block}")
    return packing


class FourBitSource:
    """A tensor that bitsandbytes packed into nf4 or fp4, with or without double quantization."""

    def __init__(self, model: ModelFolder, name: str, state: str, dtype: torch.dtype) -> None:
        """`state` is the name of the tensor with bitsandbytes' note; `dtype` the one to write."""
        self._model, self.packing = model, _packing(model, name, state)
        self._reader = reader(model, name, torch.uint8)
        self._absmax: torch.Tensor | None = None
        self.name, self.shape, self.dtype = name, self.packing.shape, dtype

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """Do as Source says; reads whole quantization blocks and drops the values outside of the rows."""
        from bitsandbytes import functional

        packing, width, total = self.packing, row_elements(self.shape), math.prod(self.shape)
        start, end = first * width, (first + count) * width
        low, high = start // packing.block, -(-end // packing.block)
        begin, stop = low * packing.block, min(high * packing.block, total)
        packed = torch.empty((stop - begin + 1) // 2, 1, dtype=torch.uint8)
        self._reader.read(begin // 2, packed)
        if self._absmax is None:
            self._absmax = self.maxima()
        state = functional.QuantState(
            absmax=self._absmax[low:high], shape=torch.Size([stop - begin]), dtype=packing.dtype, blocksize=packing.block,
            quant_type=packing.kind,
        )  # fmt: skip
        out.view(-1).copy_(functional.dequantize_4bit(packed, state).reshape(-1)[start - begin : end - begin])
        if first + count == self.shape[0]:
            self._absmax = None

    def maxima(self) -> torch.Tensor:
        """Return the largest magnitude of every block, in fp32."""
        from bitsandbytes import functional

        name, packing = self.name, self.packing
        blocks = -(-math.prod(self.shape) // packing.block)
        absmax = part(self._model, f"{name}.absmax", name, blocks)
        if not packing.nested_block:
            if absmax.dtype != torch.float32:
                raise damaged(self._reader.path, f"{name}.absmax is {absmax.dtype}, but bitsandbytes writes fp32")
            return absmax
        if absmax.dtype != torch.uint8:
            raise damaged(self._reader.path, f"{name}.absmax is {absmax.dtype}, but double quantization writes bytes")
        outer = part(self._model, f"{name}.nested_absmax", name, -(-blocks // packing.nested_block))
        code = part(self._model, f"{name}.nested_quant_map", name, 256)
        state = functional.QuantState(absmax=outer.float(), code=code.float(), blocksize=packing.nested_block, dtype=torch.float32)
        return functional.dequantize_blockwise(absmax.view(-1), state).add_(torch.tensor(packing.nested_offset))


class EightBitSource:
    """A tensor that bitsandbytes packed into int8 with one scale a row (LLM.int8)."""

    def __init__(self, model: ModelFolder, name: str, dtype: torch.dtype) -> None:
        """Beside `X.weight` there is `X.SCB`, and perhaps `X.weight_format`, which must say row order."""
        info, stem = model.headers[name], name.removesuffix("weight")
        if info.dtype != "I8" or len(info.shape) != 2:
            raise damaged(model.path_of(info), f"{name} is {info.dtype} with {len(info.shape)} dimensions, but an int8 matrix was expected")
        order = f"{stem}weight_format"
        if order in model.headers and part(model, order, name, 1).item() != 0:
            raise damaged(model.path_of(info), f"{name} is stored in the tile order of one GPU type, which an old bitsandbytes wrote")
        self._scale_name = f"{stem}SCB"
        part(model, self._scale_name, name, info.shape[0])
        self._model, self._reader = model, reader(model, name)
        self._scale: torch.Tensor | None = None
        self.name, self.dtype = name, dtype
        self.shape: tuple[int, ...] = info.shape

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """Do as Source says; fp32 is not rounded to 16 bits on the way."""
        from bitsandbytes import functional

        if self._scale is None:
            self._scale = part(self._model, self._scale_name, self.name).float().view(-1)
        packed = torch.empty(count, self.shape[1], dtype=torch.int8)
        self._reader.read(first * self.shape[1], packed)
        out.copy_(functional.int8_vectorwise_dequant(packed, self._scale[first : first + count]).view(out.shape))
        if first + count == self.shape[0]:
            self._scale = None


class ScaledFp8Source:
    """A tensor in fp8 with a scale for the whole of it, for each row, or for each tile: value × scale."""

    def __init__(self, model: ModelFolder, name: str, scale: str, dtype: torch.dtype, tile: tuple[int, int] | None = None) -> None:
        """`scale` names the tensor of scales, `tile` its rows and columns of the weight (by default as the shapes divide)."""
        info = model.headers[name]
        self._reader = reader(model, name)
        self._scale_name, self._model = scale, model
        self._scale: torch.Tensor | None = None
        self.name, self.dtype = name, dtype
        self.shape: tuple[int, ...] = info.shape
        self._tile = self._fit(model.headers[scale], tile)

    def _fit(self, scale: TensorInfo, tile: tuple[int, int] | None) -> tuple[int, int]:
        """Return the rows and columns of the weight for one scale; Permanent when weight and scales don't fit."""
        path, shape = self._reader.path, self.shape
        if scale.dtype not in ("F32", "F16", "BF16"):
            raise damaged(path, f"{self._scale_name} is stored as {scale.dtype}, which can't be read as a scale")
        if len(shape) < 2 or min(shape) < 1:
            raise damaged(path, f"{self.name} is in fp8 with the shape {list(shape)}, but a matrix was expected")
        if scale.elements == 1:
            return shape[-2], shape[-1]
        grid = scale.shape if len(scale.shape) == len(shape) else (*scale.shape, 1) if len(scale.shape) == len(shape) - 1 else None
        for size in (tile, None if grid is None or 0 in grid else (-(-shape[-2] // grid[-2]), -(-shape[-1] // grid[-1]))):
            if size and min(size) > 0 and grid == (*shape[:-2], -(-shape[-2] // size[0]), -(-shape[-1] // size[1])):
                return size
        raise damaged(path, f"{self._scale_name} has the shape {list(scale.shape)}, which does not fit {self.name} of {list(shape)}")

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """Do as Source says; the product is taken in fp32."""
        if self._scale is None:
            scale = part(self._model, self._scale_name, self.name).float()
            grid = [*self.shape[:-2], -(-self.shape[-2] // self._tile[0]), -(-self.shape[-1] // self._tile[1])]
            self._scale = scale.view(grid) if scale.numel() > 1 else scale.view(1).expand(math.prod(grid)).view(grid)
        packed = torch.empty(count, *self.shape[1:], dtype=self._reader.dtype)
        self._reader.read(first * row_elements(self.shape), packed)
        values = packed.float()
        if len(self.shape) == 2:
            values.mul_(self._spread(self._scale, range(first, first + count)))
        else:
            for index in range(count):
                values[index].mul_(self._spread(self._scale[first + index], range(self.shape[-2])))
        out.copy_(values.view(out.shape))
        if first + count == self.shape[0]:
            self._scale = None

    def _spread(self, grid: torch.Tensor, rows: range) -> torch.Tensor:
        """Return the scale of every element of these rows of a matrix."""
        height, width = self._tile
        chosen = grid[torch.arange(rows.start, rows.stop) // height]
        return chosen.repeat_interleave(width, dim=-1)[..., : self.shape[-1]]


class TransposedSource:
    """A matrix whose rows are another source's columns; all of it is in memory while it is read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._transposed: torch.Tensor | None = None
        self.name, self.dtype = source.name, source.dtype
        self.shape: tuple[int, ...] = (source.shape[1], source.shape[0])

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """Do as Source says; a buffer of another dtype than before reads the source again."""
        if self._transposed is None or self._transposed.dtype != out.dtype:
            whole = torch.empty(self._source.shape, dtype=out.dtype)
            self._source.rows(0, self._source.shape[0], whole)
            self._transposed = whole.T.contiguous()
        out.copy_(self._transposed[first : first + count])
        if first + count == self.shape[0]:
            self._transposed = None
