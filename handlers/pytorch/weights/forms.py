"""How far a packed matrix may lie from the merged weight that it was rounded from, form by form.

Called by `difference` with blocks of rows. The bounds come from the rounding itself and from the merged weights, not from what is stored:

- int8 by bitsandbytes and w8a8: a row's scale is its largest magnitude over 127; each weight lies within half a step.
- nf4: a block's scale is its largest magnitude, each weight has the nearest number of the code book. Where scales are quantized too,
  each may be off by half the largest gap of their own code, or by what its ends lack of 1, in units of the largest one of their block.
- w4a16: a group's scale is one of those that the search tries for the group's largest magnitude. Rounded to nearest, a weight lies within
  half a step of where clipping puts it. Error correction (GPTQ) moves weights farther, to make up for others: how far depends on the inputs
  of the layer, which are not known here. So there the difference is bounded as a whole, for a group (`MOVED`) and for a row (`ROW`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from handlers.merge.weights.dequantize import FourBitSource, part, reader
from handlers.models.folder import ModelFolder
from handlers.pytorch.quantize import rounding

SLACK = 1e-4
"""Of a step, for the arithmetic in fp32: a quotient of 127 is exact to 8e-6. Of the unit of scales that are quantized too, where
bitsandbytes puts the middle between two numbers 1e-5 off."""
EXACT = 1e-6
"""Of a magnitude that is taken from the weights as it is."""
SMALLEST = 2e-38
"""What bitsandbytes may store for a block of zeros."""
MOVED = 3.0
"""Largest root mean square, over a group, of what error correction may move weights by beside clipping, in steps of the group or of its
row, whichever is larger: a group of zeros takes up the errors of others. Measured: 0.3 to 0.8, and 1.6 where three inputs of a layer are
1000 times as large as the others. Another group of the row is 3.5 or more away, numbers that mean nothing 5.5."""
ROW = 0.8
"""Largest length of a row's difference in w4a16, over the row's own. Measured: 0.14 to 0.26, and up to 0.56 with weights that are almost
all near zero and very unequal inputs. A row that is lost differs by 1, another one by 1.4."""
NOTHING = 8
"""Smallest numbers of a type of scales: a row whose weights are shorter, on average, may be rounded to nothing."""


class MisfitError(Exception):
    """The parts of a packed matrix do not fit the merged weight or each other; the text is a clause."""


class Packed(Protocol):
    """A matrix (outputs, inputs) of a quantized form."""

    shape: tuple[int, ...]
    step: int
    """A block of rows begins at a multiple of it."""

    def beyond(self, first: int, exact: torch.Tensor) -> torch.Tensor:
        """Which of some rows' weights, from `first` on, are farther from the merged ones than rounding brings them: bool, as `exact`."""
        ...


@dataclass(frozen=True)
class Place:
    """Where a packed matrix is looked for."""

    model: ModelFolder
    name: str
    """The merged weight's."""
    dtype: torch.dtype
    """Of what is not quantized in this folder."""


