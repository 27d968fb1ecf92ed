"""A tracker with a real intake and a real journal, whose clock the test turns: no threads, no waiting."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from daemon.checkpoints.pinning.pins import pins_of
from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.operating.monitoring.status import Snapshot, snapshot
from daemon.running.runner import Runner
from daemon.running.workers.executor import LocalExecutor
from daemon.watching.taking.intake import Intake
from daemon.watching.tracker import Tracker
from tests.detection.helpers import copy_of, open_jobs, set_state

SETTLE = 3.0


@dataclass
class Desk:
    """What stands between a run's directory and the journal. `clock` is monotonic time in seconds."""

    home: Path
    settings: Settings
    journal: Journal
    tracker: Tracker
    runner: Runner
    clock: float = 1000.0
    logged: list[Any] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.settings.watch.roots[0]

    @property
    def pins(self) -> Path:
        return pins_of(self.settings.pin, self.runner.paths)

    def look(self, *, seconds: float = SETTLE + 1) -> None:
        """Scan all roots, and let so many seconds pass."""
        with capture_logs() as logs:
            for root in self.settings.watch.roots:
                self.tracker.scan(root, self.clock)
            end = self.clock + seconds
            while True:
                self.tracker.look_at_due(self.clock)
                due = self.tracker.next_due()
                if due is None or due > end:
                    break
                self.clock = max(self.clock, due)
            self.clock = end
        self.logged += logs

    def told(self, event: str) -> list[Any]:
        """Log records whose event begins so."""
        return [record for record in self.logged if str(record["event"]).startswith(event)]

    def jobs(self) -> list[JobRow]:
        return open_jobs(self.journal)

    def steps(self) -> list[int]:
        return sorted(job.checkpoint.step for job in self.jobs())

    def job(self, name: str) -> JobRow:
        found = self.journal.jobs.get(name)
        assert found is not None
        return found

    def status(self) -> Snapshot:
        return snapshot(self.home / "state")

    def clear(self) -> None:
        """What the runner does about superseded jobs, without starting anything."""
        self.runner.endings.clear_ended()

    def seen_as(self, checkpoint: Path) -> str:
        """The journal's verdict on a directory."""
        (row,) = self.journal.database.read("SELECT verdict FROM seen WHERE path = ?", str(checkpoint))
        return str(row[0])


Desks = Callable[..., Desk]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desks]:
    """Makes a desk; keyword arguments are sections of the configuration."""
    made: list[Desk] = []

    def function(**sections: dict[str, Any]) -> Desk:
        home = tmp_path / f"desk-{len(made)}"
        (home / "runs").mkdir(parents=True)
        fixed = {"output": {"directory": home / "exports"}, "state": {"directory": home / "state"}}
        watch = {"roots": (home / "runs",), "settle_seconds": SETTLE, **sections.pop("watch", {})}
        settings = Settings(**{**fixed, **sections, "watch": watch})
        paths = prepare(settings.state_directory, settings.output.directory)
        journal = Journal(paths.journal)
        intake = Intake(settings, journal, paths)
        tracker = Tracker(settings.watch, intake, taken=lambda: None)
        made.append(Desk(home, settings, journal, tracker, Runner(settings, journal, paths, LocalExecutor())))
        return made[-1]

    yield function
    for one in made:
        one.journal.close()


@pytest.fixture
def add(pico_checkpoint: Path) -> Callable[..., Path]:
    """Copies the pico checkpoint to `run` below a desk's root, as step `step` with content and trainer state of its own."""

    def function(here: Desk, step: int, run: str = "run", *, weights: float | None = None, **state: Any) -> Path:
        target = here.root / run / f"checkpoint-{step}"
        copy_of(pico_checkpoint, target, step=step, weights=step if weights is None else weights)
        set_state(target, **{"max_steps": 100, **state})
        return target

    return function


def trainer_state(checkpoint: Path) -> dict[str, Any]:
    """What trainer_state.json holds."""
    value: dict[str, Any] = json.loads((checkpoint / "trainer_state.json").read_text())
    return value
