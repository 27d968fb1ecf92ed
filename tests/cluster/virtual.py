"""A cluster of many machines in virtual time, and what a runner does with it. The files are real, the clock is not.

What went wrong is counted here, by what the machines did: nothing is asked of the code that is tested.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.disk.files import seal
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import END, FENCE, SAID, STOP, Claim, End
from daemon.running.attempts.executor import JOB_FILE, Attempt, Bounds, Order
from daemon.running.cluster.executor import ClusterExecutor
from daemon.running.cluster.port import ABSENT, Ending, Full, Resources, Sighting, State, Unsure
from tests.workers.helpers import make_context

BEAT = 5.0
FAULTS = (
    "node lost", "node back", "preempted", "cancelled", "time limit", "started twice", "answer lost", "submission lost",
    "submission delayed", "forgotten", "result late", "killed after its result", "full", "killed while it ends",
)  # fmt: skip


@dataclass
class Job:
    """A job of the virtual cluster."""

    id: str
    folder: Path
    fault: str | None
    state: State = State.PENDING
    ending: Ending = Ending.ENDED
    forgotten: bool = False
    workers: int = 0
    """Workers of it that did the stage's work."""


class VirtualCluster:
    """`slots` machines. `faults`: each submission meets one of these, in turn, None for none."""

    name = "virtual"

    def __init__(self, slots: int, faults: list[str | None], chance: random.Random) -> None:
        self.now = 0.0
        self.jobs: dict[str, Job] = {}
        self.down_until = 0.0
        self.longest = 60.0
        """Seconds of a stage's work."""
        self.accepted: Counter[str] = Counter()
        self.looks = 0
        self.met: Counter[str] = Counter()
        self.finished: set[str] = set()
        """Attempts that a machine in reach finished, and whose result could be seen in time."""
        self._slots, self._faults, self._chance = slots, faults, chance
        self._queue: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._busy = 0

    # The port

    def submit(self, token: str, script: Path, resources: Resources) -> str:
        self._ask()
        fault = self._faults.pop() if self._faults else None
        if fault is not None:
            self.met[fault] += 1
        if fault == "full":
            raise Full("enough")
        if fault == "submission lost":
            raise Unsure("lost")
        job = Job(str(next(self._numbers)), script.parent, fault)
        if fault == "submission delayed":
            self.at(self._chance.uniform(1, 400), lambda: self._accept(token, job))
            raise Unsure("delayed")
        self._accept(token, job)
        if fault == "answer lost":
            raise Unsure("answer lost")
        return job.id

    def look(self, tokens: Collection[str]) -> Mapping[str, Sighting]:
        self._ask()
        self.looks += 1
        return {token: self._sighting(token) for token in tokens}

    def cancel(self, jobs: Mapping[str, str]) -> None:
        self._ask()
        for token in jobs:
            if token in self.jobs:
                self._end(self.jobs[token], Ending.CANCELLED)

    def tail(self, token: str, folder: Path) -> str:
        return ""

    def _ask(self) -> None:
        if self.now < self.down_until:
            raise Unsure("down")

    def _sighting(self, token: str) -> Sighting:
        job = self.jobs.get(token)
        if job is None or job.forgotten:
            return ABSENT
        return Sighting(job.state, job.id, str(job.state), ending=job.ending)

    # Machines

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something so many seconds from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), what))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = end

    def _accept(self, token: str, job: Job) -> None:
        self.accepted[token] += 1
        self.jobs[token] = job
        self._queue.append(token)
        self._fill()

    def _fill(self) -> None:
        while self._queue and self._busy < self._slots:
            job = self.jobs[self._queue.pop(0)]
            if job.state is State.PENDING:
                job.state = State.RUNNING
                self._busy += 1
                VirtualWorker(self, job, self._chance).begin()

    def _end(self, job: Job, ending: Ending = Ending.ENDED) -> None:
        if job.state is State.GONE:
            return
        self._busy -= job.state is State.RUNNING
        job.state, job.ending = State.GONE, ending
        self._fill()


