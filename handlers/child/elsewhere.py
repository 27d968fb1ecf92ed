"""Entry of a worker: `python -m handlers.child.elsewhere FOLDER` runs the attempt in `FOLDER` on a machine that a scheduler chose;
`--probe FOLDER` says what that machine sees.

It does what the daemon does for a child on its own box: it starts `handlers` with the job file, hands on what stops it, bounds its log,
sees that nothing of it is left, and writes how it ended. The child is forked from it, since most of what a short stage takes is to start
Python and import what both need; one of another interpreter is a new program.
 What passes between the two is in `daemon.contract.jobs.processes.elsewhere`.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import psutil

from daemon.contract.disk.attempt_files import JOB_FILE, LOG_FILE
from daemon.contract.disk.attempt_log import AttemptLog
from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.oom import oom_kills
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import END, FENCE, ORDERS, SAID, STOP, Claim, End, Orders
from handlers.child.probe import differing_from, probe
from handlers.child.scratch import Scratch, unusable
from handlers.child.warm import become, name_process

SHORT_SECONDS, LONG_SECONDS = 0.005, 0.05
"""Between looks whether the child has ended: at its beginning, and later."""
FILES_SECONDS = 1.0
"""Between looks for what the daemon has written."""
LAST_SECONDS = 60.0
"""For which a worker tries to write its last words."""
JOB_IDS = ("SLURM_JOB_ID", "CKPTD_SCHEDULER_ID")
JOB_CORES = ("SLURM_CPUS_PER_TASK", "CKPTD_SCHEDULER_CPUS")
EXIT_TAKEN = 0
"""Somebody else has the attempt: there is nothing to say."""


class Child:
    """The process that does the work, with a session of its own. Raises OSError where there can be none."""

    def __init__(self, run: Callable[[], int]) -> None:
        self.returncode: int | None = None
        hears, tells = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            become(lambda: _in_a_session(run, tells), loaded=False)
        os.close(tells)
        os.read(hears, 1)  # until it has its session, no signal to that reaches it
        os.close(hears)

    def poll(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


def _in_a_session(run: Callable[[], int], tells: int) -> int:
    os.setsid()
    os.close(tells)
    return run()


class Worker:
    """Runs one attempt."""

    def __init__(self, folder: Path, orders: Orders) -> None:
        self.folder, self.orders = folder, orders
        self.log = AttemptLog(folder / LOG_FILE, orders.log_size)
        self.terminated = self.asked = False
        self.peak = 0
        self._kills = oom_kills()
        self.scratch: Scratch | None = None
        self._said = 0.0

    def run(self) -> End:
        """Run the child to its end."""
        if (fault := self._other_versions()) is not None:
            return End(code=0, result=False, fault=fault)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._terminate)
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # a site lets sbatch send one before a time limit; the work goes on until that
            signal.signal(number, signal.SIG_IGN)
        try:
            self._make_scratch()
        except OSError as error:
            cause = f"its scratch folder {self.orders.scratch} can't be used: {error.strerror}"
            return End(code=0, result=False, fault=unusable(cause, str(error.filename)))
        try:
            return self._run()
        finally:
            if self.scratch is not None:
                self.scratch.close()

    def _make_scratch(self) -> None:
        if self.orders.scratch:
            self.scratch = Scratch(Path(os.path.expandvars(self.orders.scratch)), self.orders.token)

    def _run(self) -> End:
        job_file = str(self._job_file())
        sys.stdout.flush()
        child = Child(lambda: self._work(job_file))
        code = self._supervise(child)
        self._sweep(child)
        self.log.finish()
        fault = self.scratch.hand_over(self._context, self._copies_on, code) if self.scratch is not None else None
        return End(
            fault=fault, code=code, result=self._result.exists(), peak=self.peak, terminated=self.terminated,
            out_of_memory=oom_kills() > self._kills,
        )  # fmt: skip

    def _work(self, job_file: str) -> int:
        """In the child: do the work in this process where it is what the command would start, else start that."""
        os.chdir(self.folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        for number, descriptor in enumerate((
            os.open(os.devnull, os.O_RDONLY), os.open(self.folder / SAID, flags), os.open(self.log.path, flags),
        )):  # fmt: skip
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
        as_here = all(os.environ.get(name) == value for name, value in self.orders.environment.items())
        python, *words = self.orders.command
        if not as_here or python != sys.executable or words[:1] != ["-m"] or len(words) != 2:
            environment = {**os.environ, **self.orders.environment, "PYTHONUNBUFFERED": "1"}
            try:
                os.execve(python, [*self.orders.command, job_file], environment)
            except OSError as error:
                print(f"{python} can't be run: {error.strerror}", file=sys.stderr)
                return 1
        name_process(f"ckptd:{self._context.stage}")
        sys.argv = [words[1], job_file]
        try:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else bool(end.code)
        return 0

    def _job_file(self) -> Path:
        """The child's own job file: its parent is this process, and its threads are those that the scheduler gave."""
        self._context = context = StageContext.model_validate_json((self.folder / JOB_FILE).read_bytes())
        self._result = Path(context.result)
        if self.scratch is not None:
            context = self.scratch.context(context)
        cores = len(os.sched_getaffinity(0))
        given = next((int(cores_given) for name in JOB_CORES if (cores_given := os.environ.get(name))), 0) or min(
            cores, context.limits.threads
        )
        limits = context.limits.model_copy(update={
            "parent_pid": os.getpid(), "threads": max(1, min(given, cores)), "nice": 0, "idle": False,
            "device": "cuda" if self.orders.gpus else context.limits.device,
        })  # fmt: skip
        path = self.folder / "job-there.json"
        write_atomic(path, context.model_copy(update={"limits": limits}).model_dump_json(indent=1))
        return path

    def _other_versions(self) -> Fault | None:
        """The fault where other releases are installed here than the daemon plans with."""
        differing = differing_from(self.orders.versions)
        if not differing:
            return None
        return Fault(
            code=FaultCode.OTHER_VERSIONS, operation=f"run an attempt on {socket.gethostname()}",
            cause=f"its environment differs from the daemon's: {', '.join(differing)}", path=sys.prefix,
            remedy="install the same releases there, or let cluster.python name an environment on the shared file system",
        )  # fmt: skip

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.terminated = True

    def _supervise(self, child: Child) -> int:
        """Care for it until its end; gives its exit code."""
        looked, pause = 0.0, SHORT_SECONDS
        while (code := child.poll()) is None:
            if self.terminated and not self.asked:
                self._tell(child, signal.SIGTERM)
            if time.monotonic() - looked >= FILES_SECONDS:
                looked = time.monotonic()
                self._look(child)
            time.sleep(pause)
            pause = min(LONG_SECONDS, 1.2 * pause)
        return code

    def _look(self, child: Child) -> None:
        """Measure, bound the log, and obey. A file system that does not answer says nothing."""
        self.peak = max(self.peak, memory_of(child.pid))
        self.log.trim()
        with contextlib.suppress(OSError):
            names = set(os.listdir(self.folder))
            if FENCE in names:
                self._tell(child, signal.SIGKILL)
            elif STOP in names and not self.asked:
                self._tell(child, signal.SIGTERM)

    def _copies_on(self) -> bool:
        """Say that it lives while it copies; whether it may go on."""
        if time.monotonic() - self._said >= FILES_SECONDS:
            self._said = time.monotonic()
            with open(self.folder / SAID, "ab") as said:
                said.write(b'{"heartbeat": 1}\n')
            return FENCE not in os.listdir(self.folder)
        return True

    def _tell(self, child: Child, number: int) -> None:
        self.asked = True
        with contextlib.suppress(OSError):
            os.killpg(child.pid, number)

    def _sweep(self, child: Child) -> None:
        """Nothing of the session outlives the child."""
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)


