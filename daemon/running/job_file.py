"""Puts together what a child is told: the job file of one attempt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from daemon.config.paths import Paths
from daemon.config.settings import LimitSettings
from daemon.contract.catalog import catalog
from daemon.contract.messages import ChildLimits, StageContext
from daemon.contract.stages import StageSpec
from daemon.journal.rows import JobRow, StageRow
from daemon.running.executor import Bounds
from daemon.system.box import memory


def make_context(
    job: JobRow, spec: StageSpec, number: int, stages: Mapping[str, StageRow], paths: Paths, limits: LimitSettings, threads: int,
    key: str,
) -> StageContext:  # fmt: skip
    """The context of attempt `number` of a stage. Its inputs are what the stages before it in the plan gave, and nothing that
    its key doesn't know of."""
    folder = paths.attempt(job.id, spec.name, number)
    return StageContext(
        job=job.id,
        stage=spec.name,
        entry=spec.entry,
        toolchain=spec.toolchain,
        attempt=number,
        checkpoint=job.checkpoint,
        pin=str(job.pin),
        base=str(job.base) if job.base else None,
        inputs={
            name: str(row.folder)
            for name, row in stages.items()
            if name in (*spec.needs, *spec.after) and row.state == "succeeded" and row.folder
        },
        staging=str(staging_of(paths, job.id, spec.name, number)),
        result=str(folder / "result.json"),
        temporary=str(folder / "tmp"),
        cache=str(paths.cache),
        work=job.work,
        key=key,
        formats=catalog().entries,
        limits=ChildLimits(
            threads=threads,
            device=limits.device,
            resumable=spec.resumable,
            nice=_NICE[limits.priority],
            idle=limits.priority == "idle",
        ),
    )


_NICE = {"idle": 19, "low": 10, "normal": 0}
"""`limits.priority` → nice value; each step of 5 is about a third of the share."""


def staging_of(paths: Paths, job: str, stage: str, number: int) -> Path:
    """Where attempt `number` of a stage writes."""
    return paths.staging / job / f"{stage}.{number}"


def bounds_of(limits: LimitSettings) -> Bounds:
    """What a child must keep to."""
    return Bounds(
        timeout=limits.stage_timeout, silence=limits.silence_seconds, grace=limits.stop_seconds,
        memory=int(memory()[0] * limits.memory_fraction), memory_reserve=int(limits.memory_reserve), log_size=int(limits.log_size),
        processes=limits.processes,
    )  # fmt: skip
