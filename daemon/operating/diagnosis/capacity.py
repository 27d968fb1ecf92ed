"""Tells, for `ckptd check`, whether this box has the memory and the disk for exports of the models that the checkpoints need.

The estimates are those by which the runner admits a stage. Nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import TypeVar

from daemon.config.places.paths import StatePaths
from daemon.config.settings import Settings
from daemon.contract import units
from daemon.contract.faults.errors import CkptdError
from daemon.contract.formats.stages import ModelSize, StageSpec
from daemon.contract.jobs.plan import plan
from daemon.contract.jobs.tasks import evaluated
from daemon.journal.attempts import Measured
from daemon.journal.file.opening import reading
from daemon.journal.overview import bases_used, measured_by_stage
from daemon.operating.diagnosis.readability import ModelFound
from daemon.running.rules.estimates import Estimate, by_layers, estimate, without_twin
from daemon.system.box import free_disk, memory

T = TypeVar("T")


@dataclass
class Capacity:
    """What came of it, as sentences."""

    facts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Variants that no checkpoint would get, and bases that are nowhere, and never were, while no other one is needed."""
    warnings: list[str] = field(default_factory=list)


def capacity_of(settings: Settings, models: Sequence[ModelFound]) -> Capacity:
    """Compare what exports of these models need with the box's memory and the room at the output."""
    answer = Capacity()
    missing = [model for model in models if model.missing]
    # A base that earlier exports had and that is missing is away, and no mistake of the configuration.
    used = (_ask_journal(settings, bases_used) or set()) if missing and settings.limits.away_hours else set()
    for model in missing:
        sentence = f"base: {_checkpoints(model)} the base model {model.name or 'that they do not name'}: {model.missing}"
        if model.name in used:
            hours = f"{settings.limits.away_hours:g} h"
            answer.warnings.append(f"{sentence}; earlier exports had it, so exports wait {hours} for it (limits.away_hours)")
        else:
            (answer.problems if len(missing) == len(models) else answer.warnings).append(sentence)
    known = [model for model in models if not model.missing]
    stages = plan(
        settings.variants, speed=settings.validate.speed_tokens > 0, evaluate=evaluated(settings.validate.tasks, settings.variants)
    )
    measured = _ask_journal(settings, measured_by_stage) or {}
    total, _ = memory()
    allowed = int(total * settings.limits.memory_fraction)
    needs = {model.name: _needs(model, stages, measured, settings.merge.dtype, allowed) for model in known}
    too_large = {model.name: _too_large(settings.variants, stages, needs[model.name], allowed) for model in known}
    for model in known:
        if mine := too_large[model.name]:
            for_all = any(all(name in other for other in too_large.values()) for name in mine)
            (answer.problems if for_all else answer.warnings).append(_of_memory(model, settings, mine, allowed, total))
        answer.warnings += _of_disk(model, settings, _written(needs[model.name]))
    if known:
        largest = max(known, key=lambda model: model.parameters)
        peak, written = _peak(needs[largest.name]), _written(needs[largest.name])
        answer.facts["an export"] = (
            f"of {largest.name}: about {units.size(peak)} of memory and {units.size(written)} on disk, not counting later measurements"
        )
    return answer


def _checkpoints(model: ModelFound) -> str:
    return f"{model.checkpoints} checkpoints need" if model.checkpoints != 1 else "1 checkpoint needs"


def _ask_journal(settings: Settings, look: Callable[[Connection], T]) -> T | None:
    """Return what `look` finds in the journal; None where there is none, or none that this user may read."""
    try:
        with reading(StatePaths(settings.state_directory).journal) as connection:
            return look(connection)
    except (FileNotFoundError, PermissionError, CkptdError):
        return None


def _needs(
    model: ModelFound, stages: Sequence[StageSpec], measured: Mapping[str, Sequence[Measured]], dtype: str, allowed: int
) -> dict[str, Estimate]:  # fmt: skip
    size = ModelSize(model.stored_bytes, model.parameters)
    needs = {spec.name: estimate(spec, size, measured.get(spec.name, ()), dtype) for spec in stages}
    large = [spec for spec in stages if needs[spec.name].memory > allowed]
    needs |= {spec.name: without_twin(spec, needs[spec.name], size) for spec in large if spec.shortened is not None}
    too_much = [spec for spec in large if spec.layerwise]

    def layers(spec: StageSpec) -> int | str:
        return model.layers if isinstance(model.layers, str) else model.layers + (spec.layerwise - 1) * model.layer

    return {**needs, **{spec.name: by_layers(spec, needs[spec.name], allowed, layers(spec)) for spec in too_much}}


def _peak(needs: Mapping[str, Estimate]) -> int:
    """Bytes of memory of the stage that needs most."""
    return max(need.memory for need in needs.values())


def _written(needs: Mapping[str, Estimate]) -> int:
    """Bytes that all stages write together: an export lies whole in its staging folder before it is published."""
    return sum(need.disk for need in needs.values())


def _too_large(variants: Sequence[str], stages: Sequence[StageSpec], needs: Mapping[str, Estimate], allowed: int) -> dict[str, int]:
    """Variant that could never be made or checked → bytes of memory of the stage that keeps it from that."""
    by_name = {spec.name: spec for spec in stages}

    def most(name: str) -> int:
        return max([needs[name].memory, *(most(other) for other in by_name[name].needs if other in by_name)])

    checks = {spec.checks: spec.name for spec in stages if spec.checks}
    peaks = {name: max(most(name), most(checks[name]) if name in checks else 0) for name in variants if name in by_name}
    return {name: peak for name, peak in peaks.items() if peak > allowed}


def _of_memory(model: ModelFound, settings: Settings, too_large: Mapping[str, int], allowed: int, total: int) -> str:
    fitting = [name for name in settings.variants if name not in too_large]
    is_one = len(too_large) == 1
    instead = f"leave {'it' if is_one else 'them'} out ({', '.join(fitting)} would fit)" if fitting else "export on a larger machine"
    return (
        f"export.variants: {', '.join(too_large)} can't be made and checked for {model.name}"
        f" ({model.parameters / 1e9:.1f} billion parameters):"
        f" {'it needs' if is_one else 'they need'} up to about {units.size(max(too_large.values()))} of memory,"
        f" but limits.memory_fraction allows {units.size(allowed)} of {units.size(total)}; {instead}, or raise"
        " limits.memory_fraction"
    )


def _of_disk(model: ModelFound, settings: Settings, written: int) -> list[str]:
    free, reserve = free_disk(settings.output.directory), int(settings.limits.disk_reserve)
    if written <= free - reserve:
        return []
    return [
        f"output.directory: an export of {model.name} writes about {units.size(written)}; {units.size(free)} are free in"
        f" {settings.output.directory}, of which limits.disk_reserve reserves {units.size(reserve)}, so exports would wait;"
        " free space there, or set output.directory to a larger disk"
    ]
