"""The live model's base on other values: as it is stored, or packed into 4 bits as a QLoRA training had it.

Called by the live model's engines for `merge.base` and for `validate.bases`. transformers packs the base as it does for whoever trains with
`BitsAndBytesConfig`: it decides which layers, and bitsandbytes what becomes of them. Nothing of it is the merge's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import Source

_OPERATION = "give the live model the base that was merged into"
BLOCK, OUTER_BLOCK = 64, 256
"""Values that share a scale in a training, and scales that share one; transformers knows no others."""
UNROUNDED = (
    "The base is stored in int8 by bitsandbytes, whose layers round their inputs to int8 too: the live model was run with the weights that"
    " transformers' dequantize() gives, and without that rounding."
)
CHUNK = 1 << 22
"""Elements that are packed at once."""


def packing(values: str) -> BitsAndBytesConfig:
    """Give how a base is loaded for a training in 4 bits; `values` as `merge.base` names them."""
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=values == "dequantized-double",
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip


def without_int8(model: Any) -> tuple[Any, tuple[str, ...]]:
    """Give a base that was loaded, and what is to be told of it, in sentences. One that is stored in int8 by bitsandbytes (LLM.int8) is
    unpacked by transformers' own `dequantize`, since its layers round their inputs to int8 too, which no merged model does."""
    if not getattr(model, "is_loaded_in_8bit", False):
        return model, ()
    model = model.dequantize(dtype=torch.float32)
    return model, (UNROUNDED,)


