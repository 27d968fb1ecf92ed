"""The children that run now: starting them, what was promised to them, and their end.

A part of the runner and used by its one permanent thread alone, since the kernel ends a child with the thread that
spawned it. Only `running` is read by others, who copy it first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from daemon.config.paths import Paths
from daemon.config.settings import LimitSettings
from daemon.contract import failpoints
from daemon.contract.errors import Fault, from_oserror
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import remove_tree
from daemon.contract.messages import Outcome, StageContext, StageResult
from daemon.contract.stages import ModelSize, StageSpec
from daemon.journal.journal import Journal, facts_of
from daemon.journal.rows import JobRow, StageRow
from daemon.running.job_file import bounds_of, make_context, staging_of
from daemon.running.rules.admission import Reserved
from daemon.running.rules.estimates import Estimate
from daemon.running.workers.worker import Bounds, Worker
from daemon.system.box import human, memory

log = structlog.get_logger("runner")

PRESSURE_SECONDS = 3.0
"""Between two children that are ended for want of memory: the first one's memory must have come back."""
Spawn = Callable[[StageContext, Path, Bounds], Worker]


@dataclass
class Running:
    """A child and the attempt it is."""

    job: JobRow
    spec: StageSpec
    number: int
    staging: Path
    worker: Worker
    size: ModelSize
    estimate: Estimate
    threads: int
    warned: int = 0

    @property
    def stage(self) -> str:
        """Name of the stage."""
        return self.spec.name


class Children:
    """Children by (job, stage). `spawn` starts one; another executor can take its place."""

    def __init__(self, journal: Journal, paths: Paths, spawn: Spawn) -> None:
        self._journal, self._paths, self._spawn = journal, paths, spawn
        self._relieved = 0.0
        self.running: dict[tuple[str, str], Running] = {}

    def of(self, job: str) -> list[Running]:
        """The children of one job."""
        return [running for (owner, _), running in self.running.items() if owner == job]

    def reserved(self) -> Reserved:
        """What the children were promised and have not taken."""
        everyone = self.running.values()
        return Reserved(
            sum(max(0, one.estimate.memory - one.worker.memory) for one in everyone), sum(one.estimate.disk for one in everyone)
        )

    def free_threads(self, limits: LimitSettings) -> int:
        """Threads that no child has."""
        return limits.effective_threads - sum(one.threads for one in self.running.values())

    def start(
        self, job: JobRow, spec: StageSpec, stages: Mapping[str, StageRow], limits: LimitSettings, *, key: str, size: ModelSize,
        need: Estimate, threads: int,
    ) -> tuple[Fault | None, bool]:  # fmt: skip
        """Claim and start the next attempt of a stage; gives the fault that keeps it from starting, and whether it was claimed."""
        number = stages[spec.name].attempts + 1
        folder, staging = self._paths.attempt(job.id, spec.name, number), staging_of(self._paths, job.id, spec.name, number)
        try:
            remove_tree(folder)
            folder.mkdir(parents=True)
            self._make_staging(job.id, spec, staging, same=stages[spec.name].key == key)
        except OSError as error:
            return from_oserror(error, f"make the folders of stage {spec.name}").fault, False
        context = make_context(job, spec, number, stages, self._paths, limits, threads, key)
        if spec.name == "report":
            context = context.model_copy(update={"facts": facts_of(self._journal, job)})
        if not self._journal.attempts.claim(job.id, spec.name, number, context.strategy, folder, staging, need.memory, key):
            return None, False
        try:
            worker = self._spawn(context, folder, bounds_of(limits))
        except OSError as error:
            return from_oserror(error, f"start the stage {spec.name}").fault, True
        self.running[job.id, spec.name] = Running(job, spec, number, staging, worker, size, need, threads)
        self._journal.attempts.spawned((job.id, spec.name, number), worker.process.pid, worker.process_started)
        failpoints.point("runner.spawned")
        log.info("stage started", stage=spec.name, attempt=number, pid=worker.process.pid, threads=threads,
                 estimated_memory=human(need.memory))  # fmt: skip
        return None, True

    def _make_staging(self, job: str, spec: StageSpec, staging: Path, *, same: bool) -> None:
        """An empty folder; for a resumable stage with the same key the one of its latest attempt that left something."""
        earlier = sorted(
            (path for path in staging.parent.glob(f"{spec.name}.*") if path != staging), key=lambda path: int(path.suffix[1:] or 0)
        )  # fmt: skip
        remove_tree(staging)
        if spec.resumable and same and earlier:
            earlier.pop().rename(staging)
        for path in earlier:
            remove_tree(path)
        staging.mkdir(parents=True, exist_ok=True)

    def finished(self) -> Iterator[tuple[Running, StageResult]]:
        """Take in what the children say; gives those that have ended, each until it is taken out by `forget`."""
        for (job, stage), running in list(self.running.items()):
            result = running.worker.poll()
            for message in running.worker.warnings[running.warned :]:
                log.warning(message, job=job, run=running.job.checkpoint.run, step=running.job.checkpoint.step, stage=stage)
            running.warned = len(running.worker.warnings)
            if result is not None:
                yield running, result.model_copy(update={"peak_rss": max(result.peak_rss, running.worker.peak)})

    def forget(self, running: Running) -> None:
        """Its outcome is in the journal."""
        del self.running[running.job.id, running.stage]

    def relieve(self, reserve: int) -> None:
        """End the largest child when the box's memory runs out, before the kernel chooses, perhaps the training."""
        if not self.running or time.monotonic() - self._relieved < PRESSURE_SECONDS:
            return
        available = memory()[1]
        largest = max(self.running.values(), key=lambda one: one.worker.memory)
        if available >= reserve or not largest.worker.memory:
            return
        self._relieved = time.monotonic()
        cause = (
            f"{human(available)} of the box's memory were left (limits.memory_reserve is {human(reserve)}), and this was the largest child"
            f" with {human(largest.worker.memory)}"
        )
        remedy = "nothing, it is tried again when there is memory; free some to have it sooner"
        largest.worker.stop(
            fault=Fault(code=FaultCode.MEMORY_PRESSURE, operation=f"run the stage {largest.stage}", cause=cause, remedy=remedy)
        )

    def stop_heavy(self) -> None:
        """End the children whose window has closed; they go on in the next one."""
        for running in self.running.values():
            if running.spec.heavy:
                running.worker.stop()

    def stop(self, *, hurry: bool = False) -> None:
        """Ask all children to end at their next safe point, or (`hurry`) end them now."""
        for running in self.running.values():
            running.worker.hurry() if hurry else running.worker.stop()

    @staticmethod
    def interrupted(result: StageResult) -> StageResult:
        """The outcome of an attempt whose result is of no use any more."""
        return StageResult(outcome=Outcome.INTERRUPTED, seconds=result.seconds)
