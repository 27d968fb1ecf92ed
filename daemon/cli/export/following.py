"""An export that the daemon makes just now is followed, and not made a second time beside it."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

from daemon.cli.views.export import ExportView, Wait
from daemon.config.places.paths import StatePaths
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated
from daemon.contract.language.lists import names
from daemon.journal.file.opening import reading
from daemon.journal.overview import JobView, job_of_id
from daemon.journal.states import ENDED_JOB
from daemon.operating.monitoring.live import read_live
from daemon.operating.monitoring.status import find
from daemon.system.lock import is_locked
from daemon.system.processes.signals import on_signals

LOOK_SECONDS = 1.0
RESTART_SECONDS = 20.0
"""A daemon that was away for longer is not being started again: its service starts it after 5 s."""


def follow(state: Path, job: str, view: ExportView) -> None:
    """Show the job of the daemon with this state until it has ended; Ctrl-C ends the command and leaves the job alone.

    Raises Retryable where the daemon ends before, and what keeps its journal from being read.
    """
    paths, stop, seen = StatePaths(state), threading.Event(), time.monotonic()
    on_signals((signal.SIGINT, signal.SIGTERM), stop.set)
    begun = False
    try:
        while not stop.is_set():
            row, running = _row(paths, job), is_locked(paths.lock)
            ended = row is not None and row.job.state in ENDED_JOB
            if row is not None and (running or ended):
                seen = time.monotonic()
                if not begun and not ended:
                    _say_first(row, view)
                    begun = True
                _show(row, state, view)
                if ended:
                    return
            elif time.monotonic() - seen > RESTART_SECONDS:
                raise _left(job, running=running)
            stop.wait(LOOK_SECONDS)
    finally:
        view.close()
    view.say(translated("interrupted; the daemon goes on with its job {job}").format(job=job))
    raise KeyboardInterrupt


def _row(paths: StatePaths, job: str) -> JobView | None:
    with reading(paths.journal) as connection:
        return job_of_id(connection, job)


def _say_first(row: JobView, view: ExportView) -> None:
    if stages := [stage.name for stage in row.stages if stage.state == "running"]:
        line = translated(
            "the daemon makes it now as job {job}, at the stage {stages}, and this command follows; `ckptd logs --follow --job {job}` shows"
            " more, --force makes it here as well"
        )
    else:
        line = translated(
            "it is in the daemon's queue as job {job}, and this command follows; `ckptd queue first {job}` puts it first, --force makes it"
            " here as well"
        )
    view.say(line.format(job=row.job.id, stages=names(stages)))


def _show(row: JobView, state: Path, view: ExportView) -> None:
    """Bring the display up to date."""
    wait = None
    for status in find(state, row.job.id):
        wait = Wait(status.reason or status.waiting_for, status.waiting_for) if status.waiting_for else None
    progress = read_live(StatePaths(state).live).aged().progress.get(row.job.id, {})  # it may be older than the rows
    stages = {stage.name: stage for stage in row.stages}
    view.show(stages, {name: each for name, each in progress.items() if name in stages and stages[name].state == "running"}, wait)


def _left(job: str, *, running: bool) -> Retryable:
    """What ends a command whose job nobody works on any more."""
    if running:
        cause = f"the daemon, which made it as job {job}, has removed that job"
        return Retryable(FaultCode.NO_SUCH_JOB, "follow the export", cause, "run the same command again; it makes it here")
    return Retryable(
        FaultCode.NOT_RUNNING, "follow the export", f"the daemon, which made it as job {job}, has ended",
        "start the daemon, which goes on with the job; or run the same command again, which makes it here",
    )  # fmt: skip
