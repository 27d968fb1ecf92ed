"""The real journal, intake's rows and runner on many jobs whose children are instant: `python _many_jobs.py FOLDER JOBS`.

Prints `JOBS RESIDENT_BYTES` lines as the jobs end, for `journal.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from daemon.config.places.paths import prepare
from daemon.config.settings import LogSettings, Settings
from daemon.contract.disk.files import seal
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, Outcome, StageResult, Verdict
from daemon.contract.jobs.plan import plan
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.operating.log import logs
from daemon.running.attempts.executor import Attempt, Bounds, Order, Progress
from daemon.running.runner import Runner

BATCH = 50


class Instant:
    """A child that has ended as soon as it began, with one small file."""

    id, memory, peak = "instant", 0, 0
    wait_handle: int | None = None

    def __init__(self, order: Order) -> None:
        self.context, self.progress = order.context, Progress()
        self.warnings: list[str] = []

    def poll(self) -> StageResult:
        """Its result."""
        staging = Path(self.context.staging)
        (staging / "model").write_text(self.context.stage)
        stage = self.context.stage
        checked = "pytorch" if stage == "merged" else stage.removeprefix("check-")
        checks = [ArtifactCheck(variant=checked, verdict=Verdict.PASSED)] if checked != stage and checked in self.context.inputs else []
        return StageResult(outcome=Outcome.SUCCEEDED, files=seal(staging), checks=tuple(checks))

    def stop(self, fault: Any = None) -> None:
        """Nothing runs."""

    def hurry(self) -> None:
        """Nothing runs."""


class Instantly:
    """Runs attempts in no time."""

    def prepare(self) -> None:
        """Nothing is needed."""

    def runs_here(self, spec: StageSpec) -> bool:
        """As attempts of this box do, so that what they take is counted."""
        return True

    def start(self, order: Order) -> Attempt:
        """It has ended when it is asked."""
        return Instant(order)

    def reclaim(self, id: str | None, folder: Path, bounds: Bounds) -> None:
        """Nothing is left of an attempt."""

    def tidy(self) -> None:
        """Nothing."""

    def at_work(self, jobs: Path) -> dict[str, Path]:
        """Nothing ever is."""
        return {}


def main(folder: Path, jobs: int) -> None:
    """Enter and work through `jobs` jobs, some at a time; say what this process holds after every tenth of them."""
    settings = Settings.model_validate({"limits": {"disk_reserve": 0}, "export": {"variants": ["pytorch"]}, "retention": {"keep_last": 1}})
    paths = prepare(folder / "state", folder / "out")
    logs.set_up(LogSettings(level="error"), None)
    journal = Journal(paths.journal)
    runner = Runner(settings, journal, paths, Instantly())
    process, names = psutil.Process(), [spec.name for spec in plan(("pytorch",))]
    for first in range(0, jobs, BATCH):
        for number in range(first, first + BATCH):
            seen = CheckpointRef(
                root="/runs", run=f"run-{number % 20}", step=number, path=f"/runs/run-{number % 20}/checkpoint-{number}", layout="trainer",
                digest=f"{number:064}", method="full", metadata={"loss": 1.0, "history": [[step, 1.25] for step in range(20)]},
            )  # fmt: skip
            pin, target = paths.pins / str(number), paths.output / seen.run / f"step-{number}"
            pin.mkdir()
            journal.jobs.add(NewJob(f"job-{number}", seen, settings.work, names, pin, target, "f"))
        while journal.jobs.open_ids():
            runner.tick()
        if (first + BATCH) % (jobs // 10) == 0:
            print(first + BATCH, process.memory_info().rss, flush=True)
    journal.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
