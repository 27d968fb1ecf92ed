"""The plan: one ordered table of stages with what each needs. Light, since the daemon reads it too.

A stage *needs* the stages whose output it reads, and comes *after* those that must have ended, well or badly,
before it makes sense. Memory and disk are estimated from the base's headers before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable

from daemon.contract.stages import MIB, ModelSize, StageSpec
from daemon.contract.variants import VARIANT_STAGES

__all__ = [
    "BY_NAME",
    "QUANTIZED",
    "STAGES",
    "VARIANTS",
    "ModelSize",
    "StageSpec",
    "effective_variants",
    "fallback",
    "plan",
    "stage_names",
    "unquantized",
]

_MERGE = (
    StageSpec(
        "merge", "handlers.merge.stage:run", 3,
        about="the adapter's deltas fused into the base's weights", memory_fixed=512 * MIB, disk_stored=1.0, resumable=True,
        settings=("merge",), libraries=("torch", "peft", "safetensors", "bitsandbytes"),
    ),
)  # fmt: skip

VARIANTS: tuple[str, ...] = tuple(spec.name for spec in VARIANT_STAGES)

_REST = (
    StageSpec(
        "validate", "handlers.validate.stage:run", 5, needs=("merge",), after=VARIANTS,
        about="every artifact run and compared with the live base + adapter", memory_fixed=1200 * MIB, memory_fp32=2.5,
        disk_fixed=256 * MIB,  # logits that an interrupted attempt leaves for the next one
        resumable=True,
        settings=("export.variants", "export.quantization", "validation"),
        libraries=("torch", "transformers", "peft", "sentencepiece", "onnxruntime", "bitsandbytes"),
    ),
    StageSpec(
        "report", "handlers.report.stage:run", 2, after=("merge", *VARIANTS, "validate"),
        about="report.json, report.html and README.md",
        memory_fixed=0,  # always admitted: what failed for want of memory must be reported too
        heavy=False, threads=1,
    ),
)  # fmt: skip

STAGES: tuple[StageSpec, ...] = (*_MERGE, *VARIANT_STAGES, *_REST)
BY_NAME: dict[str, StageSpec] = {spec.name: spec for spec in STAGES}
QUANTIZED: dict[tuple[str, str], str] = {spec.form: spec.name for spec in STAGES if spec.form}
"""(format, level) → its quantized form."""


_FALLBACKS = {
    "onnx-int4": "onnx-int8-weight", "onnx-int8": "onnx-int8-weight", "onnx-int8-static": "onnx-int8-weight",
    "onnx-int8-weight": "onnx-fp16", "onnx-fp16": "onnx", "onnx-activations-int8": "onnx-activations-fp16",
    "onnx-activations-fp16": "onnx-activations", "onnx-genai-int4": "onnx-genai-fp16", "onnx-genai-fp16": "onnx-genai-fp32",
}  # fmt: skip


def effective_variants(variants: Iterable[str], quantization: str) -> tuple[str, ...]:
    """The variants that are published, in plan order, once the quantization level is applied."""
    chosen = set(variants)
    if quantization == "none":
        chosen -= {name for (_, level), name in QUANTIZED.items() if level != "fp16"}
    elif quantization:
        chosen |= {QUANTIZED[name, quantization] for name in chosen if (name, quantization) in QUANTIZED}
    return tuple(name for name in VARIANTS if name in chosen)


def unquantized(variant: str) -> str | None:
    """The variant that a quantized one was made of; None for one that is not quantized."""
    form = BY_NAME[variant].form if variant in BY_NAME else None
    return form[0] if form else None


def fallback(variant: str) -> str | None:
    """The next less quantized form to take where this one is not exact enough; None where there is none."""
    return _FALLBACKS.get(variant)


def plan(variants: Iterable[str]) -> tuple[StageSpec, ...]:
    """The stages that make `variants`, in an order in which each follows what it needs.

    Raises KeyError for a name that the table does not hold.
    """
    wanted = {"merge", "validate", "report"}
    queue = list(variants)
    while queue:
        name = queue.pop()
        wanted.add(name)
        queue.extend(need for need in BY_NAME[name].needs if need not in wanted)
    return tuple(spec for spec in STAGES if spec.name in wanted)


def stage_names(variants: Iterable[str], quantization: str = "") -> list[str]:
    """Names of the stages that make `variants` once the quantization level is applied, in plan order."""
    return [spec.name for spec in plan(effective_variants(variants, quantization))]
