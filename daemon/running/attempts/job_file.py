"""Puts together what a child is told: the job file of one attempt."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from daemon.config.places.paths import Paths
from daemon.config.settings import LimitSettings
from daemon.contract.disk.attempt_files import RESULT_FILE
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.messages import ChildLimits, StageContext
from daemon.contract.jobs.plan import CONSOLIDATE
from daemon.journal.rows import AttemptId, JobRow, StageRow
from daemon.running.attempts.executor import Bounds
from daemon.system.box import memory


@dataclass(frozen=True)
class ReadyStage:
    """A stage that can be started, with its job as it is now."""

    job: JobRow
    spec: StageSpec
    stages: Mapping[str, StageRow]
    """All stages of the job, by name."""
    key: str
    """Digest of all that determines the stage's output."""

    @property
    def row(self) -> StageRow:
        """The stage as the journal holds it."""
        return self.stages[self.spec.name]

    @property
    def attempt(self) -> AttemptId:
        """The attempt that comes next."""
        return AttemptId(self.job.id, self.spec.name, self.row.attempts + 1)


def make_context(ready: ReadyStage, paths: Paths, limits: LimitSettings, threads: int) -> StageContext:
    """The context of a stage's next attempt. Its inputs are what the stages before it in the plan gave, and nothing that its key
    doesn't know of. A checkpoint in pieces is, for all stages but the one that puts it together, what that one gave."""
    job, spec, number = ready.job, ready.spec, ready.attempt.number
    whole = ready.stages.get(CONSOLIDATE)
    consolidated = whole.folder if whole and whole.name != spec.name and whole.state == "succeeded" else None
    base = None if consolidated and job.checkpoint.method == "full" else job.base
    folder = paths.attempt(job.id, spec.name, number)
    priority = priority_of(limits, job)
    return StageContext(
        job=job.id,
        stage=spec.name,
        entry=spec.entry,
        toolchain=spec.toolchain,
        python=sys.executable,
        attempt=number,
        checkpoint=job.checkpoint,
        pin=str(consolidated or job.pin),
        base=str(base) if base else None,
        inputs={
            name: str(row.folder)
            for name, row in ready.stages.items()
            if name in (*spec.needs, *spec.after) and row.state == "succeeded" and row.folder
        },
        staging=str(staging_of(paths, ready.attempt)),
        result=str(folder / RESULT_FILE),
        temporary=str(folder / "tmp"),
        cache=str(paths.cache),
        work=job.work,
        key=ready.key,
        formats=catalog().entries,
        limits=ChildLimits(
            threads=threads,
            device=spec.device(limits.device),
            memory=bounds_of(limits).memory,
            resumable=spec.resumable,
            nice=NICE[priority],
            idle=priority == "idle",
        ),
    )


NICE = {"idle": 19, "low": 10, "normal": 0}
"""Priority → nice value; each step of 5 is about a third of the share."""


def priority_named(limits: ChildLimits) -> str:
    """The priority of an attempt that was started with these limits."""
    return next((name for name, nice in NICE.items() if nice == limits.nice), "")


def priority_of(limits: LimitSettings, job: JobRow) -> str:
    """The priority of a job's next attempt: that of the configuration, one class higher for a job that has waited long enough."""
    classes = list(NICE)
    number = classes.index(limits.priority)
    age = datetime.now(UTC) - datetime.fromisoformat(job.created)
    if limits.raise_priority_hours and age >= timedelta(hours=limits.raise_priority_hours):
        number = min(number + 1, len(classes) - 1)
    return classes[number]


def staging_of(paths: Paths, attempt: AttemptId) -> Path:
    """Where an attempt writes."""
    return paths.staging / attempt.job / f"{attempt.stage}.{attempt.number}"


LEAST_MEMORY = 256 << 20
"""Bytes that every child may use, however little limits.memory_fraction allows. It decides what may start; a child that has started
must be able to load its modules and to write the report that says what could not start."""


OVER_ESTIMATE = 3
SLACK = 4 << 30
"""A child may use so many times what is estimated for it and so many bytes more, where limits.memory_fraction allows that: what a model's
files make it do must not take the machine's memory, and the training with it."""


def bounds_of(limits: LimitSettings, estimate: int = 0) -> Bounds:
    """What a child must keep to. `estimate`: bytes of memory that it should need, 0 where that is not known."""
    allowed = max(LEAST_MEMORY, int(memory()[0] * limits.memory_fraction))
    own = OVER_ESTIMATE * estimate + SLACK if estimate else allowed
    return Bounds(
        timeout=limits.stage_timeout, grace=limits.stop_seconds,
        memory=min(allowed, own), expected=estimate if own < allowed else 0, memory_reserve=int(limits.memory_reserve),
        pass_environment=limits.pass_environment,
    )  # fmt: skip
