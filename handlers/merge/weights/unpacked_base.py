"""The tensors of a base as the merge uses them, and whether a base that is stored quantized can be unpacked at all.

Made by `handlers.merge.plan.prepare`. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from daemon.contract.models.safetensors import DTYPES, TensorInfo
from handlers.models.files import Edits
from handlers.models.folder import ModelFolder

if TYPE_CHECKING:
    from handlers.tensors.sources import Source

FP8_METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors")


@dataclass(frozen=True)
class UnpackedBase:
    """The tensors of a model, with the shape and dtype that they have once they are unpacked."""

    model: ModelFolder
    tensors: Mapping[str, TensorInfo]
    """In the order of the headers. The model's own headers where nothing has to be unpacked."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """How those tensors are read whose values are not their stored bytes."""
    edits: Edits = field(default_factory=dict)
    """Keys of config.json that have to change; None removes one."""
    warnings: tuple[str, ...] = ()


def header_dtype(dtype: object) -> str:
    """Return the name in a safetensors header of one of torch's dtypes."""
    wanted = str(dtype).removeprefix("torch.")
    return next(name for name, (value, _) in DTYPES.items() if value == wanted)


def quantization(model: ModelFolder) -> Any:
    """Return what config.json says about a quantization; None or empty for a model that is not quantized."""
    return model.setting("quantization_config") or model.config.get("compression_config")


def method_of(model: ModelFolder) -> str | None:
    """Return how the model was quantized, as config.json says: "bitsandbytes", "fp8", "gptq"…; None when it was not."""
    stated = quantization(model)
    if not stated:
        return None
    if not isinstance(stated, dict):
        return "unknown"
    legacy = "bitsandbytes" if "load_in_4bit" in stated or "load_in_8bit" in stated else "unknown"
    return str(stated.get("quant_method") or legacy).lower()


def can_unpack(model: ModelFolder) -> bool:
    """Return whether the model is stored in full precision or quantized in a way that `quantized_base.unpack` knows."""
    method = method_of(model)
    if method != "compressed-tensors":
        return method in (None, "bitsandbytes", *FP8_METHODS)
    return quantization(model).get("format") in ("float-quantized", "naive-quantized")
