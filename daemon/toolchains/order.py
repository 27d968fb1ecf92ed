"""What the runner and the process that installs a toolchain for it tell each other. Light, since an idle daemon loads it.

Used by `daemon.running.sources.installing` and `daemon.toolchains.unattended`.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.faults.errors import Fault
from daemon.contract.values import Frozen


class Order(Frozen):
    """What is to be installed, and how."""

    state: Path
    definitions: Path
    name: str
    reserve: int
    nice: int
    idle: bool
    oom_score_adj: int
    doing: Path
    """Gets the present step, a line."""
    ended: Path
    """Gets an `Ended`."""


class Ended(Frozen):
    """How it ended. `fault`: None where the toolchain is installed."""

    fault: Fault | None = None
