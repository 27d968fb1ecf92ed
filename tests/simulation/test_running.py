"""The runner against random histories of jobs on a virtual clock: the limits hold at every start, and what measures time has the box to
itself and its turn in bounded time.

The runner, its rules and its journal are the real ones; attempts are fakes that take virtual seconds. Jobs come, fail, are paused, given
up and retried, and the runner dies and starts anew. `CKPTD_SIMULATION_SEED=N` plays that history alone.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from types import ModuleType

import pytest
import structlog

from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.contract.disk.files import FileEntry
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.contract.jobs.plan import spec_of
from daemon.journal import attempts
from daemon.journal import rows as journal_rows
from daemon.journal.journal import Journal
from daemon.journal.rows import StageRow
from daemon.journal.states import ENDED_STAGE
from daemon.publishing.kept import is_whole
from daemon.running import resumption, starter, waits
from daemon.running.attempts import children, outcomes
from daemon.running.attempts.executor import Order
from daemon.running.runner import Runner
from daemon.system import box
from tests.runner.desk import Desk, Fake, FakeExecutor, done, failing
from tests.simulation.play import RAM
from tests.simulation.test_simulation import SEED, seeds

PATIENCE = 30.0
"""Takes the place of ALONE_SECONDS. All times are virtual seconds."""
STEP = 1.0
"""Between two rounds of the runner."""
LOOKS = 5.0
"""What looks at waiting jobs may cost beside the bound."""
SHORT, LONG = 8.0, 3 * PATIENCE
"""Most stages take at most the one, some up to the other."""
END = 1500.0
MODULES = (attempts, children, starter, waits)


class Clock:
    """Stands in for the module `time` where the running rules ask it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = 0.0
        """By how much the wall clock is ahead, as somebody may set it."""

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self.wall

    CLOCK_BOOTTIME = 7

    def clock_gettime(self, which: int) -> float:
        return self.now


