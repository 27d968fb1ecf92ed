"""Unpacking a base that is stored quantized: which of its tensors are packed, and how each of them is read.

Called by `handlers.merge.plan.prepare`. The configuration says how the base was quantized, the headers which tensors were; tensors that
only serve to unpack others (maxima, scales, tables) are left out. Only headers and a few small tensors are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.weights.dequantize import (
    FLOATS,
    EightBitSource,
    FourBitSource,
    ScaledFp8Source,
    TransposedSource,
    damaged,
)
from handlers.merge.weights.unpacked_base import UnpackedBase, can_unpack, header_dtype, method_of, quantization
from handlers.models.files import Edits
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import CastSource, Source, StoredSource, torch_dtype

FP8 = ("F8_E4M3", "F8_E5M2")
_STATE = ".quant_state.bitsandbytes__"
_FOUR_BIT = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", f"{_STATE}nf4", f"{_STATE}fp4")
_EIGHT_BIT = ("SCB", "weight_format")
_FP8_SCALES = ("_scale_inv", "_scale")
_FP8_INPUTS = ("input_scale", "activation_scale", "input_scale_ub")


def _written_dtype(model: ModelFolder) -> torch.dtype:
    """Return the dtype of a dequantized model: config.json's, else that of most bytes that are not packed, else bf16."""
    name = str(model.setting("dtype") or model.setting("torch_dtype") or "").removeprefix("torch.")
    if name in FLOATS:
        return FLOATS[name]
    sizes = {"F16": 0, "BF16": 1}  # of equals bf16, which can't overflow
    for tensor, info in model.headers.items():
        if info.dtype in sizes and not tensor.endswith((".absmax", "_scale", "_scale_inv")):
            sizes[info.dtype] += info.size
    return torch.float16 if sizes["F16"] > sizes["BF16"] else torch.bfloat16


def unpack(model: ModelFolder) -> UnpackedBase:
    """Return a base that is stored quantized, with a source for each packed tensor.

    Permanent when packed weights are damaged, or packed in a way that is not known.
    """
    method = method_of(model)
    if method is None or not can_unpack(model):
        raise Permanent(
            FaultCode.QUANTIZED_BASE, "open the base", f"it is quantized with {method}, which can't be dequantized here",
            "set the base to the original model in 16 bits that the quantized one was made from", path=model.path,
        )  # fmt: skip
    dtype = _written_dtype(model)
    packed, dropped = (_bitsandbytes if method == "bitsandbytes" else _fp8)(model, dtype)
    _check_left(model, packed, dropped, method)
    name = str(dtype).removeprefix("torch.")
    edits: Edits = {"quantization_config": None, "dtype" if "dtype" in model.config else "torch_dtype": name}
    if "compression_config" in model.config:
        edits["compression_config"] = None
    warning = f"the base is stored quantized ({method}): {len(packed)} of its tensors were dequantized to {name} before the merge"
    tensors = {name: info for name, info in model.headers.items() if name not in dropped}
    sources = {name: source for name, source in packed.items() if name in tensors}
    for name, source in sources.items():
        tensors[name] = replace(tensors[name], shape=source.shape, dtype=header_dtype(source.dtype))
    return UnpackedBase(model, tensors, sources, edits, (warning,))


def _bitsandbytes(model: ModelFolder, dtype: torch.dtype) -> tuple[dict[str, Source], set[str]]:
    """Return the sources of the packed tensors, and the names of the tensors that serve to unpack them."""
    packed: dict[str, Source] = {}
    dropped: set[str] = set()
    headers = model.headers
    for name in headers:
        stem, marker, _ = name.partition(_STATE)
        if marker and stem in headers:
            packed[stem] = FourBitSource(model, stem, name, dtype)
            dropped.update(f"{stem}{suffix}" for suffix in _FOUR_BIT)
        elif name.endswith(".SCB") and f"{name.removesuffix('SCB')}weight" in headers:
            weight = f"{name.removesuffix('SCB')}weight"
            packed[weight] = EightBitSource(model, weight, dtype)
            dropped.update(f"{name.removesuffix('SCB')}{suffix}" for suffix in _EIGHT_BIT)
    if model.uses_conv1d:  # of whose weights bitsandbytes packs the transpose
        packed = {name: TransposedSource(source) for name, source in packed.items()}
    return packed, dropped & headers.keys()


def _fp8(model: ModelFolder, dtype: torch.dtype) -> tuple[dict[str, Source], set[str]]:
    """Return the sources of the tensors in fp8, and the names of their scales. One without a scale is taken as it is."""
    size = quantization(model).get("weight_block_size")
    tile = (int(size[0]), int(size[1])) if isinstance(size, list) and len(size) == 2 else None
    packed: dict[str, Source] = {}
    dropped: set[str] = set()
    headers = model.headers
    for name, info in headers.items():
        if info.dtype not in FP8:
            continue
        scale = next((f"{name}{suffix}" for suffix in _FP8_SCALES if f"{name}{suffix}" in headers), None)
        if scale is None:
            packed[name] = CastSource(StoredSource(name, model.path_of(info), info), dtype)
            continue
        packed[name] = ScaledFp8Source(model, name, scale, dtype, tile)
        stem = name.rpartition(".")[0]
        dropped.update({scale, *(f"{stem}.{suffix}" for suffix in _FP8_INPUTS)})
    return packed, dropped & headers.keys()


def _check_left(model: ModelFolder, packed: Mapping[str, Source], dropped: set[str], method: str) -> None:
    """Raise Permanent when something packed was not recognized: written as it is, the model would be garbage."""
    for name, info in model.headers.items():
        if name in dropped or name in packed:
            continue
        path = model.path_of(info)
        if info.dtype in ("U8", "I8", *FP8) or name.endswith(("_scale_inv", ".SCB", ".absmax", "_zero_point")):
            raise damaged(path, f"{name} ({info.dtype}) belongs to no packed tensor that is known from {method}")
        torch_dtype(info.dtype, path)  # Permanent for a packed format of which torch has no dtype
