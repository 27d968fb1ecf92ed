"""One simulated world: trainers, a disk, and the detection (Tracker, Intake, Journal as they are) under a virtual clock.

Everything follows from the seed. Time jumps from one event to the next: a trainer's operation, the arrival of a hint, a
look that is due, a rescan, the death or the start of the daemon. Hints may be late or lost; trainers go on between
any two file operations of a look; the daemon may die there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.checkpoints.files import Fingerprint
from daemon.checkpoints.inspection import Inspection
from daemon.checkpoints.pinning.pins import ACCESS, LEFT_OUT
from daemon.config.places.paths import Paths, prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.running.recovery import collect_orphans
from daemon.watching.taking.intake import Intake
from daemon.watching.tracker import Tracker
from daemon.watching.undecided import PEEK_SECONDS
from tests.detection.helpers import open_jobs
from tests.simulation.disk import Disk
from tests.simulation.preempt import Killed, before_every_step
from tests.simulation.trainers import Pause, Trainer

SOON = 0.2
"""The watcher scans so long after a directory has appeared of which nothing is known."""
LATE = 0.05
"""Longest way of a hint from the disk to the tracker, and longest delay of a look, in seconds."""


@dataclass(frozen=True)
class Chances:
    """What one world is like."""

    settle: float
    rescan: float
    stale: float
    hints_lost: float
    preempted: float
    killed: float

    @classmethod
    def drawn(cls, rng: random.Random) -> Chances:
        """A world at random."""
        settle = rng.choice([0.5, 3.0, 3.0])
        return cls(
            settle, rng.choice([5.0, 30.0]), rng.choice([20.0, 900.0]), rng.choice([0.0, 0.0, 0.2, 1.0]), rng.choice([0.0, 0.02, 0.1]),
            rng.choice([0.0, 0.0, 0.002]),
        )  # fmt: skip

    @property
    def heard(self) -> float:
        """The bound: how long a checkpoint of which every hint arrives has to stand. Two looks, a settle time apart, and their delays."""
        return self.settle + 2 * PEEK_SECONDS + 4 * LATE

    @property
    def unheard(self) -> float:
        """The bound where a hint was lost: a rescan has to come first; or one of a new directory, a little later."""
        return self.heard + self.rescan + SOON


@dataclass(frozen=True)
class WatchedIntake(Intake):
    """The intake as it is; what passes through it is checked against what the trainers know."""

    world: Any = None

    def take(self, root: Path, inspection: Inspection, fingerprint: Fingerprint) -> str | None:
        job = super().take(root, inspection, fingerprint)
        self.world.saw_taken(inspection.path, fingerprint, job)
        return job

    def take_damaged(self, root: Path, inspection: Inspection, fingerprint: Fingerprint) -> str | None:
        if self.world.disk.standing(inspection.path) is not None and self.world.moved == 0:
            self.world.violations.append(f"{inspection.path} was called damaged while it was whole: {inspection.missing}")
        job = super().take_damaged(root, inspection, fingerprint)
        if job:
            self.world.damaged.add(job)
        return job


@dataclass
class _Actor:
    script: Iterator[Pause]
    folder: Path
    next_at: float = 0.0


@dataclass
class World:
    """A world of some runs below `folder`; `run()` plays it to its end."""

    seed: int
    folder: Path
    runs: int = 5
    reckless: bool = False
    now: float = 0.0
    uptimes: list[list[float]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    pinned: dict[str, tuple[Path, dict[str, bytes]]] = field(default_factory=dict)
    """Job → its checkpoint and what its pin held as soon as it was entered; a job that gives way later loses its pin."""
    taken: int = 0
    moved: int = 0
    """Operations of trainers since the present look began."""
    _decided: set[tuple[Path, Fingerprint]] = field(default_factory=set)
    _hints: list[tuple[float, str]] = field(default_factory=list)
    _rescan_at: float = math.inf
    _up_at: float = math.inf
    tracker: Tracker | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.chances = Chances.drawn(self.rng)
        self.root = self.folder / "runs"
        self.root.mkdir(parents=True)
        self.disk = Disk(lambda: self.now, self._hint)
        watch = {"roots": (self.root,), "settle_seconds": self.chances.settle, "rescan_seconds": self.chances.rescan,
                 "stale_seconds": self.chances.stale}  # fmt: skip
        self._settings = Settings(watch=watch, output={"directory": self.folder / "exports"}, state={"directory": self.folder / "state"})
        self.paths: Paths = prepare(self._settings.state_directory, self._settings.output.directory)
        self.journal = Journal(self.paths.journal)
        self._add_lost = self.journal.sightings.add_lost
        self.journal.sightings.add_lost = self._note_lost  # type: ignore[method-assign]
        self._actors = [self._actor(self.root / f"run-{number}") for number in range(self.runs)]

    def _actor(self, folder: Path) -> _Actor:
        rng = random.Random(self.rng.getrandbits(64))
        trainer = Trainer(self.disk, rng, folder, self.chances.settle, self.chances.unheard, self.reckless)
        return _Actor(trainer.train(), folder)

    # The trainers' side

    def _hint(self, path: str) -> bool:
        """Carry an event on, unless it is lost or nobody is there to hear it; says which."""
        if self.tracker is None or self.rng.random() < self.chances.hints_lost:
            return False
        self._hints.append((self.now + self.rng.uniform(0, LATE), path))
        return True

    def _act(self, actor: _Actor) -> None:
        try:
            actor.next_at = self.now + next(actor.script).seconds
        except StopIteration:
            actor.next_at = math.inf

    def _preempt(self, path: str) -> None:
        """Between two steps of a look: the trainer at whose files it looks may go on, or the daemon dies."""
        if self.rng.random() < self.chances.killed:
            raise Killed
        if self.rng.random() < self.chances.preempted:
            for actor in self._actors:
                if actor.next_at < math.inf and path.startswith(f"{actor.folder}/"):
                    for _ in range(self.rng.randint(1, 3)):
                        self.moved += 1
                        self._act(actor)

    # The daemon's side

    def _start(self) -> None:
        intake = WatchedIntake(self._settings, self.journal, self.paths, world=self)
        self.tracker = Tracker(self._settings.watch, intake, self._count)
        collect_orphans(self.journal, self.paths, self.paths.pins)
        self._note_pins()
        self.uptimes.append([self.now, math.inf])
        self._rescan_at, self._up_at = self.now, math.inf

    def _count(self) -> None:
        self.taken += 1

    def _die(self) -> None:
        self.disk.trace.append(f"{self.now:9.3f} the daemon died")
        self.tracker, self._hints, self._rescan_at = None, [], math.inf
        self.uptimes[-1][1] = self.now
        self._up_at = self.now + self.rng.choice([0.0, self.rng.uniform(0, self.chances.rescan)])

    def saw_taken(self, checkpoint: Path, fingerprint: Fingerprint, job: str | None) -> None:
        """The intake is through with a checkpoint: was it asked about the same state before?"""
        self.disk.trace.append(f"{self.now:9.3f} {'taken' if job else 'known'}: {checkpoint}")
        if (checkpoint, fingerprint) in self._decided:
            self.violations.append(f"{checkpoint} was decided upon twice in the same state")
        self._decided.add((checkpoint, fingerprint))
        if job is not None:
            self._note_pins()

    def _note_lost(self, path: str, first: str, last: str, lived: float) -> None:
        if self.disk.lives_on(Path(path)):
            self.violations.append(f"{path} was called lost, and is there under the name that it was given")
        self._add_lost(path, first, last, lived)

    def _note_pins(self) -> None:
        """Read the pins of jobs that are new; those that were read before must hold the same still."""
        for job in open_jobs(self.journal):
            if job.id in self.damaged:
                continue
            files = (
                {path.name: path.read_bytes() for path in job.pin.iterdir() if path.name not in (LEFT_OUT, ACCESS)}
                if job.pin.is_dir()
                else {}
            )
            known = self.pinned.setdefault(job.id, (Path(job.checkpoint.path), files))
            if known[1] != files:
                self.violations.append(f"the pin of {job.id} changed after it had been made")

    def _daemon_acts(self) -> None:
        """Whatever the watcher's thread would do now."""
        tracker = self.tracker
        assert tracker is not None
        arrived = [path for when, path in self._hints if when <= self.now]
        self._hints = [(when, path) for when, path in self._hints if when > self.now]
        for path in arrived:
            if not tracker.hint(path, self.now) and path.endswith("/"):
                self._rescan_at = min(self._rescan_at, self.now + SOON)
        self.moved = 0
        with before_every_step(str(self.root), self._preempt):
            if self.now >= self._rescan_at:
                self._rescan_at = self.now + self.chances.rescan
                tracker.scan(self.root, self.now)
            tracker.look_at_due(self.now)

    # Time

    def _next_event(self) -> float:
        due = self.tracker.next_due() if self.tracker else None
        times = [actor.next_at for actor in self._actors] + [when for when, _ in self._hints] + [self._rescan_at, self._up_at]
        return min([*times, due + self.rng.uniform(0, LATE) if due is not None else math.inf])

    def run(self) -> None:
        """Play until all trainers have ended and what they left has had its time."""
        self._start()
        end = math.inf
        while True:
            if end == math.inf and all(actor.next_at == math.inf for actor in self._actors):
                end = self.now + 2 * self.chances.unheard + self.chances.rescan
            self.now = max(self.now, self._next_event())
            if self.now > end:
                break
            self._step()
        self.uptimes[-1][1] = self.now
        self._note_pins()

    def _step(self) -> None:
        for actor in [actor for actor in self._actors if actor.next_at <= self.now]:
            self._act(actor)
        if self._up_at <= self.now:
            self._start()
        if self.tracker is not None:
            try:
                self._daemon_acts()
            except Killed:
                self._die()
            else:
                if self.chances.killed and self.rng.random() < self.chances.killed:
                    self._die()

    def close(self) -> None:
        """Close the journal."""
        self.journal.close()
