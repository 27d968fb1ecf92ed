"""The stages `pytorch-bnb-int8` and `pytorch-bnb-nf4`: the linear layers as bitsandbytes packs them, which transformers loads by itself.

Run by `handlers.__main__` after the merge. One matrix is in memory at a time. Its values are packed by bitsandbytes' own functions and
written in the layout that `save_pretrained` gives a model that was loaded with the same `quantization_config`, byte for byte. That way
itself is not taken: it needs the whole model in memory, and on processors with AVX512-BF16 the first forward pass repacks 4-bit weights, so
that what is saved afterwards is garbage. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import warn_of_little
from handlers.merge.plan.output_layout import Output
from handlers.models.folder import ModelFolder
from handlers.pytorch.quantize.half import said
from handlers.pytorch.quantize.linears import Linear, find, working_dtype
from handlers.pytorch.quantize.source import Merged, limit
from handlers.pytorch.quantize.writing import WeightFiles, declared
from handlers.pytorch.stage import surround

BLOCK = 64
"""Weights of nf4 that share a scale, as transformers has it."""
DEFAULTS = {
    "llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False, "llm_int8_skip_modules": None, "llm_int8_threshold": 6.0,
    "bnb_4bit_quant_storage": "uint8", "bnb_4bit_use_double_quant": False, "quant_method": "bitsandbytes",
}  # fmt: skip
KERNEL = 32
"""What bitsandbytes' 4-bit kernel for AVX512-BF16 asks a layer's outputs to be divisible by."""
LITTLE = 0.5
"""Share of quantized weights below which it is worth a warning."""
STAYS = "embeddings, experts or of another kind that stays in 16 bits"
READERS = {"transformers": "5", "transformers_why": "quantized folders were not read with transformers 4"}
"""The oldest release that was tried, in the place of what is known of folders that are not quantized."""
Parts = Iterator[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Form:
    """One of the two: what config.json says, and the tensors that take a weight's place."""

    variant: str
    config: dict[str, Any]
    declare: Callable[[Linear, torch.dtype], list[Output]]
    pack: Callable[[Linear, torch.Tensor], Parts]
    from_dtype: torch.dtype | None = None
    """What bitsandbytes packs from; None for the working dtype."""