def memory_of(pid: int) -> int:
    """Resident bytes of a process and of all that descend from it."""
    total = 0
    with contextlib.suppress(psutil.Error):
        leader = psutil.Process(pid)
        for process in [leader, *leader.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def job_id(environment: Mapping[str, str]) -> str:
    """The scheduler's own name of the job that runs this process, "" where it does not say."""
    return next((environment[name] for name in JOB_IDS if name in environment), "")


def main(folder: Path) -> int:
    """Run the attempt in `folder`, unless somebody has it; gives the exit code."""
    orders = elsewhere.get(folder, ORDERS, Orders)
    if orders is None or (folder / FENCE).exists():
        return EXIT_TAKEN
    if not elsewhere.take(folder, Claim(by="worker", host=socket.gethostname(), id=job_id(os.environ))):
        print(f"{folder}: this attempt was begun before, or taken back; nothing is done", file=sys.stderr)
        return EXIT_TAKEN
    return say_last(folder, Worker(folder, orders).run())


def say_last(folder: Path, end: End) -> int:
    """Write the last words, also where the shared file system is full or away just now; gives the exit code."""
    deadline = time.monotonic() + LAST_SECONDS
    while True:
        try:
            elsewhere.put(folder, END, end)
        except OSError as error:
            if time.monotonic() < deadline and not os.path.exists(folder / FENCE):
                time.sleep(FILES_SECONDS)
                continue
            print(f"{folder / END} can't be written: {error.strerror}; so nobody knows how this attempt ended", file=sys.stderr)
            return 1
        return 0


if __name__ == "__main__":
    sys.exit(probe(Path(sys.argv[2])) if sys.argv[1] == "--probe" else main(Path(sys.argv[1])))
