"""The plan: one ordered table of stages with what each needs. Light, since the daemon reads it too.

A stage *needs* the stages whose output it reads, as far as the plan has them, and comes *after* those that must have ended, well or badly,
before it makes sense. Memory and disk are estimated from the base's headers before anything is loaded. The rows of the variants come
from the formats' declarations (`daemon.contract.formats.catalog`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from daemon.contract.formats.catalog import Catalog, catalog, ordered
from daemon.contract.formats.declaration import Variant
from daemon.contract.formats.stages import LONG_MEMORY, MIB, StageSpec
from daemon.contract.formats.targets import made_for
from daemon.contract.jobs.tasks import EVALUATE, LIVE, evaluated

if TYPE_CHECKING:
    from daemon.contract.jobs.options import ExportOptions, Work

CHECK = "check-"
"""What the name of a check begins with; that of its variant follows."""

SHARDED = frozenset({
    "fsdp-sharded", "dcp-sharded", "dcp-safetensors", "deepspeed-sharded", "lightning", "verl-sharded", "accelerate",
    "mlx-lm-adapter",
})  # fmt: skip
"""Layouts whose weights lie in pieces: their plan begins with `consolidate`, and all other stages read what that gives."""
CONSOLIDATE = "consolidate"
_CONSOLIDATE = StageSpec(
    CONSOLIDATE, "handlers.consolidate.stage:run", 1,
    about="the shards of a sharded checkpoint, merged into an adapter or a model", memory_fixed=900 * MIB,
    disk_stored=1.05, disk_fixed=64 * MIB, of_checkpoint=True, threads=1,
)  # fmt: skip
_MERGE = StageSpec(
    "merge", "handlers.merge.stage:run", 6, needs=(CONSOLIDATE,),  # where the plan has it
    about="the adapter's deltas fused into the base's weights", memory_fixed=512 * MIB, disk_stored=1.0, resumable=True,
    settings=("merge",), libraries=("torch", "peft", "safetensors", "bitsandbytes"),
)  # fmt: skip
TEXTS = ("validation.samples", "validation.prompts", "validation.data")
"""Settings that decide which texts are compared on and which calibrate."""
DECIDING = ("validation.most_samples", "validation.undecided")
"""Settings that decide how many more are read for a verdict, and which one counts where they don't suffice."""
_CALIBRATION = StageSpec(
    "calibration", "handlers.validate.calibration:run", 1, needs=("merge",),
    about="the texts that quantized forms are calibrated with, none of which is compared on",
    memory_fixed=1200 * MIB, memory_fp32=1.3, disk_fixed=16 * MIB, settings=(*TEXTS, "merge.base"),
    libraries=("torch", "transformers", "peft", "sentencepiece", "bitsandbytes", "pyarrow"),
)  # fmt: skip


def _table() -> dict[str, StageSpec]:
    return _table_of(catalog())