class Rebasing:
    """Other values for the layers of a base that PEFT has wrapped."""

    def __init__(self, model: Any, again: Callable[..., Any], base: Path) -> None:
        """`model` is the base before PEFT wraps it, `again` loads it once more, with other settings."""
        self._parameters: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        self._again, self._base = again, base
        self._before = {name: _sample(value) for name, value in self._parameters.items()}
        self._packed: set[str] = set()
        self.obstacle: str | None = None
        """Why the base can't be exchanged, as a clause."""

    def note_changes(self, held: Container[str]) -> None:
        """Called when PEFT has loaded the adapter, whose file has the weights `held` whole: some initializers change the base then."""
        for name, value in self._parameters.items():
            if name not in held and not torch.equal(_sample(value), self._before[name]):
                self.obstacle = f"PEFT computes with the base's weights when it loads this adapter: its initializer changed {name}"
                break
        self._before.clear()

    def take(self, values: str) -> int:
        """Give the base the values that `merge.base` names; the number of tensors that were set.

        Permanent where transformers packs no layer of the base, or PEFT has already computed with its weights.
        """
        cause, names = self.obstacle, set[str]()
        if cause is None:
            for name, exact in self._stored() if values == "original" else _unpacked(self._packed_by_transformers(values)):
                self._parameters[name].data = exact  # not copied into the old memory, which may be the base's file
                names.add(name)
            if not names and values != "original":
                cause = "transformers packs none of its layers when it loads it in 4 bits"
        if cause:
            raise Permanent(FaultCode.UNKNOWN_LAYOUT, _OPERATION, cause, 'set merge.base to "original"', path=self._base)
        self._packed = names
        return len(names)

    def _packed_by_transformers(self, values: str) -> Any:
        return self._again(dtype=_training_dtype(self._base), quantization_config=packing(values), device_map="cpu")

    def _stored(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and values of what was packed, as it is stored."""
        stored = dict(self._again(dtype="auto").named_parameters()) if self._packed else {}
        for name in self._packed:
            yield name, stored.pop(name).detach().float()


def _sample(value: torch.Tensor) -> torch.Tensor:
    """Give some values by which a change of all of them shows; a placeholder's are not a number."""
    flat = value.detach().reshape(-1) if value.is_contiguous() else value.detach()[(0,) * value.dim()].reshape(1)
    return flat[:: max(1, flat.numel() // 64)].nan_to_num().clone()


def _training_dtype(base: Path) -> torch.dtype:
    """Give what a base is loaded in before it is packed: 16 bits, bf16 where it is stored in 32."""
    stored = None if (model := ModelFolder(base)).pickled else model.main_dtype
    return torch.float16 if stored == "float16" else torch.bfloat16


def _unpacked(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and values in fp32 of each weight that transformers has packed; the packed one goes."""
    from bitsandbytes import functional
    from bitsandbytes.nn import modules

    layers: list[tuple[str, Any]] = [(name, module) for name, module in model.named_modules() if isinstance(module, modules.Linear4bit)]
    for name, module in layers:
        state = getattr(module.weight, "quant_state", None)
        if state is None:  # the head of a task, which the base's files do not hold
            continue
        # Flat, as it is packed: for the CPU, bitsandbytes 0.50 takes the scales of the wrong blocks where rows are shorter than a block.
        shape, state.shape = state.shape, torch.Size([math.prod(state.shape)])
        values = functional.dequantize_4bit(module.weight.data, state).view(shape)
        # bitsandbytes packs the transpose of a Conv1D weight.
        module.weight = None
        yield f"{name}.weight", (values.T if issubclass(module.source_cls, Conv1D) else values).float().contiguous()


def keep_order(model: Any) -> None:
    """Have bitsandbytes leave the weights of a model that is stored in 4 bits as they lie in memory, and compute in fp32.

    Where the CPU has AVX-512 BF16, it rearranges them at the first pass (bitsandbytes 0.50, `Linear4bit.forward`), for products that round
    to bf16. Methods of PEFT that compute with the weight itself, as DoRA does, then read it in the wrong order: another model than the one
    that was trained, on a GPU or on another CPU.
    """
    if not getattr(model, "is_quantized", False):
        return
    from bitsandbytes.nn import modules

    for module in model.modules():
        if isinstance(module, modules.Linear4bit):
            module.support_avx512bf16_for_cpu = False


def packed_layers(model: Any) -> dict[str, bool]:
    """Give weights that transformers packs where it loads a model of this configuration in 4 bits, and whether it packs the transpose."""
    from bitsandbytes.nn import modules
    from transformers.quantizers.auto import AutoHfQuantizer

    with torch.device("meta"):
        built = type(model)(model.config)
    quantizer: Any = AutoHfQuantizer.from_config(packing("dequantized"), pre_quantized=False)
    quantizer.preprocess_model(model=built, device_map="cpu")
    layers: dict[str, Any] = {name: module for name, module in built.named_modules() if isinstance(module, modules.Linear4bit)}
    return {f"{name}.weight": issubclass(module.source_cls, Conv1D) for name, module in layers.items()}


class PackedSource:
    """A stored tensor after bitsandbytes has packed and unpacked it, for models that are never in memory as a whole.

    The result is that of the whole tensor, which is held in 16 bits while it is read; it is computed in pieces, since the functions of
    bitsandbytes need many times the memory of what they get.
    """

    def __init__(self, source: Source, *, double: bool, transposed: bool) -> None:
        self._source, self._double, self._transposed = source, double, transposed
        self._values: torch.Tensor | None = None
        self.name, self.shape, self.dtype = source.name, source.shape, source.dtype

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """As Source says."""
        if self._values is None:
            self._values = self._computed()
        out.copy_(self._values[first : first + count])
        if first + count == self.shape[0]:
            self._values = None

    def _computed(self) -> torch.Tensor:
        from bitsandbytes import functional

        whole = torch.empty(self.shape, dtype=torch.float16 if self.dtype == torch.float16 else torch.bfloat16)
        self._source.rows(0, self.shape[0], whole)
        values = whole.T.contiguous() if self._transposed else whole
        pieces = values.view(-1).split(CHUNK)
        packed = [functional.quantize_4bit(piece, blocksize=BLOCK, quant_type="nf4") for piece in pieces]
        if self._double:
            scales = torch.cat([state.absmax for _, state in packed])
            offset = scales.mean()
            numbers, outer = functional.quantize_blockwise(scales - offset, blocksize=OUTER_BLOCK)
            scales = functional.dequantize_blockwise(numbers, outer) + offset
            for (_, state), mine in zip(packed, scales.split(CHUNK // BLOCK), strict=True):
                state.absmax = mine
        for piece, (numbers, state) in zip(pieces, packed, strict=True):
            piece.copy_(functional.dequantize_4bit(numbers, state).view(-1))
        return values.T if self._transposed else values
