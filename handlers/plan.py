"""The plan: one ordered table of stages with what each needs. Light, since the daemon reads it too.

A stage *needs* the stages whose output it reads, and comes *after* those that must have ended, well or badly,
before it makes sense. Memory and disk are estimated from the base's headers before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class ModelSize:
    """What the safetensors headers of a model say."""

    stored_bytes: int
    parameters: int

    @property
    def fp32_bytes(self) -> int:
        """Bytes of all parameters in fp32."""
        return 4 * self.parameters


@dataclass(frozen=True)
class StageSpec:
    """One row of the plan.

    Memory is `memory_fixed + memory_fp32 × fp32 bytes`; disk is `disk_fixed + disk_stored × stored bytes + disk_fp32 × fp32 bytes`.
    """

    name: str
    module: str
    """Import path of the module whose `run(context, reporter)` does the work."""
    version: int
    """Raised whenever the stage's output changes for the same input."""
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    artifact: bool = False
    """Its output may be published as a variant."""
    about: str = ""
    memory_fixed: int = 256 * MIB
    memory_fp32: float = 0.0
    disk_stored: float = 0.0
    disk_fp32: float = 0.0
    disk_fixed: int = 0
    resumable: bool = False
    """An interrupted attempt's staging folder is handed to the next one, which goes on in it."""
    threads: int = 0
    """Threads that it can use; 0: any number."""
    heavy: bool = True
    """Runs only inside the export windows of `[schedule]`."""
    settings: tuple[str, ...] = ()
    """Keys of the job's configuration (`export.opset`, …) that its output depends on."""
    libraries: tuple[str, ...] = ()
    """Distributions whose version its output depends on."""
    form: tuple[str, str] | None = None
    """(format, level) where it is a quantized form of another variant: ("onnx", "int8")."""

    def memory(self, size: ModelSize) -> int:
        """Estimated peak resident memory, in bytes."""
        return int(self.memory_fixed + self.memory_fp32 * size.fp32_bytes)

    def disk(self, size: ModelSize) -> int:
        """Estimated bytes written."""
        return int(self.disk_fixed + self.disk_stored * size.stored_bytes + self.disk_fp32 * size.fp32_bytes)


_MERGE = (
    StageSpec(
        "merge", "handlers.merge.stage", 1,
        about="the adapter's deltas fused into the base's weights", memory_fixed=512 * MIB, disk_stored=1.0, resumable=True,
        settings=("merge",), libraries=("torch", "peft", "safetensors", "bitsandbytes"),
    ),
)  # fmt: skip

_VARIANTS: tuple[StageSpec, ...] = (
    StageSpec(
        "pytorch", "handlers.pytorch", 1, needs=("merge",), artifact=True,
        about="a standard transformers folder: config, safetensors, tokenizer, chat template", heavy=False, threads=1,
        settings=("merge.trust_remote_code",), libraries=("transformers", "tokenizers"),
    ),
    StageSpec(
        "onnx", "handlers.onnx.stage", 1, needs=("merge",), artifact=True,
        about="one ONNX graph with KV cache, dynamic batch and length, fp32",
        memory_fixed=1200 * MIB, memory_fp32=3.2, disk_fp32=1.1,
        settings=("export.opset", "onnx.cache", "onnx.profile", "onnx.external_data"),
        libraries=("torch", "transformers", "onnx", "onnxscript"),
    ),
    StageSpec(
        "onnx-int8", "handlers.onnx.int8", 1, needs=("onnx",), artifact=True,
        about="the ONNX graph with int8 weights, dynamic activations, per channel",
        memory_fixed=400 * MIB, memory_fp32=3.0, disk_fp32=0.6, libraries=("onnx", "onnxruntime"),
        form=("onnx", "int8"),
    ),
)  # fmt: skip

VARIANTS: tuple[str, ...] = tuple(spec.name for spec in _VARIANTS)

_REST = (
    StageSpec(
        "validate", "handlers.validate.stage", 1, needs=("merge",), after=VARIANTS,
        about="every artifact run and compared with the live base + adapter", memory_fixed=1200 * MIB, memory_fp32=2.5,
        disk_fixed=256 * MIB,  # logits that an interrupted attempt leaves for the next one
        resumable=True,
        settings=("export.variants", "export.quantization", "validation"),
        libraries=("torch", "transformers", "peft", "onnxruntime"),
    ),
    StageSpec(
        "report", "handlers.report.stage", 1, after=("merge", *VARIANTS, "validate"),
        about="report.json, report.html and README.md",
        memory_fixed=0,  # always admitted: what failed for want of memory must be reported too
        heavy=False, threads=1,
    ),
)  # fmt: skip

STAGES: tuple[StageSpec, ...] = (*_MERGE, *_VARIANTS, *_REST)
BY_NAME: dict[str, StageSpec] = {spec.name: spec for spec in STAGES}
QUANTIZED: dict[tuple[str, str], str] = {spec.form: spec.name for spec in STAGES if spec.form}
"""(format, level) → its quantized form."""


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