def calendar_of(clock: Clock) -> type[datetime]:
    """`datetime` by that clock, for the journal's rows: by their times runs take turns."""

    class Calendar(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(clock.now, tz)

    return Calendar


class Rechecks:
    """Stands in for the thread that reads finished outputs again: the answer is there when it is asked for the second time."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._asked: set[Path] = set()

    def ask(self, folder: Path, files: Sequence[FileEntry]) -> bool | None:
        if folder in self._asked:
            self._asked.discard(folder)
            return is_whole(folder, files)
        self._asked.add(folder)
        return None

    def close(self) -> None:
        pass


class History:
    """One history: what was started when, and what of that must not have been."""

    def __init__(self, seed: int, folder: Path, clock: Clock) -> None:
        self.rng, self.clock = random.Random(seed), clock
        outcomes._jitter.seed(seed)
        limits = {"jobs": self.rng.choice([1, 2, 3]), "threads": self.rng.choice([1, 4]), "stages": self.rng.choice([1, 2, 3]),
                  "retry_seconds": 10, "disk_reserve": 0, "memory_fraction": 1}  # fmt: skip
        settings = Settings.model_validate({"limits": limits, "state": {"directory": folder}})
        self.limits = settings.limits
        self._paths = paths = prepare(folder, folder / "out")
        self.journal = Journal(paths.journal)
        self.runner = Runner(settings, self.journal, paths, FakeExecutor(self._start))
        self.desk = Desk(self.runner, self.journal, folder, script=self._script)
        self.said: list[str] = []
        self.measured = self.beside = self.restarts = 0
        self._ends: dict[str, float] = {}
        self._due: dict[tuple[str, str, int], float] = {}
        """(job, stage, attempt) → seconds for which it has wanted to run."""
        self._waited: dict[tuple[str, str, int], float] = {}
        """The same, without those during which another measurement ran."""
        self._jobs = 0

    def _start(self, order: Order) -> Fake:
        context, now = order.context, self.clock.now
        others = [(one.job.id, one.stage) for one in self.runner.children.running.values()]
        name = f"{context.job} {context.stage} at {now:.1f}"
        self._check_limits(name, context, others)
        if any(spec_of(stage).alone for _, stage in others):
            self.said.append(f"{name} started beside a measurement: {others}")
        if spec_of(context.stage).alone:
            self.measured += 1
            waited = self._due.get((context.job, context.stage, context.attempt), 0.0)
            if others:
                self.beside += 1
                if waited < PATIENCE - LOOKS:
                    self.said.append(f"{name} measured beside {others} after {waited:.1f} s")
        self._ends[context.attempt_id] = now + self.rng.uniform(0.1, LONG if self.rng.random() < 0.1 else SHORT)
        return self.desk.start(order)

    def _check_limits(self, name: str, context: StageContext, others: list[tuple[str, str]]) -> None:
        """Note what is started beside too many others; `others`: (job, stage) of what runs."""
        limits, jobs = self.limits, {job for job, _ in others}
        if context.job not in jobs and len(jobs) >= limits.jobs:
            self.said.append(f"{name} started beside the jobs {sorted(jobs)}, limits.jobs is {limits.jobs}")
        if sum(job == context.job for job, _ in others) >= limits.stages:
            self.said.append(f"{name} started beside {others}, limits.stages is {limits.stages}")
        threads = sum(one.context.limits.threads for one in self.runner.children.running.values()) + context.limits.threads
        if threads > limits.effective_threads:
            self.said.append(f"{name} brings the threads to {threads}, limits.threads is {limits.effective_threads}")

    def _die(self) -> None:
        """The daemon is killed with its children, and starts again."""
        self.restarts += 1
        self._waited.clear()  # the next one is patient anew
        self.runner.parts.resumption.close()
        self.runner = Runner(self.runner.settings, self.journal, self._paths, FakeExecutor(self._start))
        self.desk.runner = self.runner
        self.runner.recover()

    def _script(self, context: StageContext) -> StageResult | None:
        if self.clock.now < self._ends[context.attempt_id]:
            return None
        return failing(context) if random.Random(context.attempt_id).random() < 0.1 else done(context)

    def _happen(self) -> None:
        """Something that people or trainers do."""
        names = [job.id for job in self.journal.jobs.running()]
        if self._jobs < 15 and self.rng.random() < 0.03:
            self._jobs += 1
            self.desk.add(f"run{self.rng.randint(0, 2)}", self._jobs, variants=self.rng.choice([("pytorch",), ("pytorch", "onnx")]))
        if names and self.rng.random() < 0.002:
            self.journal.controls.pause(self.rng.choice(names), True)
        if names and self.rng.random() < 0.002:
            self.journal.controls.cancel(self.rng.choice(names), "a person said so")
        if self.rng.random() < 0.002:
            self.journal.controls.pause_all(True)
        if self.rng.random() < 0.03:
            self.journal.controls.pause_all(False)
            for name in names:
                self.journal.controls.pause(name, False)
        if self.rng.random() < 0.02:
            self.runner.adopt(self.runner.settings)
        if self.rng.random() < 0.005:
            self._die()

    def _note_waiting(self) -> None:
        """Count the time of every measurement that is due; a person's pause begins the count again."""
        measuring = any(one.spec.alone for one in self.runner.children.running.values())
        paused = self.journal.controls.paused_since() is not None
        for job in self.journal.jobs.running():
            rows = self.journal.stages.of(job.id)
            for name, row in rows.items():
                key = (job.id, name, row.attempts + 1)
                if not spec_of(name).alone or not self._is_due(name, rows):
                    continue
                at_work = self.runner.children.jobs()
                if paused or job.paused or (job.id not in at_work and len(at_work) >= self.limits.jobs):
                    self._due.pop(key, None)
                    self._waited.pop(key, None)
                    continue
                self._due[key] = self._due.get(key, 0.0) + STEP
                free = self.limits.effective_threads > self.runner.children.threads()
                self._waited[key] = self._waited.get(key, 0.0) + STEP * (free and not measuring)
                if self._waited[key] > PATIENCE + LOOKS:
                    running = [(one.job.id, one.stage) for one in self.runner.children.running.values()]
                    self.said.append(f"{job.id} {name} has waited for {self._waited[key]} s at {self.clock.now}, beside {running}")

    def _is_due(self, name: str, rows: dict[str, StageRow]) -> bool:
        spec, row = spec_of(name), rows[name]
        before = [rows[other] for other in (*spec.needs, *spec.after) if other in rows]
        needed = [rows[other].state == "succeeded" for other in spec.needs]
        ended = all(one.state in ENDED_STAGE for one in before)
        return row.state == "waiting" and ended and all(needed) and row.due(self.clock.now)

    def play(self) -> None:
        """Play it until its jobs are done, at the longest until `END`."""
        while self.clock.now < END and len(self.said) < 5:
            self._happen()
            self.runner.tick()
            self._note_waiting()
            self.clock.now += STEP


@contextmanager
def virtual_time(*more: ModuleType) -> Iterator[Clock]:
    """A clock of one's own for the running rules and for `more` modules, a shorter patience, and a box on which memory is never short."""
    modules = (*MODULES, *more)
    clock, patience, memory, rechecks = Clock(), starter.ALONE_SECONDS, box.memory, resumption.Rechecks
    silent = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False)
    try:
        starter.ALONE_SECONDS = PATIENCE
        journal_rows.datetime = calendar_of(clock)  # type: ignore[attr-defined]
        resumption.Rechecks = Rechecks  # type: ignore[assignment, misc]
        box.memory = lambda: (1 << 40, 1 << 40)
        for module in modules:
            module.time = clock  # type: ignore[attr-defined]
        yield clock
    finally:
        starter.ALONE_SECONDS = patience
        journal_rows.datetime = datetime  # type: ignore[attr-defined]
        resumption.Rechecks = rechecks  # type: ignore[misc]
        box.memory = memory
        for module in modules:
            module.time = time  # type: ignore[attr-defined]
        structlog.configure(**silent)