@functools.lru_cache(maxsize=1)
def _table_of(known: Catalog) -> dict[str, StageSpec]:
    variants = tuple(known.variants.values())
    merged = tuple(variant.name for variant in variants if "merged" in variant.traits)
    checks = tuple(_check(variant) for variant in variants if variant.name not in merged)
    names = tuple(variant.name for variant in variants)
    checked = (*names, "reference", "merged", *(check.name for check in checks))
    evaluations = (
        StageSpec(
            LIVE, "handlers.validate.tasks.stage:run_live", 1, needs=("merge", "reference"),
            about="the tasks of [[validate.tasks]] on the live model, for those of each artifact to be compared with",
            memory_fixed=1200 * MIB, memory_fp32=2.0, disk_fixed=128 * MIB, resumable=True, settings=("validation.tasks", "merge.base"),
            libraries=("torch", "transformers", "peft", "sentencepiece", "bitsandbytes"),
        ),
        *(_evaluation(variant, checks) for variant in variants),
    )  # fmt: skip
    rest = (
        StageSpec(
            "reference", "handlers.validate.reference:run", 9, needs=("merge",),
            about="what the live base + adapter answers on the prompts, for every check to compare with",
            memory_fixed=1200 * MIB, memory_fp32=1.3, memory_long=LONG_MEMORY, disk_fixed=160 * MIB, layerwise=1,
            settings=(*TEXTS, "validation.new_tokens", "validation.speed_tokens", "validation.long_tokens", "validation.bases",
                      "merge.base"),
            libraries=("torch", "transformers", "peft", "sentencepiece", "bitsandbytes", "pyarrow"),
        ),
        StageSpec(
            "merged", "handlers.validate.merged:run", 9, checks="".join(merged[:1]), needs=("merge", "reference"), after=merged,
            about="the merged model in PyTorch, compared with the live one", memory_fixed=1000 * MIB, memory_fp32=1.2,
            memory_long=LONG_MEMORY, disk_fixed=128 * MIB, layerwise=1,
            settings=(*(f"validation.thresholds.{name}" for name in merged), *DECIDING),
            libraries=("torch", "transformers", "sentencepiece"),
        ),
        *checks,
        *evaluations,
        StageSpec(
            "speed", "handlers.validate.speed:run", 1, needs=("merge", "reference"),
            after=(*checked, *(spec.name for spec in evaluations)), alone=True, gpu=True,
            about="every artifact's speed, in turns with PyTorch", memory_fixed=1400 * MIB, memory_fp32=2.5,
        ),
        StageSpec(
            "report", "handlers.report.stage:run", 6, after=("merge", *checked, *(spec.name for spec in evaluations), "speed"),
            about="report.json, report.html and README.md",
            memory_fixed=0,  # always admitted: what failed for want of memory must be reported too
            heavy=False, threads=1,
        ),
    )  # fmt: skip
    return {spec.name: spec for spec in (_CONSOLIDATE, _MERGE, _CALIBRATION, *ordered((*known.stages.values(), *variants)), *rest)}


_TWIN = (1000 * MIB, 2.0)
"""Memory, fixed and in bytes a byte of the weights in fp32, that a check takes which compares graphs with the model in PyTorch: that model
in fp32, an embedding that it is tied to no more, and then the graphs' own runs."""


def _check(variant: Variant) -> StageSpec:
    """The stage that runs one artifact and compares it, with what it was made of too where it is a smaller form."""
    sources = (variant.form_of, _MERGE.name) if variant.form_of else ()
    source = next((name for name in sources if name in variant.needs), None)
    limits = variant.limits
    memory = (limits.memory_fixed, limits.memory_fp32)
    most = (max(memory[0], _TWIN[0]), max(memory[1], _TWIN[1])) if limits.twin else memory
    weighed = (_MERGE.name,) if limits.weights or limits.twin else ()
    pytorch = ("torch", "transformers") if limits.pytorch or limits.twin else ()
    libraries = tuple(dict.fromkeys(("sentencepiece", *pytorch, *variant.libraries)))
    return StageSpec(
        f"{CHECK}{variant.name}", "handlers.validate.check:run", 10, checks=variant.name,
        needs=tuple(dict.fromkeys(("reference", variant.name, *((source,) if source else ()), *weighed))), after=("merged",),
        about=f"{variant.name} run and compared with the live base + adapter",
        memory_fixed=most[0], memory_fp32=most[1], memory_long=LONG_MEMORY, shortened=memory if limits.twin else None,
        disk_fp32=limits.disk_fp32,
        layerwise=int(limits.layerwise),
        settings=(f"validation.thresholds.{variant.name}", *DECIDING), libraries=libraries,
        light=not pytorch, toolchain=limits.toolchain, gpu=limits.gpu,
    )  # fmt: skip


def _evaluation(variant: Variant, checks: Iterable[StageSpec]) -> StageSpec:
    """The stage that runs the tasks on one artifact: with the memory of its check, after it, since what fails there need not be run."""
    check = next((spec for spec in checks if spec.checks == variant.name), None)
    return StageSpec(
        f"{EVALUATE}{variant.name}", "handlers.validate.tasks.stage:run", 1,
        needs=("reference", LIVE, variant.name), after=(check.name if check else "merged",),
        about=f"the tasks of [[validate.tasks]] on {variant.name}, item by item beside the live model",
        memory_fixed=variant.limits.memory_fixed, memory_fp32=variant.limits.memory_fp32, disk_fixed=128 * MIB, resumable=True,
        settings=("validation.tasks", "validation.undecided", "merge.base"),
        libraries=check.libraries if check else ("torch", "transformers", "sentencepiece"),
        light=check is not None and check.light, gpu=variant.limits.gpu,
    )  # fmt: skip


def all_specs() -> tuple[StageSpec, ...]:
    """All stages, in plan order."""
    return tuple(_table().values())


