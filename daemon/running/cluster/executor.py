"""The executor that hands attempts to a scheduler of other machines.

Its ids are `SCHEDULER:TOKEN`. A token names the attempt's job for good: it is written into the attempt's folder before anything is asked
of the scheduler, and by it a daemon that starts again finds what an earlier one handed in.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.disk.files import write_atomic
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.contract.jobs.plan import find_spec
from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import ORDERS, SCRIPT, Orders
from daemon.contract.version import __version__
from daemon.running.attempts.executor import Attempt, Bounds, Order, read_job_file
from daemon.running.cluster.attempt import Clock, ClusterAttempt
from daemon.running.cluster.link import Link
from daemon.running.cluster.port import Ending, Resources, Scheduler
from daemon.running.rules.resume_keys import library_version
from daemon.system.processes.environment import FIXED
from daemon.toolchains.registry import HANDLERS, command_of

MARGIN, SLACK = 1.5, 512 << 20
"""The memory that is asked for is what the stage is estimated to need, so many times, and so many bytes more."""
TIME_SLACK = 120.0
"""Seconds beyond limits.stage_timeout: our own limit is to come first."""


@dataclass(frozen=True)
class Terms:
    """What is asked for attempts of a queue."""

    queue: str = ""
    prefix: tuple[str, ...] = ()
    """Command before the interpreter's: a container, an environment's loader."""
    python: str = sys.executable
    cpus: int = 0
    """0: as many as the stage would have here."""
    memory: int = 0
    """Bytes; 0: what follows from the estimate."""
    gpus: int = 0
    scratch: str = ""
    """As `Orders.scratch`."""
    most_seconds: float = 0.0
    """Longest time that may be asked for; 0: twice that of the first attempt."""


@dataclass
class ClusterExecutor:
    """Runs attempts by `scheduler`. `command`: what runs a job file, by default the stage's own."""

    scheduler: Scheduler
    terms: Terms = field(default_factory=Terms)
    late: float = 90.0
    command: Sequence[str] = ()
    clock: Clock = time.monotonic

    def __post_init__(self) -> None:
        self.link = Link(self.scheduler, self.clock)

    def prepare(self) -> None:
        """Nothing: the threads begin with the first attempt."""

    def runs_here(self, spec: StageSpec) -> bool:
        """As `Executor.runs_here`."""
        return False

    def start(self, order: Order, terms: Terms | None = None) -> Attempt:
        """As `Executor.start`: the attempt is written down, and handed in by the link's thread."""
        terms, context, folder = terms or self.terms, order.context, order.folder
        order.write_job_file()
        resources = self._resources(order, terms)
        spec = find_spec(context.stage)
        orders = Orders(
            scheduler=self.scheduler.name, token=f"ckptd.{context.job[-12:]}.{context.stage}.{context.attempt}.{secrets.token_hex(6)}",
            command=tuple(self.command) or (command_of(context) if context.toolchain else (terms.python, *HANDLERS[1:])),
            environment=environment_there(order.bounds.pass_environment),
            versions={"ckptd": __version__, **{name: library_version(name) for name in (spec.libraries if spec else ())}},
            gpus=resources.gpus, memory=resources.memory, seconds=resources.seconds, log_size=order.bounds.log_size, queue=terms.queue,
            scratch=terms.scratch,
        )  # fmt: skip
        write_script(folder, terms, orders.environment, str(folder))
        elsewhere.put(folder, ORDERS, orders)
        return self._care_for(context, folder, order.bounds, orders, resources)

    def _care_for(
        self, context: StageContext, folder: Path, bounds: Bounds, orders: Orders, resources: Resources, *, adopted: bool = False
    ) -> ClusterAttempt:
        attempt = ClusterAttempt(self.scheduler, context, folder, bounds, orders, self.late, resources, adopted=adopted, clock=self.clock)
        self.link.add(attempt)
        return attempt

    def _resources(self, order: Order, terms: Terms) -> Resources:
        spec, earlier = find_spec(order.context.stage), _earlier(order.folder)
        memory = terms.memory or (int(MARGIN * order.memory) + SLACK if order.memory else 0)
        seconds = order.bounds.timeout + order.bounds.grace + TIME_SLACK
        most = terms.most_seconds or 2 * seconds
        if earlier is not None and earlier.ending == Ending.TIME_LIMIT:
            seconds = 2 * earlier.seconds
        return Resources(
            cpus=terms.cpus or order.context.limits.threads, memory=memory, seconds=min(seconds, most), gpus=terms.gpus,
            alone=bool(spec and spec.alone), queue=terms.queue,
        )  # fmt: skip

    def reclaim(self, id: str | None, folder: Path, bounds: Bounds) -> Attempt | StageResult | None:
        """The attempt in any case, where it was written down: whether it runs, and what became of it, is found out as for any other."""
        orders, context = elsewhere.get(folder, ORDERS, Orders), read_job_file(folder)
        if orders is None or context is None:
            return None
        resources = Resources(context.limits.threads, orders.memory, orders.seconds, orders.gpus, queue=orders.queue)
        return self._care_for(context, folder, bounds, orders, resources, adopted=True)

    def tidy(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """End the threads; what runs elsewhere goes on."""
        self.link.close()

    def at_work(self, jobs: Path) -> Mapping[str, Path]:
        """Attempts that were handed in and have left no last words."""
        return {f"{orders.scheduler}:{orders.token}": folder for folder, orders in elsewhere.still_open(jobs)}


def _earlier(folder: Path) -> Orders | None:
    """The orders of the attempt before the one in `folder`, where that was one of a cluster."""
    number = int(folder.suffix[1:] or 0)
    return elsewhere.get(folder.with_suffix(f".{number - 1}"), ORDERS, Orders)


def environment_there(names: Sequence[str]) -> dict[str, str]:
    """Variables that a child gets beside those of its machine: what the configuration names, and nothing that is this box's."""
    return {**{name: value for name in names if (value := os.environ.get(name)) is not None}, **FIXED, "PYTHONUNBUFFERED": "1"}


def write_script(folder: Path, terms: Terms, environment: Mapping[str, str], *words: str) -> Path:
    """The script that the scheduler starts: it changes into the folder, or ends, and becomes the worker with these `words`. The variables
    are those of the child, which the worker may become without a program of its own."""
    command = shlex.join([*terms.prefix, terms.python, "-m", "handlers.child.elsewhere", *words])
    lines = (
        "#!/bin/sh", "# Made by ckptd: what orders.json beside this file asks for.", f"cd {shlex.quote(str(folder))} || exit 0",
        'export PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"',
        *(f"export {name}={shlex.quote(value)}" for name, value in environment.items() if name.isidentifier()), f"exec {command}",
    )  # fmt: skip
    write_atomic(folder / SCRIPT, "\n".join(lines) + "\n", mode=0o700)
    return folder / SCRIPT
