"""Whether the user's own tasks (`validate.tasks`) can be run on this box. Called by `doctor`; nothing is run."""

from __future__ import annotations

import os
import shutil

from daemon.config.settings import Settings
from daemon.contract.faults.secrets import shown
from daemon.contract.jobs.tasks import HARNESS
from daemon.toolchains.registry import Toolchains


def problems_of_tasks(settings: Settings) -> list[str]:
    """Return why tasks can't be run here; their stages would say so too, and give nothing."""
    problems, lacking = [], Toolchains(settings.state_directory).lacking(HARNESS, "run tasks")
    for task in settings.validate.tasks:
        if task.harness and lacking:
            problems.append(f"validate.tasks.{task.name}: {lacking.cause}; {lacking.remedy}")
        if task.command and shutil.which(task.command[0]) is None:
            problems.append(f"validate.tasks.{task.name}: there is no program {shown(task.command[0])}; correct its command, or install it")
        if task.include and not os.path.isdir(task.include):
            problems.append(f"validate.tasks.{task.name}: there is no folder {shown(task.include)}; correct its include")
    return problems
