"""What a base holds, whatever form it is stored in: one source for each tensor that the merged model gets from it.

Called by `handlers.merge.api`. The configuration tells how the base was quantized, the headers which tensors were; the parts that
only unpack others (maxima, scales, tables) do not appear. Nothing but headers and a few notes is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.weights.dequantize import FLOATS, EightBitSource, FourBitSource, Parts, ScaledFp8Source, TurnedSource, damaged
from handlers.merge.weights.sources import CastSource, Source, StoredSource
from handlers.models.files import CONV1D_MODELS, TensorInfo, setting

FP8 = ("F8_E4M3", "F8_E5M2")
_STATE = ".quant_state.bitsandbytes__"
_FOUR_BIT = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", f"{_STATE}nf4", f"{_STATE}fp4")
_EIGHT_BIT = ("SCB", "weight_format")
_FP8_SCALES = ("_scale_inv", "_scale")
_FP8_INPUTS = ("input_scale", "activation_scale", "input_scale_ub")
_FP8_METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors")


@dataclass(frozen=True)
class OpenedBase:
    """The tensors of a base; `sources` in the order of the headers."""

    sources: dict[str, Source]
    files: dict[str, str]
    """Tensor → file of the base that holds it."""
    unchanged: frozenset[str]
    """Tensors that are written as they are stored, so that their bytes can be copied."""
    edits: dict[str, Any] = field(default_factory=dict)
    """Keys of config.json that have to change; None removes one."""
    warnings: tuple[str, ...] = ()


def method_of(config: Mapping[str, Any]) -> str | None:
    """How the base was quantized, as config.json says: "bitsandbytes", "fp8", "gptq"…; None when it was not."""
    quantization = setting(config, "quantization_config") or config.get("compression_config")
    if not quantization:
        return None
    if not isinstance(quantization, dict):
        return "unknown"
    legacy = "bitsandbytes" if "load_in_4bit" in quantization or "load_in_8bit" in quantization else "unknown"
    return str(quantization.get("quant_method") or legacy).lower()


def can_open(config: Mapping[str, Any]) -> bool:
    """Whether `open_base` knows how the base was quantized, if it was."""
    method = method_of(config)
    if method != "compressed-tensors":
        return method in (None, "bitsandbytes", *_FP8_METHODS)
    quantization = setting(config, "quantization_config") or config.get("compression_config") or {}
    return quantization.get("format") in ("float-quantized", "naive-quantized")


def written_dtype(config: Mapping[str, Any], headers: Mapping[str, TensorInfo]) -> torch.dtype:
    """The dtype of a dequantized model: config.json's, else that of most bytes that are not packed, else bf16."""
    name = str(setting(config, "dtype") or setting(config, "torch_dtype") or "").removeprefix("torch.")
    if name in FLOATS:
        return FLOATS[name]
    sizes = {"F16": 0, "BF16": 1}  # of equals bf16, which can't overflow
    for tensor, info in headers.items():
        if info.dtype in sizes and not tensor.endswith((".absmax", "_scale", "_scale_inv")):
            sizes[info.dtype] += info.size
    return torch.float16 if sizes["F16"] > sizes["BF16"] else torch.bfloat16


def open_base(folder: Path, headers: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> OpenedBase:
    """The base in `folder`, whose tensors' headers and config.json are given.

    Permanent when packed weights are damaged, or packed in a way that is not known.
    """
    method = method_of(config)
    if not can_open(config):
        raise Permanent(
            FaultCode.QUANTIZED_BASE, "open the base", f"it is quantized with {method}, which can't be dequantized here",
            "set the base to the original model in 16 bits that the quantized one was made of", path=folder,
        )  # fmt: skip
    parts = Parts(folder, headers)
    if method is None:
        return _result(parts, {}, set(), {}, ())
    dtype = written_dtype(config, headers)
    packed, dropped = (_bitsandbytes if method == "bitsandbytes" else _fp8)(parts, config, dtype)
    _check_left(parts, packed, dropped, method)
    name = str(dtype).removeprefix("torch.")
    edits: dict[str, Any] = {"quantization_config": None, "dtype" if "dtype" in config else "torch_dtype": name}
    if "compression_config" in config:
        edits["compression_config"] = None
    warning = f"the base is stored quantized ({method}): {len(packed)} of its tensors were dequantized to {name} before the merge"
    return _result(parts, packed, dropped, edits, (warning,))


def _result(parts: Parts, packed: dict[str, Source], dropped: set[str], edits: dict[str, Any], warnings: tuple[str, ...]) -> OpenedBase:
    names = [name for name in parts.headers if name not in dropped]
    sources = {name: packed.get(name) or StoredSource(name, parts.path(name), parts.headers[name]) for name in names}
    files = {name: parts.headers[name].file for name in names}
    return OpenedBase(sources, files, frozenset(names) - packed.keys(), edits, warnings)


def _bitsandbytes(parts: Parts, config: Mapping[str, Any], dtype: torch.dtype) -> tuple[dict[str, Source], set[str]]:
    """Packed tensors and the names of their parts; those of models with Conv1D lie transposed, as bitsandbytes wants it."""
    packed: dict[str, Source] = {}
    dropped: set[str] = set()
    turn = config.get("model_type") in CONV1D_MODELS
    for name in parts.headers:
        stem, found, _ = name.partition(_STATE)
        if found and stem in parts.headers:
            packed[stem] = FourBitSource(parts, stem, name, dtype)
            dropped.update(f"{stem}{suffix}" for suffix in _FOUR_BIT)
        elif name.endswith(".SCB") and f"{name.removesuffix('SCB')}weight" in parts.headers:
            weight = f"{name.removesuffix('SCB')}weight"
            packed[weight] = EightBitSource(parts, weight, dtype)
            dropped.update(f"{name.removesuffix('SCB')}{suffix}" for suffix in _EIGHT_BIT)
    return {name: TurnedSource(source) if turn else source for name, source in packed.items()}, dropped & parts.headers.keys()


def _fp8(parts: Parts, config: Mapping[str, Any], dtype: torch.dtype) -> tuple[dict[str, Source], set[str]]:
    """Tensors in fp8 and the names of their scales. One without a scale is taken as it is."""
    quantization = setting(config, "quantization_config") or config.get("compression_config") or {}
    size = quantization.get("weight_block_size")
    tile = (int(size[0]), int(size[1])) if isinstance(size, list) and len(size) == 2 else None
    packed: dict[str, Source] = {}
    dropped: set[str] = set()
    for name, info in parts.headers.items():
        if info.dtype not in FP8:
            continue
        scale = next((f"{name}{suffix}" for suffix in _FP8_SCALES if f"{name}{suffix}" in parts.headers), None)
        if scale is None:
            packed[name] = CastSource(StoredSource(name, parts.path(name), info), dtype)
            continue
        packed[name] = ScaledFp8Source(parts, name, scale, dtype, tile)
        stem = name.rpartition(".")[0]
        dropped.update({scale, *(f"{stem}.{suffix}" for suffix in _FP8_INPUTS)})
    return packed, dropped & parts.headers.keys()


def _check_left(parts: Parts, packed: Mapping[str, Source], dropped: set[str], method: str) -> None:
    """Permanent when something packed was not recognized: written as it is, the model would be garbage."""
    for name, info in parts.headers.items():
        if name in dropped or name in packed:
            continue
        if info.dtype in ("U8", "I8", *FP8) or name.endswith(("_scale_inv", ".SCB", ".absmax", "_zero_point")):
            raise damaged(parts.path(name), f"{name} ({info.dtype}) belongs to no packed tensor that is known from {method}")
