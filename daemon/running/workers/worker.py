"""Spawns and supervises one child process: one attempt of one stage, as `daemon.running.attempts.executor` asks for.

Must be called from one permanent thread: the kernel kills a child when the *thread* that spawned it ends
(PR_SET_PDEATHSIG, prctl(2)). The child takes its own scheduling class before it loads anything heavy. No call blocks
longer than about a twentieth of a second, so that one thread can watch many children.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from daemon.contract.disk.attempt_log import AttemptLog
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import Code, FaultCode
from daemon.contract.jobs.messages import StageResult
from daemon.contract.jobs.processes import large_pages
from daemon.running.attempts.executor import LOG_FILE, Bounds, CpuShare, Order, Progress, Whereabouts
from daemon.running.attempts.post_mortem import Death, conclude, mib, over_limit
from daemon.running.attempts.progress_channel import Channel
from daemon.running.workers import warm
from daemon.running.workers.containment import Enclosure, kill_marked, kill_session
from daemon.running.workers.cpu_meter import CpuMeter
from daemon.system.box import free_disk
from daemon.system.filesystems.disks import LEAST_BYTES, probe
from daemon.system.logger import Logger
from daemon.system.processes import procfs
from daemon.system.processes.environment import FIXED, for_children
from daemon.toolchains.registry import command_of

log = Logger("worker")

LOOK_SECONDS = 1.0
QUICK_LOOK_SECONDS = 0.1
"""Pause between looks at a child that has a quarter of the processes that it may have."""
GAP_SECONDS = 5.0
"""A pause between two polls after which it was the daemon that stood still."""
STUCK_SECONDS = 30.0
_ID = re.compile(r"local:(\d+):(\d+(?:\.\d+)?)")


def environment_of(bounds: Bounds) -> dict[str, str]:
    """The variables that every child gets."""
    passed = for_children(os.environ, bounds.pass_environment)
    return {**passed, **FIXED, large_pages.NAME: large_pages.added(passed.get(large_pages.NAME, "")), "PYTHONUNBUFFERED": "1"}


class Worker:
    """A running child. `poll` until it gives a result."""

    def __init__(self, order: Order, command: Sequence[str] = ()) -> None:
        """Write the job file and start `command` (by default the stage's own) with its path. Raises OSError when it can't be started."""
        self.context = order.context
        self.folder = order.folder
        self.bounds = order.bounds
        self.memory = 0
        """Bytes that the attempt's processes held at the last look."""
        self.peak = 0
        """The largest such figure."""
        self._meter = CpuMeter(min(order.context.limits.threads, len(os.sched_getaffinity(0))))
        self._fault: Fault | None = None
        self._interrupted = False
        self._kill_at: float | None = None
        self._exited_at: float | None = None
        self._room = ""
        """The folder that had no room when the child ended."""
        self._ended: StageResult | None = None
        self._log = AttemptLog(self.folder / LOG_FILE, self.bounds.log_size)
        self._enclosure = Enclosure(mark_of(self.folder), self.bounds.memory, self.bounds.processes)
        self._oom_kills = self._oom_kills_before = procfs.oom_kills()
        try:
            forked = None if command or order.context.toolchain else self._forked(order)
            self.process = forked or self._spawn(order, command or command_of(order.context))
        except BaseException:
            self._enclosure.close()
            raise
        self._enclosure.hold(self.process.pid)
        assert self.process.stdout is not None
        self._pipe = self.process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._channel = Channel(self._pipe)
        known = procfs.entry(self.process.pid)
        self.id = local_id(self.process.pid, known.started if known else 0.0)
        # CLOCK_MONOTONIC stands still while the box is suspended and isn't moved when the wall clock is set: neither makes
        # a child late.
        self.started = self._heard = self._polled = time.monotonic()
        self._look_at = self.started
        self._deadline = self.started + self.bounds.timeout

    def _spawn(self, order: Order, command: Sequence[str]) -> subprocess.Popen[bytes]:
        job_file = _job_file(order, os.getpid())
        with open(self._log.path, "ab") as stderr:
            return subprocess.Popen(
                self._enclosure.wrap([*command, str(job_file)]),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True, cwd=self.folder,
                env={**environment_of(self.bounds), **self._enclosure.environment},
            )  # fmt: skip

    def _forked(self, order: Order) -> warm.Forked | None:
        """The attempt, forked from a process that has its libraries loaded; None where none is ready, which a later attempt will find."""
        if self.bounds.warm <= 0:
            return None
        wanted = warm.wanted(order.context)
        kind = warm.kind_of(wanted or "torch", order.context.limits, environment_of(self.bounds))
        source = warm.take(kind, warm.enough(order.context)) if wanted else None
        try:
            return None if source is None else self._forked_from(source, order)
        finally:
            both: tuple[warm.Libraries, ...] = ("torch", "light")  # beside this attempt, and each other
            for libraries in both if warm.comes_first(order.context) else both[:1] if wanted == "torch" else ():
                warm.get_ready(replace(kind, libraries=libraries), self.bounds.warm, self.bounds.memory_reserve)

    def _forked_from(self, source: warm.Loaded, order: Order) -> warm.Forked | None:
        request = warm.order_of(
            _job_file(order, source.process.pid), self.folder, self.context.stage, self._enclosure.environment, self._enclosure.group
        )
        ours, theirs = os.pipe()
        try:
            with open(self._log.path, "ab") as stderr:
                return source.fork(request, [theirs, stderr.fileno()], ours)
        except OSError:
            os.close(ours)
            return None
        finally:
            os.close(theirs)

    @property
    def progress(self) -> Progress:
        """The last thing that the child said."""
        return self._channel.progress

    @property
    def warnings(self) -> list[str]:
        """What the child wants people to see, up to a few hundred lines."""
        return self._channel.warnings

    @property
    def cpu(self) -> CpuShare | None:
        """CPU time that its processes got of late."""
        return self._meter.share

    @property
    def ended(self) -> bool:
        """Whether `poll` has given the result."""
        return self._ended is not None

    @property
    def place(self) -> Whereabouts | None:
        """None: it is this box."""
        return None

    @property
    def ended_surely(self) -> bool:
        """Its processes were waited for."""
        return True

    @property
    def wait_handle(self) -> int | None:
        """The pipe on which the child says how far it is, while it is open."""
        return None if self.ended else self._pipe

    # Watching

    def poll(self) -> StageResult | None:
        """Read progress, enforce the bounds; the result once nothing of the child lives, the same at every further call."""
        if self._ended is not None:
            return self._ended
        now = time.monotonic()
        self._forgive(now)
        if self._channel.read():
            self._heard = now
        self._log.trim()
        if self._exited_at is None and (status := self._status()) is not None:
            self._exited_at = now
            # At once: a disk that was full when the child could not even say so may have room a moment later.
            self._room = self._no_room() if status else ""
        if self._exited_at is not None:
            return self._close(now, self._exited_at)
        if now >= self._look_at:
            self._look(now)
        self._judge(now)
        return None

    def _forgive(self, now: float) -> None:
        """After a pause in which the daemon itself stood still its children get that time back."""
        gap, self._polled = now - self._polled, now
        if gap > GAP_SECONDS:
            self._deadline += gap
            self._heard = now

    def _status(self) -> int | None:
        """The exit code or signal of a child that has ended, None while it runs. It stays a zombie, so that its id and its session's stay
        its own until all is swept."""
        if isinstance(self.process, warm.Forked):
            return self.process.status()
        if self.process.returncode is not None:
            return self.process.returncode
        try:
            status = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return 0  # somebody else has waited for it
        return None if status is None else status.si_status

    def _look(self, now: float) -> None:
        pids = self._enclosure.inside()
        self._oom_kills_before, self._oom_kills = self._oom_kills, procfs.oom_kills()
        self.memory = self._enclosure.memory(pids, self.bounds.memory)
        self.peak = max(self.peak, self.memory)
        self._excuse(pids, now)
        self._look_at = now + (QUICK_LOOK_SECONDS if len(pids) > self.bounds.processes // 4 else LOOK_SECONDS)
        if len(pids) > self.bounds.processes:
            cause = f"it had {len(pids)} processes at the same time, but may have {self.bounds.processes}"
            self._end(FaultCode.TOO_MANY_PROCESSES, cause, "read the attempt's log, which says what it was doing; no stage needs that many")
            self.hurry()
        elif self.bounds.memory and self.memory > self.bounds.memory:
            code, cause, remedy = over_limit(self.bounds.memory, self.bounds.expected)
            self._end(code, f"its processes used {mib(self.memory)} of memory, but it {cause}; it was ended", remedy)

    def _excuse(self, pids: Collection[int], now: float) -> None:
        """Let time in which other processes kept the child from the CPU count for nothing: it is slow then, neither late nor hung."""
        before = self._meter.kept_waiting
        self._meter.look(pids, now)
        waited = self._meter.kept_waiting - before
        self._deadline += waited
        self._heard = min(now, self._heard + waited)

    def _judge(self, now: float) -> None:
        if self._kill_at is not None:
            if now > self._kill_at:
                self._enclosure.kill()
        elif now > self._deadline:
            cause = f"it ran longer than limits.stage_timeout, {self.bounds.timeout:.0f} s"
            self._end(FaultCode.TIMEOUT, cause, "raise limits.stage_timeout if the stage still made progress")
        elif now - self._heard > self.bounds.silence:
            cause = f"it hung: it showed no activity for {self.bounds.silence:.0f} s"
            self._end(FaultCode.HUNG, cause, "read the attempt's log; set limits.jobs and limits.stages to 1 if the machine was swapping")

    # Ending

    def stop(self, fault: Fault | None = None) -> None:
        """Ask the child to come to a safe point and end; after the grace time it is killed.

        Its outcome is interrupted or, with a `fault`, retryable by that. The first call decides.
        """
        if self._kill_at is None:
            self._interrupted, self._fault = fault is None, fault
            self._kill_at = time.monotonic() + self.bounds.grace
            self._enclosure.ask()

    def hurry(self) -> None:
        """Kill all of it now. An attempt that nobody has stopped before counts as interrupted."""
        if self._ended is None:
            self.stop()
            self._kill_at = time.monotonic()
            self._enclosure.kill()

    def _end(self, code: Code, cause: str, remedy: str) -> None:
        operation = f"run the stage {self.context.stage}"
        self.stop(Fault(code=code, operation=operation, cause=cause, remedy=remedy))

    def _close(self, now: float, exited_at: float) -> StageResult | None:
        if not self._enclosure.sweep():
            if now - exited_at < STUCK_SECONDS:
                return None
            log.error(
                "processes of an attempt can't be killed, the kernel holds them",
                event_id=Event.ATTEMPT_LEFT,
                stage=self.context.stage,
                pids=sorted(self._enclosure.members()),
            )
        code = self.process.wait()
        self._channel.read()
        self._log.finish()
        if self.process.stdout:
            self.process.stdout.close()
        death = self._death(code)
        self._enclosure.close()
        self._ended = conclude(self.context, self._log, death, round(time.monotonic() - self.started, 3))
        return self._ended

    def _death(self, code: int) -> Death:
        events = self._enclosure.events()
        killed = events["oom_kill"] > 0 or procfs.oom_kills() > self._oom_kills_before
        return Death(
            code=code, memory=self.memory, limit=self.bounds.memory, expected=self.bounds.expected,
            at_limit=events["oom"] > 0 and events["oom_kill"] > 0,
            out_of_memory=killed, no_room=self._room,
            refused_forks=events["forks"] > 0, interrupted=self._interrupted, fault=self._fault,
        )  # fmt: skip

    def _no_room(self) -> str:
        """The first of the folders that the attempt wrote into whose disk takes no writes now.

        Nothing is tried in the folder of its output, which the next attempt may go on with.
        """
        for folder in (self.folder, Path(self.context.staging).parent):
            with contextlib.suppress(OSError):
                if free_disk(folder) < LEAST_BYTES or probe(folder) is not None:
                    return str(folder)
        return ""


def _job_file(order: Order, parent: int) -> Path:
    limits = order.context.limits.model_copy(update={"parent_pid": parent})
    return order.write_job_file(order.context.model_copy(update={"limits": limits}))


def mark_of(folder: Path) -> str:
    """What the processes of the attempt with this folder carry in their environment."""
    return str(folder.absolute())


def local_id(pid: int, started: float) -> str:
    """The id of the attempt whose first process is `pid` and started so many seconds after boot."""
    return f"local:{pid}:{started}"


def process_of(id: str | None) -> tuple[int, float] | None:
    """Pid and start that `local_id` put into an id; None for one that names no process of ours."""
    match = _ID.fullmatch(id or "")
    return (int(match[1]), float(match[2])) if match else None


def kill_stray(process: tuple[int, float] | None, folder: Path) -> bool:
    """Kill what outlived its daemon of the attempt with this `folder`; whether there was anything.

    `process`: pid and start of its first one, as far as they are known; what descends from that very one goes too.
    """
    marked = kill_marked(mark_of(folder)) > 0
    if process is None:
        return marked
    (pid, started), known = process, procfs.entry(process[0])
    if known is None or not started or known.dead or abs(known.started - started) > 0.05:
        return marked
    kill_session(pid)
    return True
