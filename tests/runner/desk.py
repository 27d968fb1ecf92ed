"""A runner in this process whose children are fakes: a script says how each of them ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.disk.files import FileEntry, seal
from daemon.contract.faults.errors import Fault
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, Outcome, StageContext, StageResult, Verdict
from daemon.contract.jobs.plan import plan
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.running.attempts.executor import Attempt, Bounds, CpuShare, Order, Progress, Whereabouts
from daemon.running.runner import Runner

Script = Callable[[StageContext], StageResult | None]


@dataclass
class Fake:
    """An attempt in this process: `script` says how it ends, None while it runs."""

    context: StageContext
    script: Script
    progress: Progress = field(default_factory=Progress)
    warnings: list[str] = field(default_factory=list)
    memory: int = 0
    peak: int = 0
    cpu: CpuShare | None = None
    id: str = "fake"
    wait_handle: None = None
    place: Whereabouts | None = None
    ended_surely: bool = True
    stopped: bool = False
    fault: Fault | None = None

    def poll(self) -> StageResult | None:
        if self.stopped:
            outcome = Outcome.RETRYABLE if self.fault else Outcome.INTERRUPTED
            return StageResult(outcome=outcome, fault=self.fault)
        return self.script(self.context)

    def stop(self, fault: Fault | None = None) -> None:
        self.stopped, self.fault = True, fault

    def hurry(self) -> None:
        self.stopped = True


class FakeExecutor:
    """Starts what `begin` makes of an order; nothing of it outlives this process."""

    def __init__(self, begin: Callable[[Order], Fake]) -> None:
        self._begin = begin
        self.elsewhere: set[str] = set()
        """Stages that take nothing of this box."""

    def prepare(self) -> None:
        pass

    def runs_here(self, spec: StageSpec) -> bool:
        return spec.name not in self.elsewhere

    def start(self, order: Order) -> Attempt:
        return self._begin(order)

    def reclaim(self, id: str | None, folder: Path, bounds: Bounds) -> None:
        return None

    def tidy(self) -> None:
        """Nothing."""

    def at_work(self, jobs: Path) -> dict[str, Path]:
        return {}


@dataclass
class Desk:
    """A runner whose children are fakes; `started` names every attempt in order."""

    runner: Runner
    journal: Journal
    home: Path
    started: list[str] = field(default_factory=list)
    script: Script = lambda context: done(context)
    fakes: list[Fake] = field(default_factory=list)
    place: Whereabouts | None = None
    """Where attempts run, None for this box."""
    sure: bool = True
    """Whether nothing of an attempt can run any more once it has ended."""

    def start(self, order: Order) -> Fake:
        context = order.context
        self.started.append(f"{context.checkpoint.run}-{context.checkpoint.step} {context.stage}")
        self.fakes.append(Fake(context, lambda one: self.script(one), place=self.place, ended_surely=self.sure))
        return self.fakes[-1]

    def add(
        self, run: str, step: int, *, latest: bool = False, variants: tuple[str, ...] = ("pytorch",), base: str | None = None,
        layout: str = "trainer-adapter",
    ) -> str:  # fmt: skip
        reference = CheckpointRef(
            root="/root", run=run, step=step, path=f"/root/{run}/checkpoint-{step}", layout=layout, digest=f"{run}{step}",
            method="lora" if base else "full", base_name=base,
        )  # fmt: skip
        name = f"{run}-{step}"
        pin = self.runner.paths.pins / name
        pin.mkdir()
        work = self.runner.settings.work
        work = work.model_copy(update={"export": work.export.model_copy(update={"variants": variants})})
        stages = [spec.name for spec in plan(variants)]
        self.journal.jobs.add(NewJob(name, reference, work, stages, pin, self.home / "out" / name, "f"), supersede=latest)
        return name

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.runner.tick()
            time.sleep(0.002)

    def state(self, job: str) -> str:
        row = self.journal.jobs.get(job)
        assert row is not None
        return row.state

    def elsewhere(self, *stages: str) -> None:
        """From now on these stages take nothing of this box."""
        executor = self.runner.executor
        assert isinstance(executor, FakeExecutor)
        executor.elsewhere = set(stages)

    def order(self, stage: str = "merge") -> list[str]:
        return [line.split()[0] for line in self.started if line.endswith(f" {stage}")]


def done(context: StageContext) -> StageResult:
    """The attempt has succeeded and written one file."""
    staging = Path(context.staging)
    (staging / "file").write_text(context.stage + context.checkpoint.digest)
    files: tuple[FileEntry, ...] = seal(staging)
    checked = context.stage.removeprefix("check-") if context.stage != "merged" else "pytorch"
    checks = (ArtifactCheck(variant=checked, verdict=Verdict.PASSED),) if checked in context.inputs and checked != context.stage else ()
    return StageResult(outcome=Outcome.SUCCEEDED, files=files, checks=checks)


def failing(context: StageContext) -> StageResult:
    fault = Fault(code="broken", operation="do it", cause="it is broken", remedy="mend it")
    return StageResult(outcome=Outcome.RETRYABLE, fault=fault)


Desks = Callable[..., Desk]