class VirtualWorker:
    """What `handlers.child.elsewhere` does, on a machine that may fail."""

    def __init__(self, cluster: VirtualCluster, job: Job, chance: random.Random) -> None:
        self.cluster, self.job, self.chance = cluster, job, chance
        self.alive = True
        self.left = chance.uniform(1, cluster.longest)

    def begin(self) -> None:
        """Claim the attempt and work, unless somebody has it."""
        folder = self.job.folder
        if not folder.is_dir() or (folder / FENCE).exists() or not elsewhere.take(folder, Claim(by="worker", host="node")):
            self.cluster._end(self.job)
            return
        self.job.workers += 1
        self.context = StageContext.model_validate_json((folder / JOB_FILE).read_bytes())
        self._plan()
        self._beat()

    def _plan(self) -> None:
        fault, soon = self.job.fault, self.chance.uniform(0, self.left)
        ends = {
            "preempted": Ending.PREEMPTED,
            "cancelled": Ending.CANCELLED,
            "time limit": Ending.TIME_LIMIT,
            "node lost": Ending.NODE_LOST,
        }
        if fault in ends:
            self.cluster.at(soon, lambda: self._die(ends[fault]))
        elif fault == "node back":
            self.cluster.at(soon, lambda: self._vanish(self.chance.uniform(30, 600)))
        elif fault == "forgotten":
            self.cluster.at(soon, lambda: setattr(self.job, "forgotten", True))
        elif fault == "started twice":
            self.cluster.at(self.chance.uniform(0, 2 * self.left), lambda: VirtualWorker(self.cluster, self.job, self.chance).begin())

    def _die(self, ending: Ending) -> None:
        if self.alive:
            self.alive = False
            self.cluster._end(self.job, ending)

    def _vanish(self, seconds: float) -> None:
        """The machine is out of reach, its scheduler gives it up, and then it is there again."""
        if self.alive:
            self.alive = False
            self.cluster._end(self.job, Ending.NODE_LOST)
            self.cluster.at(seconds, self._come_back)

    def _come_back(self) -> None:
        self.alive = True
        self._beat()

    def _beat(self) -> None:
        if not self.alive:
            return
        folder = self.job.folder
        if (folder / FENCE).exists() or (folder / STOP).exists():
            self._finish(Outcome.INTERRUPTED)
            return
        with open(folder / SAID, "a", encoding="utf-8") as stream:
            stream.write('{"heartbeat": 1}\n')
        if self.left <= 0:
            self._finish(Outcome.SUCCEEDED)
            return
        wait = min(BEAT, self.left)
        self.left -= wait
        self.cluster.at(wait, self._beat)

    def _finish(self, outcome: Outcome) -> None:
        """Write the output, where the staging folder is still the attempt's; then the result, then the last words."""
        staging, folder, fault = Path(self.context.staging), self.job.folder, self.job.fault
        files = ()
        if outcome is Outcome.SUCCEEDED:
            if not staging.is_dir() or os.lstat(staging).st_ino != self.context.staging_inode:
                outcome = Outcome.RETRYABLE
            else:
                (staging / "out.bin").write_text(self.context.attempt_id)
                files = seal(staging)
        result = StageResult(outcome=outcome, attempt=self.context.attempt_id, files=files)
        write = lambda: elsewhere.put(folder, "result.json", result)  # noqa: E731
        if outcome is Outcome.SUCCEEDED and fault not in ("node back", "killed while it ends"):
            self.cluster.finished.add(self.context.attempt_id)
        if fault == "result late":
            self.cluster.at(self.chance.uniform(1, 60), write)
        elif fault != "killed while it ends":
            write()
        if fault not in ("killed after its result", "killed while it ends"):
            elsewhere.put(folder, END, End(code=0, result=True))
        self.alive = False
        self.cluster._end(self.job)


@dataclass
class Stage:
    """A stage of the virtual runner's."""

    name: str
    number: int = 0
    attempt: Attempt | None = None
    order: Order | None = None
    accepted: list[str] = field(default_factory=list)
    """Attempts that it took for done."""
    digest: str = ""


class VirtualRunner:
    """Starts every stage, and again until it has succeeded; dies now and then."""

    def __init__(self, folder: Path, cluster: VirtualCluster, stages: int, late: float) -> None:
        self.folder, self.cluster, self.late = folder, cluster, late
        self.stages = [Stage(f"s{number}") for number in range(stages)]
        self.template = make_context(folder)
        self.bounds = Bounds(timeout=3600, grace=20, memory=0, memory_reserve=0, silence=900, warm=0)
        self.executor = self._make()

    def _make(self) -> ClusterExecutor:
        executor = ClusterExecutor(self.cluster, late=self.late, clock=lambda: self.cluster.now)
        executor.link.runs, executor.link.pause = False, lambda seconds: None
        return executor

    def round(self) -> bool:
        """Start and collect; whether there is anything left to do."""
        for stage in self.stages:
            if stage.accepted:
                continue
            if stage.attempt is None:
                self._start(stage)
            elif (result := stage.attempt.poll()) is not None:
                assert stage.order is not None
                if result.outcome is Outcome.SUCCEEDED:
                    stage.accepted.append(stage.order.context.attempt_id)
                stage.attempt = None
        self.executor.link.call()
        self.executor.link.watch()
        return any(not stage.accepted for stage in self.stages)

    def _start(self, stage: Stage) -> None:
        stage.number += 1
        folder = self.folder / stage.name / f"merge.{stage.number}"
        staging = self.folder / stage.name / "staging" / f"merge.{stage.number}"
        folder.mkdir(parents=True)
        staging.mkdir(parents=True)
        context = self.template.model_copy(update={
            "job": stage.name, "attempt": stage.number, "staging": str(staging), "staging_inode": os.lstat(staging).st_ino,
            "result": str(folder / "result.json"), "temporary": str(folder / "tmp"),
        })  # fmt: skip
        stage.order = Order(context, folder, self.bounds)
        stage.attempt = self.executor.start(stage.order)

    def die_and_start_again(self) -> None:
        """Another daemon takes over what is open; it knows of each attempt its folder."""
        self.executor = self._make()
        for stage in self.stages:
            if stage.attempt is not None and stage.order is not None:
                left = self.executor.reclaim(None, stage.order.folder, self.bounds)
                assert left is not None and not isinstance(left, StageResult)
                stage.attempt = left

    def content(self, stage: Stage) -> str:
        """What lies in the staging folder of the attempt that was taken."""
        assert stage.order is not None
        return (Path(stage.order.context.staging) / "out.bin").read_text()