def int8(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `pytorch-bnb-int8`."""
    config = {"load_in_8bit": True, "load_in_4bit": False, "bnb_4bit_compute_dtype": "float32", "bnb_4bit_quant_type": "fp4"}
    return quantize(context, reporter, Form("pytorch-bnb-int8", config, _declare_int8, _pack_int8, torch.float16))


def nf4(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `pytorch-bnb-nf4`."""
    dtype = str(working_dtype(ModelFolder(Path(context.inputs["merge"])))).removeprefix("torch.")
    config = {"load_in_8bit": False, "load_in_4bit": True, "bnb_4bit_compute_dtype": dtype, "bnb_4bit_quant_type": "nf4"}
    return quantize(context, reporter, Form("pytorch-bnb-nf4", config, _declare_nf4, _pack_nf4))


def quantize(context: StageContext, reporter: Reporter, form: Form) -> StageOutput:
    """Pack the linear layers of the merged model into the staging folder, with the other files of a model's folder.

    Permanent where no layer can be found to pack, or where a weight is too large for the 16 bits of the rest.
    """
    model, staging = ModelFolder(Path(context.inputs["merge"])), Path(context.staging)
    reporter.progress(0.02, "finding the linear layers")
    linears = find(model, form.variant).quantized
    merged = Merged(model, working_dtype(model), form.variant)
    tensors: list[Output] = []
    for name in model.headers:
        tensors += form.declare(linears[name], merged.dtype) if name in linears else [merged.declare(name)]
    with WeightFiles(staging, tensors, limit(context)) as files:
        done = 0
        for name, info in model.headers.items():
            reporter.progress(0.05 + 0.85 * done / model.stored_bytes, f"packing {name}")
            if name in linears:
                exact = merged.whole(name)
                weight = exact.T.contiguous() if linears[name].transposed else exact
                rounded = merged.round(name, weight)
                for part, values in form.pack(linears[name], merged.fitting(name, rounded, form.from_dtype or merged.dtype)):
                    files.put(part, values)
            else:
                merged.copy(name, files)
            done += info.size
    reporter.progress(0.9, "copying tokenizer and chat template")
    output = finished(context, merged, linears, files.size, {**DEFAULTS, **form.config})
    odd = [linear.module for linear in linears.values() if linear.outputs % KERNEL]
    if odd and form.variant == "pytorch-bnb-nf4":
        output.warnings.append(
            f"on CPUs with AVX512-BF16, bitsandbytes can't run {len(odd)} layers whose outputs {KERNEL} does not divide, for example"
            f" {odd[0]}; GPUs and other CPUs can"
        )
    return output


def finished(context: StageContext, merged: Merged, layers: Collection[str], size: int, config: dict[str, Any]) -> StageOutput:
    """Put the files beside the weights of a quantized form, and return its figures and warnings.

    `layers`: names of the merged weights that were quantized; `size`: bytes of what was written; `config`: quantization_config.
    """
    model, dtype = merged.model, str(merged.dtype).removeprefix("torch.")
    output = surround(context, model, {**said(model, dtype), "quantization_config": config})
    elements = sum(model.headers[name].elements for name in layers)
    output.figures = {
        "weight_bytes": size, "size_ratio_to_merged": round(size / model.stored_bytes, 4), "dtype": dtype,
        "quantized_layers": len(layers), "quantized_share": round(elements / model.parameters, 4), **output.figures, **READERS,
    }  # fmt: skip
    output.warnings += warn_of_little(output.figures["quantized_share"], STAYS, LITTLE)
    return output


def _stem(layer: Linear) -> str:
    return layer.tensor.removesuffix("weight")


def _declare_int8(layer: Linear, dtype: torch.dtype) -> list[Output]:
    return [
        declared(layer.tensor, torch.int8, (layer.outputs, layer.inputs)),
        declared(f"{_stem(layer)}SCB", torch.float32, (layer.outputs,)),
        declared(f"{_stem(layer)}weight_format", torch.uint8, ()),
    ]


def _pack_int8(layer: Linear, weight: torch.Tensor) -> Parts:
    """Rows in int8 with a scale each; `weight_format` 0 says that they lie in rows."""
    from bitsandbytes import functional

    values, scales, _ = functional.int8_vectorwise_quant(weight)
    yield layer.tensor, values
    yield f"{_stem(layer)}SCB", scales
    yield f"{_stem(layer)}weight_format", torch.tensor(0, dtype=torch.uint8)


def _state(layer: Linear, dtype: torch.dtype) -> torch.Tensor:
    """What bitsandbytes must know to unpack a weight, as JSON in a tensor of bytes."""
    from bitsandbytes.utils import pack_dict_to_tensor

    name = str(dtype).removeprefix("torch.")
    state: torch.Tensor = pack_dict_to_tensor(
        {"quant_type": "nf4", "blocksize": BLOCK, "dtype": name, "shape": (layer.outputs, layer.inputs)}
    )
    return state


def _declare_nf4(layer: Linear, dtype: torch.dtype) -> list[Output]:
    elements = layer.outputs * layer.inputs
    return [
        declared(layer.tensor, torch.uint8, (-(-elements // 2), 1)),
        declared(f"{layer.tensor}.absmax", torch.float32, (-(-elements // BLOCK),)),
        declared(f"{layer.tensor}.quant_map", torch.float32, (16,)),
        declared(f"{layer.tensor}.quant_state.bitsandbytes__nf4", torch.uint8, _state(layer, dtype).shape),
    ]


def _pack_nf4(layer: Linear, weight: torch.Tensor) -> Parts:
    """Two weights a byte, blocks of 64 with a scale each, which is not quantized again."""
    from bitsandbytes import functional

    packed, state = functional.quantize_4bit(weight, blocksize=BLOCK, quant_type="nf4")
    yield layer.tensor, packed
    yield f"{layer.tensor}.absmax", state.absmax
    yield f"{layer.tensor}.quant_map", state.code
    yield f"{layer.tensor}.quant_state.bitsandbytes__nf4", _state(layer, weight.dtype)
