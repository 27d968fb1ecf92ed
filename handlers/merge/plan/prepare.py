"""From a base and adapters, or a model without adapter, to the outputs of a merge: which bases can be used, how they are unpacked, and in
which dtype and files the result is written.

Called by `handlers.merge.api` and `handlers.merge.full_finetune`. Only headers and configurations are read; torch is imported for bases
that are stored quantized.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.options import MergeOptions
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.name_mapping import NeedsPeft
from handlers.merge.adapters.separate_experts import check_separate_experts
from handlers.merge.plan.combine import combine
from handlers.merge.plan.matcher import Matched, match
from handlers.merge.plan.output_layout import Output
from handlers.merge.weights.unpacked_base import UnpackedBase, can_unpack, method_of, quantization
from handlers.models.folder import ModelFolder

UNMERGEABLE_BASES = ("gptq", "awq")


def refuse_base(base: ModelFolder) -> None:
    """Raise Permanent for a quantized base that can't be dequantized."""
    if not can_unpack(base):
        method = method_of(base)
        known = "a delta can't be added to its packed weights" if method in UNMERGEABLE_BASES else "ckptd can't dequantize it"
        raise Permanent(
            FaultCode.QUANTIZED_BASE,
            "merge the adapter",
            f"the base is quantized with {method}: {known}",
            "set the base to the original model in 16 bits that the quantized one was made from",
            path=base.path,
        )


def refuse_peft(adapter: Path, options: MergeOptions, reason: str, *, several: bool) -> None:
    """Permanent when a merge that PEFT has to do for `reason` is asked for what only streaming can do. `several`: adapters are added up, or
    one is weighed.
    """
    if several:
        code, what = FaultCode.ADAPTERS_NOT_ADDITIVE, "only plain LoRA adapters can be combined or used with a factor"
        remedy = "leave merge.add and merge.weight out"
    elif (options.dtype, options.max_shard_size, options.base) != ("base", None, "original"):
        code, what = FaultCode.NEEDS_PEFT, "a merge by PEFT writes the base's own values, dtype and files"
        remedy = "leave merge.dtype, merge.max_shard_size and merge.base at their defaults"
    else:
        return
    raise Permanent(code, "merge the adapter", f"{what}, and {reason}", remedy, path=adapter)


def _unpacked(base: ModelFolder, values: str) -> UnpackedBase:
    """Return the base's tensors; `values` is `merge.base` of the options, which has no effect on a base that is stored quantized."""
    if quantization(base):
        from handlers.merge.weights.quantized_base import unpack

        return unpack(base)
    if values == "original":
        return UnpackedBase(base, base.headers)
    from handlers.merge.weights.nf4_round_trip import quantized_tensors, round_trip

    names = quantized_tensors(base)
    sources = {name: round_trip(base, name, double=values == "dequantized-double") for name in names}
    said = f"{len(names)} tensors of the base were quantized to nf4 and back before the merge, since a QLoRA training sees them so"
    return UnpackedBase(base, base.headers, sources, warnings=(said,))


def match_all(adapters: Sequence[tuple[Adapter, float]], base: ModelFolder, values: str) -> Matched:
    """Return the outputs of the merge of adapters, each with its weight, into the base's values that `values` (`merge.base`) names.

    Raises NeedsPeft for what streaming does not support, and Permanent where base and adapter can't be merged.
    """
    for adapter, _ in adapters:
        check_separate_experts(adapter, base)
    if base.pickled:
        raise NeedsPeft("the base's weights are pickled .bin files")
    unpacked = _unpacked(base, values)
    matches = [(adapter, match(adapter, unpacked), weight) for adapter, weight in adapters]
    matched = combine(matches) if len(matches) > 1 or matches[0][2] != 1 else matches[0][1]
    matched.edits = {**unpacked.edits, **matched.edits}
    matched.warnings = [*unpacked.warnings, *matched.warnings]
    return matched


def match_none(model: ModelFolder, dtype: str) -> Matched:
    """The outputs of a model without an adapter: all tensors as they are stored, dequantized where `dtype` is to be applied to packed ones.

    Permanent where they can't be dequantized.
    """
    unpacked, warnings = UnpackedBase(model, model.headers), []
    if dtype != "base" and quantization(model):
        if not can_unpack(model):
            cause = f"the checkpoint is quantized with {method_of(model)}, and ckptd can't dequantize it"
            raise Permanent(
                FaultCode.QUANTIZED_CHECKPOINT, f"write the weights as {dtype}", cause, 'set merge.dtype to "base"', path=model.path
            )
        unpacked = _unpacked(model, "original")
        warnings = [f"the checkpoint is stored quantized: {len(unpacked.sources)} of its tensors were dequantized to {dtype}"]
    sources = unpacked.sources
    outputs = [Output(name, info.file, info.dtype, info.shape, info, source=sources.get(name)) for name, info in unpacked.tensors.items()]
    return Matched(outputs, dict(unpacked.edits), warnings)


def apply_format(matched: Matched, model: ModelFolder, options: MergeOptions) -> None:
    """Change the outputs to the dtype and the size of files that the options name, where they name any."""
    from handlers.merge.plan.output_format import cast, divide

    if options.dtype != "base":
        matched.outputs = cast(matched.outputs, model, options.dtype)
        nested = model.config.get("text_config")
        levels = [model.config, *([nested] if isinstance(nested, dict) else [])]
        # Older releases say torch_dtype, and models of several parts may say it on one level only.
        stated = [key for key in ("dtype", "torch_dtype") if any(key in level for level in levels)]
        matched.edits.update(dict.fromkeys(stated or ["torch_dtype"], options.dtype))
    if options.max_shard_size:
        matched.outputs = divide(matched.outputs, int(options.max_shard_size))
