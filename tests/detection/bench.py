"""A tracker without threads on a journal of its own, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.watching.taking.intake import Intake
from daemon.watching.tracker import Tracker
from tests.detection.helpers import open_jobs


@dataclass
class Bench:
    """A tracker without threads on a journal of its own; `at` is its clock in seconds."""

    root: Path
    tracker: Tracker
    journal: Journal
    start: Callable[[], Tracker]
    at: float = 0.0

    def pass_time(self, seconds: float, rescan: float = 5.0) -> None:
        """Let time go by with a scan every `rescan` seconds."""
        end = self.at + seconds
        while self.at < end:
            self.tracker.scan(self.root, self.at)
            upto = min(end, self.at + rescan)
            while (due := self.tracker.next_due()) is not None and due <= upto:
                self.at = max(self.at, due)
                self.tracker.look_at_due(self.at)
            self.at = upto

    def restart(self) -> None:
        """Another tracker on the same journal, which knows nothing of what the first one had in memory."""
        self.tracker = self.start()

    def jobs(self) -> list[JobRow]:
        return open_jobs(self.journal)


@contextmanager
def open_bench(home: Path, settle_seconds: float = 2.0) -> Iterator[Bench]:
    """A bench whose files are below `home`."""
    root = home / "runs"
    root.mkdir()
    settings = Settings(
        watch={"roots": (root,), "settle_seconds": settle_seconds},
        output={"directory": home / "exports"},
        state={"directory": home / "state"},
    )
    paths = prepare(settings.state_directory, settings.output.directory)
    journal = Journal(paths.journal)

    def start() -> Tracker:
        return Tracker(settings.watch, Intake(settings, journal, paths), taken=lambda: None)

    try:
        yield Bench(root, start(), journal, start)
    finally:
        journal.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with open_bench(tmp_path) as made:
        yield made
