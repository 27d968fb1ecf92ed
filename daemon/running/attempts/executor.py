"""The interface between the runner and what runs an attempt, on this machine or elsewhere.

The runner, recovery and the checker of invariants know an attempt by these protocols alone. The executor that runs attempts as
processes of this box is `daemon.running.workers.executor`; another one may hand the same order to a cluster's queue. What an executor
gets is files: it writes the job file into the attempt's folder, runs `handlers` with it where both folders can be reached, and finds the
result file where the job file says. Progress is worth showing and nothing depends on it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from daemon.contract.disk.attempt_files import JOB_FILE as JOB_FILE
from daemon.contract.disk.attempt_files import LOG_FILE as LOG_FILE
from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Fault
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.messages import StageResult
from daemon.contract.light import dataclass

if TYPE_CHECKING:
    from daemon.contract.jobs.messages import StageContext

SILENCE_SECONDS = 900.0
"""Children send a heartbeat every few seconds, whatever the stage does; 15 minutes without any are enough even on a box that swaps."""
LOG_SIZE = 16 << 20
"""Bytes: days of a stage's own words, and no loop that writes warnings fills the disk."""
PROCESSES = 128
"""Many times what a stage starts; more are a loop that starts processes."""
WARM_SECONDS = 60.0
"""The stages of an export follow each other within seconds, while a loaded process keeps about 350 MB, one of light libraries 120."""


@dataclass(frozen=True)
class Bounds:
    """What an attempt may take, in seconds and bytes."""

    timeout: float
    grace: float
    """Seconds between asking it to end and ending it by force."""
    memory: int
    """For all that it runs together; 0 for no limit."""
    memory_reserve: int
    """What must stay available on the box; the caller decides which attempt is stopped when it doesn't."""
    silence: float = SILENCE_SECONDS
    """Seconds without a heartbeat."""
    log_size: int = LOG_SIZE
    processes: int = PROCESSES
    """That it may have at the same time."""
    pass_environment: tuple[str, ...] = ()
    """Names of variables that it gets beside those that every attempt does."""
    expected: int = 0
    """Bytes that it is estimated to need, where `memory` follows from that and not from the machine; else 0."""
    warm: float = WARM_SECONDS
    """Seconds that a process with PyTorch loaded waits for an attempt to be forked from it; 0: none is kept."""


@dataclass(frozen=True)
class Order:
    """All that an executor gets for an attempt. `folder` is the attempt's own: job file, log, result file and temporary files."""

    context: StageContext
    folder: Path
    bounds: Bounds
    memory: int = 0
    """Bytes that it is estimated to need; 0 where that is not known."""

    def write_job_file(self, context: StageContext | None = None) -> Path:
        """Write the job file; give its path. `context`: what the executor adds to its own children's. Raises OSError."""
        path = self.folder / JOB_FILE
        write_atomic(path, (context or self.context).model_dump_json(indent=1))
        return path


