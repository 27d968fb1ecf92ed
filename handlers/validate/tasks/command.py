"""A task that is a command of the user's own: it gets a model's folder as JSON, and answers with a score for each item.

Called by `stage`. The command runs with the environment, priority and limits of the stage, in a temporary folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.faults.advice import quoted
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.options import Task
from handlers.validate.tasks.answers import Answer, Unanswered, answer_in
from handlers.validate.tasks.processes import TaskProcess


@dataclass(frozen=True)
class Model:
    """What a command is run on."""

    variant: str
    """Variant of the artifact; `pytorch` for the live model."""
    live: bool
    folder: Path


def ask(task: Task, model: Model, context: StageContext, safe_point: Callable[[], None]) -> Answer:
    """Run the command on a model. Raises Unanswered."""
    program = task.command[0]
    if shutil.which(program) is None:
        raise Unanswered(f"there is no program {quoted(program)}", "correct the task's command, or install the program")
    folder = Path(context.temporary, "task")
    folder.mkdir(exist_ok=True)
    before = _state_of(model.folder)
    with TaskProcess(task.command, folder, task.limit_seconds, safe_point) as process:
        process.send(json.dumps(_described(task, model, context)).encode() + b"\n", close=True)
        printed = process.everything()
    shutil.rmtree(folder, ignore_errors=True)
    if _state_of(model.folder) != before:
        raise Changed(f"it changed files in {model.folder}")
    return answer_in(printed, task.metric, task.better)


class Changed(Unanswered):
    """The command wrote into the folder of the model, which can't be published any more."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            cause, "let the command write into its own working directory alone, then run `ckptd queue retry` with the export's id"
        )


def _described(task: Task, model: Model, context: StageContext) -> dict[str, object]:
    checkpoint = context.checkpoint
    return {
        "task": task.name, "folder": str(model.folder), "variant": model.variant, "live": model.live, "base": context.base,
        "export": context.job, "run": checkpoint.run, "step": checkpoint.step, "limit": task.limit, "threads": context.limits.threads,
    }  # fmt: skip


def _state_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Of each file below a model's folder what a change of it would change."""
    files = {path: path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {str(path): (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in files.items()}
