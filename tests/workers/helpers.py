"""Attempts for tests: a job, bounds, and how to wait for the outcome as the runner does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import Fault
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import CheckpointRef, ChildLimits, Outcome, StageContext, StageResult
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from daemon.contract.jobs.plan import spec_of
from daemon.running.attempts.executor import Bounds
from daemon.running.workers import containment
from daemon.running.workers.worker import Worker
from daemon.system.processes import procfs

SCRIPT = Path(__file__).with_name("faulty_children.py")
UNIFIED = next((Path(row.split()[1]) for row in Path("/proc/mounts").read_text().splitlines() if row.split()[2] == "cgroup2"), None)
HAS_GROUPS = UNIFIED is not None and os.access(UNIFIED / "cgroup.procs", os.W_OK) and os.geteuid() == 0
BOUNDS = Bounds(timeout=120, silence=60, grace=20, memory=0, memory_reserve=0, log_size=1 << 20, processes=64, warm=0)
SHORT = {"grace": 0.5}
Start = Callable[..., Worker]


def make_context(folder: Path, stage: str = "merge", entry: str = "", **limits: Any) -> StageContext:
    """A job that the real merge stage refuses at once: there is no checkpoint. `entry`: other code than the stage's own."""
    checkpoint = CheckpointRef(
        root="/r", run="run", step=1, path=str(folder / "none"), layout="trainer-adapter", digest="0" * 64, method="LORA"
    )
    return StageContext(
        job="job", stage=stage, entry=entry or spec_of(stage).entry, formats=catalog().entries, attempt=1,
        checkpoint=checkpoint, pin=str(folder / "none"), base=str(folder / "none"),
        staging=str(folder / "staging"), result=str(folder / "attempt/result.json"), temporary=str(folder / "attempt/tmp"),
        cache=str(folder / "cache"), work=Work(export=ExportOptions(), validation=ValidateOptions()),
        limits=ChildLimits(**{"idle": False, "nice": 0, **limits}),
    )  # fmt: skip


def leftovers(folder: Path) -> list[str]:
    """Processes with the attempt's mark and zombies of this process."""
    table = procfs.snapshot()
    marked = [f"{pid} lives" for pid in table if procfs.variable(pid, containment.MARK) == str(folder)]
    return marked + [f"{pid} is a zombie" for pid, known in table.items() if known.parent == os.getpid() and known.dead]


def wait(worker: Worker, seconds: float = 100) -> StageResult:
    """Poll as the runner does."""
    deadline = time.monotonic() + seconds
    while (result := worker.poll()) is None:
        assert time.monotonic() < deadline, f"no result after {seconds} s"
        time.sleep(0.01)
    assert worker.poll() is result
    return result


def until(worker: Worker, condition: Callable[[], bool], seconds: float = 60) -> None:
    """Poll until something has happened."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert worker.poll() is None, worker.poll()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fault_of(result: StageResult) -> Fault:
    """The fault of an attempt that may be tried again."""
    assert result.outcome is Outcome.RETRYABLE
    assert result.fault is not None
    return result.fault