def read_job_file(folder: Path) -> StageContext | None:
    """The job of the attempt in `folder`; None where there is none that this version understands."""
    from daemon.contract.jobs.messages import StageContext

    try:
        context = StageContext.model_validate_json((folder / JOB_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return context.model_copy(update={"work": context.work.shared()})  # a thousand attempts may be open, and most have one configuration


@dataclass(frozen=True)
class Progress:
    """The last thing that an attempt said."""

    fraction: float = 0.0
    message: str = "starting"


@dataclass(frozen=True)
class Whereabouts:
    """Where an attempt is that does not run as a process of this box."""

    scheduler: str
    """Name of the scheduler."""
    id: str = ""
    """The scheduler's own name of its job, "" until it has one."""
    state: str = ""
    """`pending`, `running`, `gone` or, where the scheduler gives no answer, `unknown`."""
    word: str = ""
    """The scheduler's own word for that."""
    reason: str = ""
    """Why it waits, in words."""
    host: str = ""
    """The machine that runs it."""
    away: str = ""
    """Since when the scheduler gives no answer, and why, in words; "" while it does."""


WANTING, STARVED = 0.3, 0.5
"""Cores that an attempt must be ready to use, and the share of these that it has to get, so that it does not count as starved."""


@dataclass(frozen=True)
class CpuShare:
    """CPU time that an attempt got of late, and what it could have used, in cores."""

    got: float
    wanted: float

    @property
    def starved(self) -> bool:
        """Whether other processes keep the attempt from most of the CPU time that it could use."""
        return self.wanted >= WANTING and self.got < STARVED * self.wanted


class Attempt(Protocol):
    """An attempt that was started. Used by one thread alone; no call may block for longer than about a twentieth of a second."""

    @property
    def id(self) -> str:
        """What names it to its executor, also after a restart of the daemon; it means nothing to anybody else."""

    @property
    def progress(self) -> Progress:
        """The last thing that it said."""

    @property
    def warnings(self) -> Sequence[str]:
        """Its messages for the log, in order; only ever grows."""

    @property
    def memory(self) -> int:
        """Bytes of this box's memory that it held at the last look; 0 where it runs elsewhere or that is not known."""

    @property
    def peak(self) -> int:
        """The largest figure of memory so far, in bytes, wherever it runs; 0 where that is not known."""

    @property
    def cpu(self) -> CpuShare | None:
        """CPU time that it got of late; None where that is not known."""

    @property
    def place(self) -> Whereabouts | None:
        """Where it is, where that is not this box."""

    @property
    def ended_surely(self) -> bool:
        """Once `poll` has given the result: whether nothing of it can run any more. Another attempt never goes on in the staging folder of
        one that was lost."""

    @property
    def wait_handle(self) -> int | None:
        """What poll(2) can wait on: a file descriptor that is readable when `poll` has news, and hung up at the end; None where only asking
        tells."""

    def poll(self) -> StageResult | None:
        """Bring all of the above up to date; the result once nothing of the attempt runs any more, the same at every further call."""

    def stop(self, fault: Fault | None = None) -> None:
        """Ask it to end at its next safe point; after the grace time it is ended by force.

        Its outcome is interrupted or, with a `fault`, retryable by that. The first call decides.
        """

    def hurry(self) -> None:
        """End it by force now. One that nobody has stopped before counts as interrupted."""


class Executor(Protocol):
    """Runs attempts."""

    def prepare(self) -> None:
        """Called once in a program that runs attempts, before it starts the first."""

    def runs_here(self, spec: StageSpec) -> bool:
        """Whether attempts of this stage take memory and threads of this box, and so count against its limits; the same at every call.

        What they write lies on this box's output in any case.
        """

    def start(self, order: Order) -> Attempt:
        """Start an attempt. Raises OSError where that can't be done now; nothing of it runs then."""

    def reclaim(self, id: str | None, folder: Path, bounds: Bounds) -> Attempt | StageResult | None:
        """What became of an attempt of a daemon that is no more: the attempt, where it still runs and can go on under this one;
        else, with all that lives of it ended, the complete result that it left, or None.

        `id` is None where that daemon died before it could record it; the attempt is then known by its `folder`, or was never started.
        """

    def tidy(self) -> None:
        """Called now and then while no attempt runs."""

    def at_work(self, jobs: Path) -> Mapping[str, Path]:
        """Id → folder of every attempt in a folder below `jobs` that something works on, whoever started it. Changes nothing."""


def wait_for_news(attempts: Iterable[Attempt], seconds: float) -> None:
    """Return when one of the attempts may have ended, at the latest after `seconds`: how far they are can wait for as long."""
    poll = select.poll()
    for attempt in attempts:
        if (handle := attempt.wait_handle) is not None:
            poll.register(handle, 0)  # its end is always told
    poll.poll(1000 * seconds)
    time.sleep(0.02)  # one that has closed it and has not ended yet must not make the caller's loop spin
