"""From adapters (or none) and a base to the outputs of a merge: what base can be used at all, how it is unpacked, what is written instead.

Called by `handlers.merge.api` and `handlers.merge.full_finetune`. Headers and configurations only; torch is imported for bases that are
stored quantized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.name_mapping import NeedsPeft
from handlers.merge.plan.combine import combine
from handlers.merge.plan.matcher import Matched, match
from handlers.merge.plan.output_layout import Output, header_dtype
from handlers.models.files import CONV1D_MODELS, TensorInfo, setting

if TYPE_CHECKING:
    from handlers.merge.weights.sources import Source

UNMERGEABLE_BASES = ("gptq", "awq")


def _quantized(config: dict[str, Any]) -> bool:
    return bool(setting(config, "quantization_config") or config.get("compression_config"))


def refuse_base(config: dict[str, Any], base: Path) -> None:
    """Permanent for a quantized base whose weights can't be brought back."""
    if not _quantized(config):
        return
    from handlers.merge.weights.quantized_base import can_open, method_of

    if not can_open(config):
        method = method_of(config)
        known = "its packed weights can't take a delta" if method in UNMERGEABLE_BASES else "ckptd can't dequantize it"
        raise Permanent(
            FaultCode.QUANTIZED_BASE,
            "merge the adapter",
            f"the base is quantized with {method}: {known}",
            "set the base to the original model in 16 bits that the quantized one was made of",
            path=base,
        )


def refuse_peft(adapter: Path, others: bool, rewritten: bool, reason: str) -> None:
    """Permanent when a merge that has to go through PEFT is to do what only streaming can."""
    if others or rewritten:
        what = (
            "only plain LoRA adapters can be added to one another" if others else "PEFT's way writes the base's own values, dtype and files"
        )
        remedy = "merge the adapters one after another" if others else "leave dtype, size of files and the base's values as they are"
        raise Permanent(
            FaultCode.ADAPTERS_NOT_ADDITIVE if others else FaultCode.NEEDS_PEFT,
            "merge the adapter",
            f"{what}, and {reason}",
            remedy,
            path=adapter,
        )


@dataclass(frozen=True)
class Unpacked:
    """A base as the merge takes it: what its tensors are, and how those are read that can't be taken from their bytes."""

    infos: dict[str, TensorInfo]
    sources: dict[str, Source] = field(default_factory=dict)
    edits: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def _unpack(base: Path, headers: dict[str, TensorInfo], config: dict[str, Any], values: str) -> Unpacked:
    if _quantized(config):
        from handlers.merge.weights.quantized_base import open_base

        opened = open_base(base, headers, config)
        infos = {
            name: replace(headers[name], shape=source.shape, dtype=header_dtype(source.dtype)) for name, source in opened.sources.items()
        }
        packed = {name: source for name, source in opened.sources.items() if name not in opened.unchanged}
        return Unpacked(infos, packed, opened.edits, opened.warnings)
    if values == "original":
        return Unpacked(headers)
    from handlers.merge.weights.nf4_round_trip import quantized_tensors, round_trip
    from handlers.merge.weights.sources import StoredSource

    turned = config.get("model_type") in CONV1D_MODELS
    names = quantized_tensors(base, headers)
    stored = {name: StoredSource(name, base / headers[name].file, headers[name]) for name in names}
    double = values == "dequantized-double"
    sources = {name: round_trip(source, transposed=turned, double=double) for name, source in stored.items()}
    said = f"{len(names)} tensors of the base were quantized to nf4 and back before the merge, as a QLoRA training sees them"
    return Unpacked(headers, sources, warnings=(said,))


def match_all(
    adapters: Sequence[tuple[Adapter, float]], base: Path, headers: dict[str, TensorInfo], config: dict[str, Any], values: str
) -> Matched:
    """The outputs of the merge, on the base's own values, unpacked where they are stored quantized, or on those that `values` names."""
    if not headers:
        raise NeedsPeft("the base's weights are pickled .bin files")
    unpacked = _unpack(base, headers, config, values)
    matches = [(one, match(one, base, unpacked.infos, config, unpacked.sources), weight) for one, weight in adapters]
    matched = combine(matches) if len(matches) > 1 else matches[0][1]
    matched.edits = {**unpacked.edits, **matched.edits}
    matched.warnings = [*unpacked.warnings, *matched.warnings]
    return matched


def match_none(base: Path, headers: dict[str, TensorInfo], config: dict[str, Any], dtype: str) -> Matched:
    """The outputs of a model without an adapter: all tensors as they are stored, unpacked where `dtype` is to be applied to packed ones.

    Permanent where they can't be unpacked.
    """
    unpacked = Unpacked(headers)
    warnings = []
    if dtype != "base" and _quantized(config):
        from handlers.merge.weights.quantized_base import can_open, method_of

        if not can_open(config):
            cause = f"the checkpoint is quantized with {method_of(config)}, and ckptd can't dequantize it"
            raise Permanent(FaultCode.QUANTIZED_CHECKPOINT, f"write the weights as {dtype}", cause, 'set merge.dtype to "base"', path=base)
        unpacked = _unpack(base, headers, config, "original")
        warnings = [f"the checkpoint is stored quantized: {len(unpacked.sources)} of its tensors were dequantized to {dtype}"]
    sources = unpacked.sources
    outputs = [Output(name, info.file, info.dtype, info.shape, info, source=sources.get(name)) for name, info in unpacked.infos.items()]
    return Matched(outputs, dict(unpacked.edits), warnings)


def rewrite(matched: Matched, base: Path, config: dict[str, Any], dtype: str, shard_bytes: int) -> None:
    """Have the outputs written in another dtype, or in files of another size."""
    if dtype == "base" and not shard_bytes:
        return
    from handlers.merge.plan.output_format import cast, divide

    if dtype != "base":
        matched.outputs = cast(matched.outputs, base, dtype)
        nested = config.get("text_config")
        levels = [config, *([nested] if isinstance(nested, dict) else [])]
        # Older releases say torch_dtype, and models of several parts may say it on one level only.
        stated = [key for key in ("dtype", "torch_dtype") if any(key in level for level in levels)]
        matched.edits.update(dict.fromkeys(stated or ["torch_dtype"], dtype))
    if shard_bytes:
        matched.outputs = divide(matched.outputs, shard_bytes)
