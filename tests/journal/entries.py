"""What is entered into a journal by tests, and by the processes that they start: those import nothing of pytest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal

WORK = Work(export=ExportOptions(), validation=ValidateOptions())
STAGES = ("merge", "pytorch", "merged", "report")


def reference(step: int = 4, *, root: str = "/runs", run: str = "run", digest: str = "d") -> CheckpointRef:
    path = f"{root}/{run}/checkpoint-{step}"
    return CheckpointRef(root=root, run=run, step=step, path=path, layout="trainer-adapter", digest=digest, method="LORA")


def enter(
    journal: Journal, job: str = "job", checkpoint: CheckpointRef | None = None, *, warnings: tuple[str, ...] = (), **options: Any
) -> bool:
    checkpoint = checkpoint or reference()
    return journal.jobs.add(NewJob(job, checkpoint, WORK, STAGES, Path("/pin"), Path("/out"), "f", warnings), **options)
