"""What the parts of the runner share: journal, folders, children, and what is made of the configuration as it is now.

Made by the runner, and made again by it where another configuration is taken over; `queue.py` and `endings.py` read it anew each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from daemon.checkpoints.models.base_models import Bases
from daemon.checkpoints.pinning.pins import pins_of
from daemon.config.places.paths import Paths
from daemon.config.settings import Settings
from daemon.contract.jobs.options import Work
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.publishing.kept import OutputCache
from daemon.running.attempts.children import Children
from daemon.running.attempts.outcomes import Outcomes
from daemon.running.resumption import Resumption
from daemon.running.sources.gate import HOUR, Gate
from daemon.running.sources.installing import Installing
from daemon.running.sources.outside import Place
from daemon.running.starter import Starter
from daemon.running.waits import Waits
from daemon.system.episodes import Away
from daemon.toolchains.registry import Toolchains


@dataclass
class Parts:
    """The tools of the runner's thread."""

    settings: Settings
    journal: Journal
    paths: Paths
    children: Children
    wake: Callable[[], None]
    """There may be new work."""
    changed: Callable[[], None]
    """Called after whatever people may want to see."""
    kept: OutputCache = field(init=False)
    waits: Waits = field(init=False)
    away: Away = field(init=False)
    installing: Installing = field(init=False)
    bases: Bases = field(init=False)
    resumption: Resumption = field(init=False)
    gate: Gate = field(init=False)
    outcomes: Outcomes = field(init=False)
    starter: Starter = field(init=False)
    _places: dict[Path, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kept, self.waits = OutputCache(self.paths.kept), Waits(self.children)
        self.away = Away(self.paths.away, 0.0)
        self.installing = Installing(self.settings.state_directory, self.wake)

    def configure(self, settings: Settings, work_of: Callable[[Settings, JobRow], Work | None], *, at_once: bool) -> None:
        """Make what depends on the configuration. `work_of` and `at_once`: as for the runner."""
        self.settings, paths = settings, self.paths
        self.bases = Bases(settings.base.search, settings.base.map)
        self.resumption = Resumption(
            self.journal, self.kept, paths.staging, lambda job: work_of(settings, job), settings.limits.device, self.children.machine_of,
            self.wake,
        )  # fmt: skip
        self.away.patience = HOUR * settings.limits.away_hours
        folders = ((paths.output, "output.directory"), (pins_of(settings.pin, paths), "pin.directory"))
        for folder, key in folders:
            if folder not in self._places:  # once: by a later look its mount may be away
                self._places[folder] = Place.of(folder, key)
        places = [self._places[folder] for folder, _ in folders]
        self.gate = Gate(
            self.bases, places, self.away, self.waits, self.wake, Toolchains.home_of(settings.state_directory), at_once=at_once
        )
        self.outcomes = Outcomes(
            settings.limits, self.journal, self.children, self.waits, self.away, self.gate, self.resumption, self.wake, self.changed
        )
        self.starter = Starter(
            settings, self.journal, paths, self.children, self.waits, self.resumption, self.kept, self.bases, self.installing, self.gate,
            self.outcomes,
        )  # fmt: skip