def _parts(place: Place, wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    """Raises MisfitError unless these tensors are there in these types and shapes."""
    for name, (dtype, shape) in wanted.items():
        info = place.model.headers.get(name)
        if info is None:
            raise MisfitError(f"{name} is missing")
        if info.shape != shape:
            raise MisfitError(f"{name} has the shape {list(info.shape)} instead of {list(shape)}")
        if (stored := reader(place.model, name).dtype) != dtype:
            raise MisfitError(f"{name} is {stored} instead of {dtype}")


class EightBits:
    """Rows in int8 with a scale each, as bitsandbytes packs 16 bits."""

    step = 1

    def __init__(self, place: Place, shape: tuple[int, ...]) -> None:
        stem = place.name.removesuffix("weight")
        order = {f"{stem}weight_format": (torch.uint8, ())}
        _parts(place, {place.name: (torch.int8, shape), f"{stem}SCB": (torch.float32, shape[:1]), **order})
        if int(part(place.model, f"{stem}weight_format", place.name)):
            raise MisfitError(f"{stem}weight_format is not that of rows")
        self.shape = shape
        self._values, self._scales, self._dtype = reader(place.model, place.name), part(place.model, f"{stem}SCB", place.name), place.dtype

    def beyond(self, first: int, exact: torch.Tensor) -> torch.Tensor:
        values = torch.empty(exact.shape, dtype=torch.int8)
        self._values.read(first * exact.shape[1], values)
        weight = exact.to(self._dtype).to(torch.float16).float()
        largest = weight.abs().amax(dim=1, keepdim=True)
        scales = self._scales[first : first + len(exact), None]
        near = values.float().mul_(scales / 127).sub_(weight).abs_() <= largest * ((0.5 + SLACK) / 127)
        return ~(near & ((scales - largest).abs() <= EXACT * largest))  # so that what is no number is beyond


class FourBits:
    """Blocks of a flat matrix in nf4, as bitsandbytes packs them."""

    def __init__(self, place: Place, shape: tuple[int, ...]) -> None:
        from bitsandbytes import functional

        state, size = f"{place.name}.quant_state.bitsandbytes__nf4", shape[0] * shape[1]
        _parts(place, {place.name: (torch.uint8, (-(-size // 2), 1)), f"{place.name}.quant_map": (torch.float32, (16,))})
        source = FourBitSource(place.model, place.name, state, place.dtype)
        packing = source.packing
        if packing.kind != "nf4" or packing.dtype != place.dtype:
            raise MisfitError(f"{state} says {packing.kind} in {packing.dtype} instead of nf4 in {place.dtype}")
        if packing.shape != shape:
            raise MisfitError(f"{state} has the shape {list(packing.shape)} instead of {list(shape)}")
        self.shape, self._block = shape, packing.block
        self.step = self._block
        self._values, self._dtype = reader(place.model, place.name), place.dtype
        self._code = functional.get_4bit_type("nf4", device="cpu")
        if not torch.equal(part(place.model, f"{place.name}.quant_map", place.name), self._code):
            raise MisfitError(f"{place.name}.quant_map is not the code book of nf4")
        self._scales, self._off = source.maxima(), torch.zeros(1)
        if packing.nested_block:
            book = part(place.model, f"{place.name}.nested_quant_map", place.name).float().sort().values
            gap = torch.stack([book.diff().max() / 2, 1 + book[0], 1 - book[-1]]).max()  # its ends need not be -1 and 1
            outer = part(place.model, f"{place.name}.nested_absmax", place.name).float()
            self._off = (outer * (gap + SLACK)).repeat_interleave(packing.nested_block)[: len(self._scales)]

    def beyond(self, first: int, exact: torch.Tensor) -> torch.Tensor:
        block, start, size = self._block, first * exact.shape[1], exact.numel()
        weight = torch.nn.functional.pad(exact.to(self._dtype).float().view(-1), (0, -size % block)).view(-1, block)
        packed = torch.empty(-(-size // 2), dtype=torch.uint8)
        self._values.read(start // 2, packed)
        low = start // block
        scales = self._scales[low : low + len(weight), None]
        allowed = self._off if len(self._off) == 1 else self._off[low : low + len(weight)]
        largest = weight.abs().amax(dim=1, keepdim=True)
        near = (scales - largest).abs() <= allowed[:, None] + EXACT * largest + SMALLEST
        shares = weight.mul_(1 / largest.clamp(min=1e-38)).view(-1)[:size]
        nearest = torch.bucketize(shares, (self._code[:-1] + self._code[1:]) / 2, out_int32=True).to(torch.uint8)
        numbers = torch.stack([packed >> 4, packed & 15], dim=-1).view(-1)[:size]
        other = numbers != nearest
        if bool(other.any()):  # a weight in the middle between two numbers may have either
            places = other.nonzero().view(-1)
            shares = shares[places]
            distances = [(self._code[codes[places].int()] - shares).abs() for codes in (numbers, nearest)]
            other[places] = (distances[0] > distances[1] + 2 * EXACT) & (largest.view(-1)[places // block] > 0)
        return (other | ~near.expand(-1, block).reshape(-1)[:size]).view(exact.shape)


class EightBitRows:
    """w8a8: rows in int8, each with a scale in 16 bits."""

    step = 1

    def __init__(self, place: Place, shape: tuple[int, ...]) -> None:
        _parts(place, {place.name: (torch.int8, shape), f"{place.name}_scale": (place.dtype, (shape[0], 1))})
        self.shape = shape
        self._values, self._scales = reader(place.model, place.name), part(place.model, f"{place.name}_scale", place.name)

    def beyond(self, first: int, exact: torch.Tensor) -> torch.Tensor:
        values = torch.empty(exact.shape, dtype=torch.int8)
        self._values.read(first * exact.shape[1], values)
        stored = self._scales[first : first + len(exact)]
        wanted = rounding.int8_scales(exact.abs().amax(dim=1, keepdim=True), stored.dtype)
        scales = stored.float()
        near = values.float().mul_(scales).sub_(exact).abs_() <= scales * (0.5 + SLACK)
        return ~(near & (stored == wanted))


class FourBitGroups:
    """w4a16: groups of a row in 4 bits, each with a scale in 16 bits."""

    step = 1

    def __init__(self, place: Place, shape: tuple[int, ...]) -> None:
        name, (rows, columns) = place.name, shape
        scales = place.model.headers.get(f"{name}_scale")
        groups = scales.shape[1] if scales and len(scales.shape) == 2 else 0
        if groups < 1 or columns % groups or columns // groups not in rounding.GROUPS:
            raise MisfitError(f"{name}_scale does not have a row of scales for each row of groups")
        self._group = columns // groups
        wanted = {f"{name}_packed": (torch.int32, (rows, columns // 8)), f"{name}_scale": (place.dtype, (rows, groups))}
        _parts(place, {**wanted, f"{name}_shape": (torch.int64, (2,))})
        if part(place.model, f"{name}_shape", name).tolist() != [rows, columns]:
            raise MisfitError(f"{name}_shape is not {[rows, columns]}")
        self.shape = shape
        self._words, self._scales = reader(place.model, f"{name}_packed"), reader(place.model, f"{name}_scale")

    def beyond(self, first: int, exact: torch.Tensor) -> torch.Tensor:
        rows, columns = exact.shape
        words = torch.empty(rows, columns // 8, dtype=torch.int32)
        self._words.read(first * (columns // 8), words)
        stored = torch.empty(rows, columns // self._group, dtype=self._scales.dtype)
        self._scales.read(first * stored.shape[1], stored)
        octets = words.view(torch.uint8)  # eight numbers a word, the lowest four bits first
        numbers = torch.stack([octets & 15, octets >> 4], dim=-1).view(*stored.shape, self._group).float().sub_(8)
        weight = exact.view(numbers.shape)
        known = torch.zeros(stored.shape, dtype=torch.bool)
        for scales in rounding.int4_choices(weight.abs().amax(dim=-1), stored.dtype):
            known |= stored == scales
        wide = stored.float()[..., None]
        limited = weight.clamp(min=rounding.LOW * wide, max=rounding.HIGH * wide)  # what clipping takes is the scale's choice
        values = numbers.mul_(wide)
        apart = (limited - values).abs_()
        beyond = apart > wide * (0.5 + SLACK)
        unit = torch.maximum(wide, wide.square().mean(dim=1, keepdim=True).sqrt_())
        moved = apart.square_().mean(dim=-1, keepdim=True).sqrt_() > MOVED * unit
        lengths = [torch.linalg.vector_norm(array.flatten(1), dim=1)[:, None, None] for array in (values.sub_(weight), weight)]
        nothing = NOTHING * torch.finfo(stored.dtype).tiny * torch.finfo(stored.dtype).eps * columns**0.5
        lost = (lengths[0] > ROW * lengths[1]) & (lengths[1] > nothing)
        far: torch.Tensor = beyond & (moved | lost) | ~known[..., None]
        return far.view(exact.shape)
