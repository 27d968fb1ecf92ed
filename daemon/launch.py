"""Puts together what a child is told: the job file of one attempt."""

from __future__ import annotations

import os
from collections.abc import Mapping

from daemon.contract import ChildLimits, StageContext
from daemon.paths import Paths
from daemon.rows import JobRow, StageRow
from daemon.settings import Settings


def make_context(settings: Settings, paths: Paths, job: JobRow, stage: str, number: int, stages: Mapping[str, StageRow]) -> StageContext:
    """The context of attempt `number` of `stage`; its inputs are the outputs of every stage that has succeeded."""
    folder = paths.attempt(job.id, stage, number)
    return StageContext(
        job=job.id,
        stage=stage,
        attempt=number,
        checkpoint=job.checkpoint,
        pin=str(job.pin),
        base=str(job.base) if job.base else None,
        inputs={name: str(row.folder) for name, row in stages.items() if row.state == "succeeded" and row.folder},
        staging=str(paths.staging / job.id / f"{stage}.{number}"),
        result=str(folder / "result.json"),
        temporary=str(folder / "tmp"),
        cache=str(paths.cache),
        work=job.work,
        limits=ChildLimits(threads=settings.limits.effective_threads, device=settings.limits.device, parent_pid=os.getpid()),
    )
