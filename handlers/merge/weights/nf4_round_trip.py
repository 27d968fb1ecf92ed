"""A 16-bit base as a QLoRA training saw it: packed into nf4 by bitsandbytes when it was loaded, and unpacked again.

Called by the merge for `merge.base = "dequantized"`. Every linear layer that transformers would have packed goes through the round
trip, whether the adapter changes it or not, since the training used all of them. Values of bf16 bases equal those of whole tensors that
bitsandbytes packs on an NVIDIA GPU. On the CPU it packs values alike, but gives about one scale in 500 the number beside the nearest one;
so scales are quantized here.
"""

from __future__ import annotations

import math

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.weights.dequantize import TransposedSource
from handlers.merge.weights.model_structure import model_class
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import Source, StoredSource, row_elements

OPERATION = "quantize the base as the training did"
BLOCK = 64
"""Values that share a scale; the only size that transformers uses."""
OUTER_BLOCK = 256
"""Scales that share one, where they are quantized too."""
CHUNK = 1 << 20
"""Elements read at once when the scales of a whole tensor are computed."""


class RoundTripSource:
    """Another source's values after nf4 quantization and dequantization."""

    def __init__(self, source: Source, *, double: bool) -> None:
        """`double`: the scales are quantized too, as with bnb_4bit_use_double_quant."""
        self._source, self._double = source, double
        self._absmax: torch.Tensor | None = None
        # What is loaded for training in 4 bits is loaded in 16 bits first.
        self._packed_from = torch.bfloat16 if source.dtype == torch.float32 else source.dtype
        self._scratch = torch.empty(0, dtype=self._packed_from)
        self.name, self.shape, self.dtype = source.name, source.shape, source.dtype
        width = row_elements(source.shape)
        self._width, self._step = width, BLOCK // math.gcd(width, BLOCK)

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """Do as Source says; with `double` the first block reads the whole tensor once, for its scales."""
        from bitsandbytes import functional

        low, values = self._aligned(first, count)
        packed, state = functional.quantize_4bit(values, blocksize=BLOCK, quant_type="nf4")
        if self._double:
            if self._absmax is None:
                self._absmax = self._maxima()
            start = low * self._width // BLOCK
            state.absmax = self._absmax[start : start + state.absmax.numel()]
        result = functional.dequantize_4bit(packed, state).reshape(-1)
        skipped = (first - low) * self._width
        out.view(-1).copy_(result[skipped : skipped + count * self._width])
        if first + count == self.shape[0]:
            self._absmax = None

    def _aligned(self, first: int, count: int) -> tuple[int, torch.Tensor]:
        """Return the first row and the values of the smallest range around the rows that holds whole quantization blocks."""
        low = first - first % self._step
        high = min(self.shape[0], -(-(first + count) // self._step) * self._step)
        elements = (high - low) * self._width
        if self._scratch.numel() < elements:
            self._scratch = torch.empty(elements, dtype=self._packed_from)
        values = self._scratch[:elements]
        if self._source.dtype == self._packed_from:
            self._source.rows(low, high - low, values.view(high - low, self._width))
        else:
            exact = torch.empty(high - low, self._width)
            self._source.rows(low, high - low, exact)
            values.copy_(exact.view(-1))
        return low, values

    def _maxima(self) -> torch.Tensor:
        """Return the scales of all blocks, after having been quantized themselves."""
        total = self.shape[0] * self._width
        maxima = torch.empty(-(-total // BLOCK))
        rows = max(self._step, CHUNK // self._width // self._step * self._step)
        for first in range(0, self.shape[0], rows):
            values = self._aligned(first, min(rows, self.shape[0] - first))[1].float().abs_()
            padded = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
            start = first * self._width // BLOCK
            maxima[start : start + len(padded)] = padded.amax(dim=1)
        offset = maxima.mean()
        return quantized_scales(maxima - offset) + offset


def quantized_scales(scales: torch.Tensor) -> torch.Tensor:
    """Scales, less their mean, after 8 bits: blocks of 256 over their largest magnitude, rounded to the nearest of 256 numbers.

    As bitsandbytes' kernel for NVIDIA's GPUs does it: it multiplies by the reciprocal, and in the middle between two takes the even place.
    """
    from bitsandbytes import functional

    numbers = functional.create_dynamic_map().float()
    blocks = torch.nn.functional.pad(scales, (0, -len(scales) % OUTER_BLOCK)).view(-1, OUTER_BLOCK)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    shares = blocks * (1.0 / largest)
    middles = (numbers[1:] + numbers[:-1]) * 0.5
    places = torch.bucketize(shares, middles)  # the lower one in the middle
    tied = middles[places.clamp(max=len(middles) - 1)] == shares
    places += tied & (places % 2 == 1)
    rounded: torch.Tensor = numbers[places] * largest
    return rounded.view(-1)[: len(scales)]


def _quantized_modules(model: ModelFolder) -> set[str]:
    """Return the paths of the linear layers that transformers packs when it loads the model with load_in_4bit."""
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import get_keys_to_not_convert
    from transformers.quantizers.quantizers_utils import should_convert_module

    cls = model_class(model)
    with torch.device("meta"):
        built = cls(cls.config_class.from_pretrained(model.path))
    kept = get_keys_to_not_convert(built)
    kinds = (torch.nn.Linear, Conv1D)
    return {name for name, module in built.named_modules() if type(module) in kinds and should_convert_module(name, kept)}


def quantized_tensors(model: ModelFolder) -> set[str]:
    """Return the stored tensors that a load in 4 bits packs. Permanent when their names do not show which they are."""
    modules, names = _quantized_modules(model), model.headers.keys()
    exact = {f"{module}.weight" for module in modules}
    if missing := exact - names:
        bare = {f"{module.partition('.')[2]}.weight" for module in modules}
        if bare <= names:
            return bare
        raise Permanent(
            FaultCode.UNKNOWN_LAYOUT,
            OPERATION,
            f"{len(missing)} linear layers of the model are stored under other names, for example {min(missing)}",
            'set merge.base to "original"',
            path=model.path,
        )
    return exact


def round_trip(model: ModelFolder, name: str, *, double: bool) -> Source:
    """Return the values of a stored tensor after a load in 4 bits; `double` as with bnb_4bit_use_double_quant."""
    info = model.headers[name]
    stored = StoredSource(name, model.path_of(info), info)
    if not model.uses_conv1d:
        return RoundTripSource(stored, double=double)
    # bitsandbytes packs the transpose of a Conv1D weight.
    return TransposedSource(RoundTripSource(TransposedSource(stored), double=double))
