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

    def memory(self, size: ModelSize) -> int:
        """Estimated peak resident memory, in bytes."""
        return int(self.memory_fixed + self.memory_fp32 * size.fp32_bytes)

    def disk(self, size: ModelSize) -> int:
        """Estimated bytes written."""
        return int(self.disk_fixed + self.disk_stored * size.stored_bytes + self.disk_fp32 * size.fp32_bytes)


STAGES: tuple[StageSpec, ...] = (
    StageSpec(
        "merge", "handlers.merge.stage", 1,
        about="the adapter's deltas fused into the base's weights", memory_fixed=512 * MIB, disk_stored=1.0, resumable=True,
        settings=("merge",), libraries=("torch", "peft", "safetensors", "bitsandbytes"),
    ),
    StageSpec(
        "pytorch", "handlers.pytorch", 1, needs=("merge",), artifact=True,
        about="a standard transformers folder: config, safetensors, tokenizer, chat template", heavy=False, threads=1,
        settings=("merge.trust_remote_code",), libraries=("transformers", "tokenizers"),
    ),
    StageSpec(
        "onnx", "handlers.onnx.stage", 1, needs=("merge",), artifact=True,
        about="one ONNX graph with KV cache, dynamic batch and length, fp32",
        memory_fixed=1200 * MIB, memory_fp32=3.2, disk_fp32=1.1,
        settings=("export.opset",), libraries=("torch", "transformers", "onnx", "onnxscript"),
    ),
    StageSpec(
        "onnx-int8", "handlers.onnx.int8", 1, needs=("onnx",), artifact=True,
        about="the ONNX graph with int8 weights, dynamic activations, per channel",
        memory_fixed=400 * MIB, memory_fp32=3.0, disk_fp32=0.6, libraries=("onnx", "onnxruntime"),
    ),
    StageSpec(
        "validate", "handlers.validate.stage", 1, needs=("merge",), after=("pytorch", "onnx", "onnx-int8"),
        about="every artifact run and compared with the live base + adapter", memory_fixed=1200 * MIB, memory_fp32=2.5,
        disk_fixed=256 * MIB,  # logits that an interrupted attempt leaves for the next one
        resumable=True,
        settings=("export.variants", "export.quantization", "validation"),
        libraries=("torch", "transformers", "peft", "onnxruntime"),
    ),
    StageSpec(
        "report", "handlers.report.stage", 1, after=("merge", "pytorch", "onnx", "onnx-int8", "validate"),
        about="report.json, report.html and README.md",
        memory_fixed=0,  # always admitted: what failed for want of memory must be reported too
        heavy=False, threads=1,
    ),
)  # fmt: skip

BY_NAME: dict[str, StageSpec] = {spec.name: spec for spec in STAGES}
VARIANTS: tuple[str, ...] = tuple(spec.name for spec in STAGES if spec.artifact)
INT8_OF: dict[str, str] = {"onnx": "onnx-int8"}
"""Format → its int8 form."""


def effective_variants(variants: Iterable[str], quantization: str) -> tuple[str, ...]:
    """The variants that are published, in plan order, once the quantization level is applied."""
    chosen = set(variants)
    if quantization == "none":
        chosen -= set(INT8_OF.values())
    elif quantization == "int8":
        chosen |= {INT8_OF[name] for name in chosen if name in INT8_OF}
    return tuple(name for name in VARIANTS if name in chosen)


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
