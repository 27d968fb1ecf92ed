"""Fixtures of the detection: the eyes of another user, and a watcher on roots of its own with a real journal."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.watching.taking.intake import Intake
from daemon.watching.watcher import Watcher
from tests.detection.bench import bench  # noqa: F401 - a fixture for every test of this folder
from tests.detection.helpers import open_jobs

DEADLINE = 10.0


@dataclass(frozen=True)
class OtherUser:
    """Runs Python as a user without privileges: root, which runs tests in containers, may read everything."""

    folder: Path

    def run(self, imports: str, script: str) -> list[str]:
        """The lines that `script` printed; `folder` is defined in it."""
        head = f"import os\nfrom pathlib import Path\n{imports}\nfolder = Path({str(self.folder)!r})\n"
        head += "os.setgroups([])\nos.setegid(65534)\nos.seteuid(65534)\n"
        done = subprocess.run([sys.executable, "-c", head + script], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()


@pytest.fixture
def other_user() -> Iterator[OtherUser]:
    if os.getuid() != 0:
        pytest.skip("taking another user's identity needs root")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield OtherUser(Path(folder))


@dataclass
class Station:
    """A watcher with its intake on `home`, which may be stopped and started again like a daemon."""

    home: Path
    options: dict[str, dict[str, Any]]
    taken: int = 0
    _open: tuple[Watcher, Journal] | None = field(default=None, repr=False)

    @property
    def root(self) -> Path:
        return self.home / "runs"

    @property
    def watcher(self) -> Watcher:
        assert self._open is not None
        return self._open[0]

    @property
    def journal(self) -> Journal:
        assert self._open is not None
        return self._open[1]

    def start(self) -> None:
        watch = {"roots": (self.root,), "settle_seconds": 0.2, "rescan_seconds": 0.5, **self.options.get("watch", {})}
        settings = Settings(
            output={"directory": self.home / "exports"}, state={"directory": self.home / "state"},
            **{**self.options, "watch": watch},
        )  # fmt: skip
        paths = prepare(settings.state_directory, settings.output.directory)
        journal = Journal(paths.journal)
        self._open = (Watcher(settings, Intake(settings, journal, paths), taken=self._count), journal)
        self.watcher.start()
        assert self.watcher.ready.wait(DEADLINE)

    def _count(self) -> None:
        self.taken += 1

    def stop(self) -> None:
        if self._open is not None:
            self.watcher.stop()
            self.journal.close()
            self._open = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def jobs(self) -> list[JobRow]:
        return open_jobs(self.journal)

    def steps(self) -> list[int]:
        return sorted(job.checkpoint.step for job in self.jobs())

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Until `condition` holds; fails after DEADLINE seconds."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, f"waited {DEADLINE:.0f} s in vain: {what}"
            time.sleep(0.02)

    def wait_for_jobs(self, count: int) -> list[JobRow]:
        self.wait(lambda: len(self.jobs()) >= count, f"{count} jobs")
        return self.jobs()

    def wait_for_scans(self, count: int = 2) -> None:
        """Until the roots were scanned, and what was found has had time to settle, `count` more times."""
        for _ in range(count):
            before = self.watcher.last_scan
            self.wait(lambda before=before: self.watcher.last_scan > before, "a scan")
        time.sleep(0.3)  # a settle time and a peek after the last scan: what it found has been decided upon


Stations = Callable[..., Station]


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Stations]:
    """Makes a started station; `root=False` leaves its root to be made later. Keyword arguments are sections."""
    made: list[Station] = []

    def function(*, root: bool = True, **options: dict[str, Any]) -> Station:
        one = Station(tmp_path, options)
        if root:
            one.root.mkdir(exist_ok=True)
        made.append(one)
        one.start()
        return one

    yield function
    for one in made:
        one.stop()