def find_spec(name: str) -> StageSpec | None:
    """A stage by its name; None for one that nobody has."""
    return _table().get(name)


def spec_of(name: str) -> StageSpec:
    """A stage by its name. Raises KeyError for one that nobody has."""
    return _table()[name]


def check_of(variant: str) -> StageSpec | None:
    """The stage that checks a variant; None for one that nobody has."""
    return _checks_of(catalog()).get(variant)


@functools.lru_cache(maxsize=1)
def _checks_of(known: Catalog) -> dict[str, StageSpec]:
    """Variant → the stage that checks it, the first where there are several."""
    return {spec.checks: spec for spec in reversed(_table_of(known).values()) if spec.checks}


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
        wanted -= {name for (_, level), name in quantized.items() if level not in ("fp16", "bf16")}
    elif quantization:
        wanted |= {name for (of, level), name in quantized.items() if of in wanted and level == quantization}
    return tuple(name for name in variant_names() if name in wanted)


def resolved(export: ExportOptions) -> ExportOptions:
    """The options with every variant by name, those that `export.deploy` adds among them; without `deploy` as they are.

    A job keeps these, so that a format which is installed later changes none that was begun. The level of quantization is for the variants
    that were named: what a target needs is added as it is.
    """
    if not export.deploy:
        return export
    wanted = {variant.name for target in export.deploy for variant in made_for(target, catalog())}
    wanted |= {*effective_variants(export.variants, export.quantization)}
    unknown = tuple(name for name in export.variants if find_variant(name) is None)
    named = (*(name for name in variant_names() if name in wanted), *unknown)
    return export.model_copy(update={"variants": named, "quantization": ""})


def is_over_base(variant: str) -> bool:
    """Whether a variant is put over the model's base, so that no merge rounds it."""
    spec = find_variant(variant)
    return spec is not None and spec.deploys == "over its base"


def unquantized(variant: str) -> str | None:
    """The variant that a quantized one was made of; None for one that is not quantized."""
    spec = find_variant(variant)
    return spec.form_of if spec else None


def fallback(variant: str) -> str | None:
    """The next less quantized form to take where this one is not exact enough; None where there is none."""
    spec = find_variant(variant)
    return spec.fallback if spec else None


def with_fallbacks(variants: Iterable[str]) -> list[str]:
    """Variants, and all forms that may be taken in the place of one of them."""
    names = list(variants)
    for name in names:  # which grows meanwhile
        following = fallback(name)
        if following is not None and following not in names:
            names.append(following)
    return names


def plan(chosen: Iterable[str], *, speed: bool = True, sharded: bool = False, evaluate: Iterable[str] = ()) -> tuple[StageSpec, ...]:
    """The stages that make and check the variants `chosen`, in an order in which each follows what it needs.

    What another variant is made of is made too, but neither checked nor published. Of adapters alone the merged model is not run: they are
    compared with the live one, and nobody gets the merge. `sharded`: of a checkpoint in pieces. `evaluate`: those of them that tasks of the
    user's own are run on.
    Raises KeyError for a name that nobody has.
    """
    asked = tuple(chosen)
    wanted = {"merge", "reference", "report", *(["speed"] if speed else []), *([CONSOLIDATE] if sharded else [])}
    if not asked or not all(is_over_base(name) for name in asked):
        wanted.add("merged")
    wanted |= {spec.name for spec in all_specs() if spec.checks in asked}
    if names := [f"{EVALUATE}{name}" for name in evaluate]:
        wanted |= {LIVE, *names}
    queue = list(asked)
    while queue:
        name = queue.pop()
        wanted.add(name)
        queue.extend(need for need in spec_of(name).needs if need not in wanted)
    return tuple(spec for spec in all_specs() if spec.name in wanted)


def stage_names(work: Work, layout: str, added: Iterable[str] = ()) -> list[str]:
    """Names of the stages of a job with this configuration, for a checkpoint of this layout, in plan order.

    `added`: variants that are made, checked and published too, since they take the place of others.
    """
    chosen = (*effective_variants(work.export.variants, work.export.quantization), *added)
    stages = plan(
        chosen, speed=work.validation.speed_tokens > 0, sharded=layout in SHARDED, evaluate=evaluated(work.validation.tasks, chosen)
    )
    return [spec.name for spec in stages]