def play(seed: int) -> History:
    """The history of a seed, played."""
    folder = Path(tempfile.mkdtemp(prefix="ckptd-timing-", dir=RAM if RAM.is_dir() else None))
    try:
        with virtual_time() as clock:
            history = History(seed, folder, clock)
            try:
                history.play()
            finally:
                history.journal.close()
        return history
    finally:
        shutil.rmtree(folder)


def test_limits_hold_and_a_measurement_runs_alone_or_after_its_patience_and_always_has_its_turn() -> None:
    played = {seed: play(seed) for seed in seeds(3, 2)}
    assert not (wrong := {seed: one.said for seed, one in played.items() if one.said}), wrong
    assert SEED or sum(one.measured for one in played.values()) > 10, "the histories hold too little to be a test"
    assert SEED or sum(one.restarts for one in played.values()) > 2


@pytest.mark.slow
def test_a_history_is_the_same_whenever_it_is_played() -> None:
    first, again = (play(int(SEED or 5)) for _ in range(2))
    assert len(first.desk.started) > 20
    assert first.desk.started == again.desk.started


@pytest.mark.slow
def test_many_histories_break_no_invariant() -> None:
    played = {seed: play(seed) for seed in seeds(100, 30)}
    assert not (wrong := {seed: one.said for seed, one in played.items() if one.said}), wrong
    assert SEED or sum(one.beside for one in played.values()) > 2, "nothing had to wait for its turn"


@pytest.mark.slow
def test_a_runner_that_starts_others_beside_a_measurement_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter.Starter, "_may_share", lambda *_: True)
    assert found("started beside a measurement")


def found(words: str) -> bool:
    """Whether one of a few histories finds it."""
    return any(words in line for seed in range(1, 9) for line in play(seed).said)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "words"), [("jobs", "limits.jobs is"), ("threads", "brings the threads to")])
def test_a_runner_that_starts_more_than_the_limits_allow_is_found_out(monkeypatch: pytest.MonkeyPatch, function: str, words: str) -> None:
    nothing = {"jobs": lambda self: [], "threads": lambda self, job="": 0}[function]
    monkeypatch.setattr(children.Children, function, nothing)
    assert found(words)
