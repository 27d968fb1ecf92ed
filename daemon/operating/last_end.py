"""Why the daemon ended by itself: kept in the state directory, told by the next start and by `ckptd status`, gone after an end in order."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict

from daemon.config.places.paths import StatePaths
from daemon.contract.faults.secrets import censored_values
from daemon.contract.light import dataclass
from daemon.contract.records import read_json
from daemon.system.filesystems.disks import write_padded

NAME = "ended.json"


@dataclass(frozen=True)
class LastEnd:
    """When (ISO 8601 in UTC) the daemon stopped because of an error, and why, as a sentence."""

    at: str
    why: str


def keep(paths: StatePaths, end: LastEnd) -> None:
    """Remember it for the next start. Where the disk is full that may fail; the log has it too."""
    with contextlib.suppress(OSError):
        write_padded(paths.state / NAME, json.dumps(censored_values(asdict(end))))


def read(paths: StatePaths) -> LastEnd | None:
    """Why the last daemon ended by itself; None where it did not, or that can't be read."""
    try:
        return read_json(LastEnd, (paths.state / NAME).read_bytes())
    except (OSError, ValueError):
        return None


def forget(paths: StatePaths) -> None:
    """The daemon has ended in order."""
    with contextlib.suppress(OSError):
        (paths.state / NAME).unlink(missing_ok=True)
