"""The work of `ckptd export`: the runner for one job, shown until it ends or lacks what does not come by itself."""

from __future__ import annotations

import signal
import threading
import time

from daemon.cli.views.export import ExportView, Wait
from daemon.contract.faults.errors import Fault, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated
from daemon.journal.rows import StageRow, now
from daemon.journal.states import ENDED_JOB
from daemon.operating.engine import Engine
from daemon.operating.monitoring.live import ExportLive, of_export
from daemon.running.rules.ready import SOON, describe
from daemon.running.sources.gate import FOR_SOURCES
from daemon.running.waits import Waiting
from daemon.system.logger import Logger
from daemon.system.processes.signals import on_signals
from daemon.system.processes.threads import Supervised

log = Logger("runner")

LACKING = (FaultCode.DISK_NOW, FaultCode.MEMORY_NOW, FaultCode.DISK_FULL, FaultCode.READ_ONLY, FaultCode.UNEXPECTED)
"""Faults that a person at a terminal wants to hear of at once, instead of waiting."""
PASSING = SOON | {FaultCode.RETRY, FaultCode.TIMING, FaultCode.TOOLCHAIN_COMING, FaultCode.WINDOW_CLOSED}
"""What an export waits for that comes by itself."""
SHORT_SECONDS = 5.0
"""A wait that is shorter is not worth a line."""
PATIENCE_SECONDS = 30.0
"""How long the runner or the export's end may fail, again and again, before the command ends with the error: longer than a journal is
ever busy."""


def _needs_help(waiting: Waiting, stages: dict[str, StageRow], *, begun: bool) -> bool:
    """Whether the export waits for what does not pass by itself: at once where that is certain, else after some patience.

    `begun`: this command has started a stage. What is away before is an error; what goes away later may come back.
    """
    code, now = waiting.fault.code, time.time()
    if code in LACKING or (code in FOR_SOURCES and not begun):
        return True
    if code in FOR_SOURCES:
        return time.monotonic() - waiting.since > PATIENCE_SECONDS
    tried_again = code in PASSING or any(row.state == "waiting" and not row.due(now) for row in stages.values())
    return not tried_again and time.monotonic() - waiting.since > PATIENCE_SECONDS


def work(parts: Engine, job: str, view: ExportView) -> None:
    """Run the job to its end while showing it; Ctrl-C ends the child in order and leaves the job to be gone on with."""
    stop = threading.Event()
    on_signals((signal.SIGINT, signal.SIGTERM), stop.set)
    thread = Supervised("runner", parts.runner.run, log, stop=parts.runner.stop)
    thread.start()
    lacking, live, began, begun = None, ExportLive(parts.paths.live), now(), False
    try:
        while not stop.is_set():
            parts.attention.wait(0.2)
            parts.attention.clear()
            row = parts.journal.jobs.get(job)
            stages = parts.journal.stages.of(job)
            content = of_export(parts.runner, began)
            live.write(content)
            waiting = parts.runner.waits.of.get(job)
            lasts = waiting is not None and waiting.fault.code not in SOON and time.monotonic() - waiting.since > SHORT_SECONDS
            view.show(
                stages, content.progress.get(job, {}), Wait(waiting.fault.code, describe(waiting.fault)) if waiting and lasts else None
            )
            if row is None or row.state in ENDED_JOB:
                break
            begun = begun or bool(parts.runner.children.running)
            if waiting is not None and _needs_help(waiting, stages, begun=begun):
                lacking = waiting.fault
                break
            if thread.given_up is not None:
                lacking = Fault(
                    code=FaultCode.THREAD_LOST, operation="go on", cause=f"the thread that does the work died repeatedly:"
                    f" {thread.given_up.why}", remedy="look for its traceback in the log, and report it",
                )  # fmt: skip
                break
            trouble, since = parts.runner.complaints.trouble, parts.runner.complaints.since
            if trouble is not None and time.monotonic() - since > PATIENCE_SECONDS:
                lacking = trouble
                break
    finally:
        parts.runner.stop()
        thread.join()
        view.close()
    if stop.is_set():
        view.say(translated("interrupted; run the same command again to continue from here"))
        raise KeyboardInterrupt
    if lacking:
        raise Retryable(**lacking.model_copy(update={"remedy": view.advice(lacking.remedy)}).model_dump())
