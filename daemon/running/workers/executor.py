"""The executor of this box: an attempt is a child process of the daemon and ends with it.

Its ids name the process for good: `local:PID:START`, START in seconds after boot.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from daemon.contract.faults.events import Event
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.running.attempts.executor import Attempt, Bounds, Order, read_job_file
from daemon.running.attempts.result_file import examine
from daemon.running.workers import warm
from daemon.running.workers.containment import adopt_orphans
from daemon.running.workers.worker import Worker, environment_of, kill_stray, local_id, process_of
from daemon.system.logger import Logger
from daemon.system.processes import procfs

log = Logger("runner")


class LocalExecutor:
    """Runs attempts as processes. `command`: what is started with the job file's path, by default the stage's own."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        self._command = command

    def prepare(self) -> None:
        """From now on orphans of attempts are this process's children; takes a control group where one is handed over."""
        adopt_orphans()

    def runs_here(self, spec: StageSpec) -> bool:
        return True

    def start(self, order: Order) -> Attempt:
        """Start a child. Must be called from one permanent thread, as all of its attempt. Raises OSError."""
        return Worker(order, self._command)

    def getting_ready(self, context: StageContext, bounds: Bounds) -> bool:
        """Whether the attempt had better be started in a moment: a process that it can be forked from is still loading its libraries."""
        libraries = warm.wanted(context)
        if self._command or bounds.warm <= 0 or libraries is None:
            return False
        kind, needs = warm.kind_of(libraries, context.limits, environment_of(bounds)), warm.enough(context)
        # One that died while it loaded is replaced by the attempt that goes on without it.
        if libraries == "torch" and not warm.is_known(kind):
            warm.get_ready(kind, bounds.warm, bounds.memory_reserve, needs)
        return warm.is_loading(kind, needs)

    def reclaim(self, id: str | None, folder: Path, bounds: Bounds) -> StageResult | None:
        """A child must not outlive its daemon: what did is killed, so that nobody writes into what is looked at then.

        Gives the result where a complete one was left.
        """
        if kill_stray(process_of(id), folder):
            log.warning("a child outlived its daemon and was killed", event_id=Event.ATTEMPT_LEFT, id=id)
        context = read_job_file(folder)
        if context is None:
            return None
        result, wrong = examine(context)
        if wrong:
            log.warning("what a child left is not taken", event_id=Event.ATTEMPT_RESULT_REFUSED, because=wrong)
        return result

    def tidy(self) -> None:
        """Take note of loaded processes that have ended: until then they are zombies."""
        warm.reap()

    def at_work(self, jobs: Path) -> Mapping[str, Path]:
        """Live processes with the command line of a child, `-m handlers JOBS/…`, or forked from one of ours, in an attempt's folder."""
        prefix = f"{jobs.absolute()}/"
        attempts = {}
        for process in psutil.process_iter():
            try:
                folder, known = _attempt_of(process, prefix), procfs.entry(process.pid)
                if folder is not None and known is not None and not known.dead:
                    attempts[local_id(process.pid, known.started)] = folder
            except (psutil.Error, OSError):
                continue
        return attempts


def _attempt_of(process: psutil.Process, prefix: str) -> Path | None:
    """The folder of the attempt below `prefix` whose first process it is. Raises psutil.Error, OSError."""
    line = process.cmdline()
    if "--loaded" in line:
        leads = os.getsid(process.pid) == process.pid  # a worker that an attempt forked does not
        folder = process.cwd()
        return Path(folder) if leads and folder.startswith(prefix) else None
    return next((Path(word).parent for word in line if word.startswith(prefix)), None) if "handlers" in line else None
