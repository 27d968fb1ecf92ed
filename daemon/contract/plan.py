"""The plan: one ordered table of stages with what each needs. Light, since the daemon reads it too.

A stage *needs* the stages whose output it reads, and comes *after* those that must have ended, well or badly,
before it makes sense. Memory and disk are estimated from the base's headers before anything is loaded. The rows of the variants come
from the formats' declarations (`daemon.contract.catalog`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from daemon.contract.catalog import Catalog, catalog, ordered
from daemon.contract.formats import Variant
from daemon.contract.stages import MIB, StageSpec

_MERGE = StageSpec(
    "merge", "handlers.merge.stage:run", 3,
    about="the adapter's deltas fused into the base's weights", memory_fixed=512 * MIB, disk_stored=1.0, resumable=True,
    settings=("merge",), libraries=("torch", "peft", "safetensors", "bitsandbytes"),
)  # fmt: skip


def _table() -> dict[str, StageSpec]:
    return _table_of(catalog())


@functools.lru_cache(maxsize=1)
def _table_of(known: Catalog) -> dict[str, StageSpec]:
    variants = tuple(known.variants)
    validate = StageSpec(
        "validate", "handlers.validate.stage:run", 5, needs=("merge",), after=variants,
        about="every artifact run and compared with the live base + adapter", memory_fixed=1200 * MIB, memory_fp32=2.5,
        disk_fixed=256 * MIB,  # logits that an interrupted attempt leaves for the next one
        resumable=True,
        settings=("export.variants", "export.quantization", "validation"),
        libraries=("torch", "transformers", "peft", "sentencepiece", "onnxruntime", "bitsandbytes"),
    )  # fmt: skip
    report = StageSpec(
        "report", "handlers.report.stage:run", 2, after=("merge", *variants, "validate"),
        about="report.json, report.html and README.md",
        memory_fixed=0,  # always admitted: what failed for want of memory must be reported too
        heavy=False, threads=1,
    )  # fmt: skip
    return {spec.name: spec for spec in (_MERGE, *ordered(known.variants.values()), validate, report)}


def all_specs() -> tuple[StageSpec, ...]:
    """All stages, in plan order."""
    return tuple(_table().values())


def find_spec(name: str) -> StageSpec | None:
    """A stage by its name; None for one that nobody has."""
    return _table().get(name)


def spec_of(name: str) -> StageSpec:
    """A stage by its name. Raises KeyError for one that nobody has."""
    return _table()[name]


def variant_names() -> tuple[str, ...]:
    """Names of all variants, in plan order."""
    return tuple(spec.name for spec in _table().values() if spec.artifact)


def find_variant(name: str) -> Variant | None:
    """A variant by its name; None for one that nobody has."""
    return catalog().variants.get(name)


def effective_variants(chosen: Iterable[str], quantization: str) -> tuple[str, ...]:
    """The variants that are published, in plan order, once the quantization level is applied."""
    wanted, quantized = set(chosen), catalog().quantized
    if quantization == "none":
        wanted -= {name for (_, level), name in quantized.items() if level != "fp16"}
    elif quantization:
        wanted |= {name for (of, level), name in quantized.items() if of in wanted and level == quantization}
    return tuple(name for name in variant_names() if name in wanted)


def unquantized(variant: str) -> str | None:
    """The variant that a quantized one was made of; None for one that is not quantized."""
    found = find_variant(variant)
    return found.form_of if found else None


def fallback(variant: str) -> str | None:
    """The next less quantized form to take where this one is not exact enough; None where there is none."""
    found = find_variant(variant)
    return found.fallback if found else None


def plan(chosen: Iterable[str]) -> tuple[StageSpec, ...]:
    """The stages that make the variants `chosen`, in an order in which each follows what it needs.

    Raises KeyError for a name that the table does not hold.
    """
    wanted = {"merge", "validate", "report"}
    queue = list(chosen)
    while queue:
        name = queue.pop()
        wanted.add(name)
        queue.extend(need for need in spec_of(name).needs if need not in wanted)
    return tuple(spec for spec in all_specs() if spec.name in wanted)


def stage_names(chosen: Iterable[str], quantization: str = "") -> list[str]:
    """Names of the stages that make `chosen` once the quantization level is applied, in plan order."""
    return [spec.name for spec in plan(effective_variants(chosen, quantization))]
