"""What the daemon knows of its page: the page lies above it, is handed in from outside, and is no part of the daemon's work.

Whatever happens to the page, the daemon goes on, and says what is the matter (`PageState`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.operating.monitoring.live import PageState
from daemon.system.processes.threads import Death

Exposition = Callable[[str], tuple[bytes, str]]
"""Value of the header Accept → the figures for a scraper, and their content type. Called in the page's threads."""


@dataclass(frozen=True)
class Serving:
    """What the daemon gives its page."""

    settings: Settings
    state: Path
    journal: Journal
    exposition: Exposition
    changed: Callable[[], object]
    """Called when somebody has changed the queue by the page."""
    config: Callable[[], str | None]
    """The configuration file in use."""


class Page(Protocol):
    """A server beside the daemon's work."""

    def adopt(self, settings: Settings) -> None:
        """Go on by another configuration, or begin."""

    def look(self) -> None:
        """See whether it still serves, once a round of the main loop; never waits."""

    def stop(self) -> None:
        """End, also where connections are open."""

    def state(self) -> PageState | None:
        """How it is; None while it is off."""

    def death(self) -> Death | None:
        """The last time that its thread died of an error."""


PageFactory = Callable[[Serving], Page]
