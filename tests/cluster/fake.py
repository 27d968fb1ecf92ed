"""A scheduler within the tests' process, whose jobs are real processes and which can do all that goes wrong with schedulers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daemon.running.cluster.port import ABSENT, Ending, Full, Refused, Resources, Sighting, State, Unsure

OUTPUT = "scheduler.txt"


@dataclass
class Job:
    """A job that was handed in."""

    id: str
    script: Path
    resources: Resources
    runs: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ended: Ending | None = None
    """What is said of its end, where that is not its own."""
    forgotten: bool = False
    paused: bool = False


class FakeScheduler:
    """`held`: jobs wait. `down`: no answer to anything. `swallows`: the next submission is taken, and the answer lost; `drops`: it is lost
    itself. `refusal`: no job is taken."""

    name = "fake"

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.submitted: list[str] = []
        self.calls = 0
        self.held = self.down = self.swallows = self.drops = self.full = False
        self.refusal, self.reason = "", "nobody let it begin"
        self._lock = threading.RLock()

    def submit(self, token: str, script: Path, resources: Resources) -> str:
        with self._lock:
            self._ask()
            self.submitted.append(token)
            if self.full:
                raise Full("it has enough")
            if self.refusal:
                raise Refused(self.refusal)
            if self.drops:
                self.drops = False
                raise Unsure("no answer")
            before = self.jobs.get(token)
            self.jobs[token] = Job(str(len(self.submitted)), script, resources, before.runs if before else [])
            if not self.held:
                self.begin(token)
            if self.swallows:
                self.swallows = False
                raise Unsure("no answer")
            return self.jobs[token].id

    def look(self, tokens: Collection[str]) -> Mapping[str, Sighting]:
        with self._lock:
            self._ask()
            return {token: self._sighting(token) for token in tokens}

    def cancel(self, jobs: Mapping[str, str]) -> None:
        with self._lock:
            self._ask()
            for token in jobs:
                self.end(token, Ending.CANCELLED, signal.SIGTERM)

    def tail(self, token: str, folder: Path) -> str:
        with contextlib.suppress(OSError):
            return (folder / OUTPUT).read_text(errors="replace")[-4000:]
        return ""

    def _ask(self) -> None:
        self.calls += 1
        if self.down:
            raise Unsure("nobody is there")

    def _sighting(self, token: str) -> Sighting:
        job = self.jobs.get(token)
        if job is None or job.forgotten:
            return ABSENT
        if job.ended is not None:
            return Sighting(State.GONE, job.id, job.ended.upper(), ending=job.ended)
        if not job.runs:
            return Sighting(State.PENDING, job.id, "PENDING", self.reason)
        lives = any(run.poll() is None for run in job.runs)
        if lives and job.paused:
            return Sighting(State.RUNNING, job.id, "SUSPENDED", "it is suspended", "here", paused=True)
        return Sighting(State.RUNNING if lives else State.GONE, job.id, "RUNNING" if lives else "COMPLETED", host="here")

    # What goes wrong

    def begin(self, token: str) -> None:
        """Start a job, or start it again as an administrator may."""
        job = self.jobs[token]
        environment = {**os.environ, "CKPTD_SCHEDULER_ID": job.id}
        with open(job.script.parent / OUTPUT, "ab") as said:
            job.runs.append(subprocess.Popen(
                [str(job.script)], env=environment, start_new_session=True, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            ))  # fmt: skip

    def end(self, token: str, ending: Ending, number: int = signal.SIGKILL) -> None:
        """End a job, and say that it ended so."""
        with self._lock:
            if token in self.jobs:
                self.jobs[token].ended = ending
                self.signal(token, number)

    def signal(self, token: str, number: int) -> None:
        """Signal all processes of a job."""
        for run in self.jobs[token].runs:
            if run.poll() is None:
                for pid in (run.pid, *children_of(run.pid)):
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)

    def pause(self, token: str, *, go_on: bool = False) -> None:
        """Suspend a job, as one that gives way for a while, or let it go on."""
        with self._lock:
            self.jobs[token].paused = not go_on
            self.signal(token, signal.SIGCONT if go_on else signal.SIGSTOP)

    def close(self) -> None:
        """Leave nothing behind."""
        for token, job in self.jobs.items():
            self.signal(token, signal.SIGCONT)
            self.signal(token, signal.SIGKILL)
            for run in job.runs:
                run.wait()


def children_of(pid: int) -> list[int]:
    """Processes that descend from one."""
    direct = [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return [*direct, *(below for child in direct for below in children_of(child))]
