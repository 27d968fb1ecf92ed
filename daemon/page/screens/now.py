"""What the first page shows: the daemon's condition, what runs, what waits and why, what failed, and the disks."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from daemon.config.places.paths import StatePaths
from daemon.contract import units
from daemon.contract.disk.answers import ask
from daemon.contract.language.catalog import translated, translated_text
from daemon.contract.light import dataclass
from daemon.journal.states import ENDED_JOB
from daemon.operating.monitoring.filter import ENDED, Filter
from daemon.operating.monitoring.live import read_live
from daemon.operating.monitoring.status import StageStatus, rows
from daemon.operating.wording.exports import remarks_of
from daemon.operating.wording.notices import notices
from daemon.page.reader import Reader
from daemon.system.filesystems.disks import nearest_existing

MOST_OPEN, MOST_TROUBLED, MOST_ENDED, MOST_DIRECTORIES = 12, 4, 8, 5
"""What the page shows of each; the list of all exports has the rest."""
DISK_SECONDS = 0.3


@dataclass(frozen=True)
class Room:
    """A file system that ckptd writes to. Sizes in bytes; None where it does not answer."""

    folders: tuple[str, ...]
    free: int | None
    size: int | None
    needed: int

    @property
    def used_share(self) -> float:
        """How full it is, 0 to 1."""
        return 1 - self.free / self.size if self.free is not None and self.size else 0.0


def overview(reader: Reader) -> dict[str, Any]:
    """Return what the template of the first page is given."""
    value = reader.status(MOST_OPEN)
    said = notices(value, MOST_DIRECTORIES)
    jobs = [job for job in rows(value) if job.state not in ENDED_JOB]
    running = [job for job in jobs if job.activity == "running"]
    open_count = value.counts.get("running", 0) + value.counts.get("pending", 0) + len(value.foreground)
    troubled = reader.jobs(Filter(states=("failed", "partial")), MOST_TROUBLED).jobs
    return {
        "status": value,
        "verdict": said[0] if said else None,
        "alerts": [row for row in said[1:] if row[2] in ("red", "yellow")],
        "facts": [row for row in said[1:] if row[2] not in ("red", "yellow")],
        "running": running,
        "waiting": [job for job in jobs if job.activity != "running"],
        "more": max(0, open_count - len(jobs)),
        "troubled": [(job, remarks_of(job)) for job in troubled],
        "finished": reader.jobs(Filter(states=(ENDED,)), MOST_ENDED).jobs,
        "disks": rooms(reader.state),
    }


def where(stage: StageStatus) -> list[str]:
    """Return where a running stage is, and what it takes there, as parts of a line."""
    place = stage.place
    parts = [translated("memory {size}").format(size=units.size(stage.memory_bytes))] if stage.memory_bytes else []
    parts += [translated("{cores} cores").format(cores=units.number(stage.cores))] if stage.cores is not None else []
    if place is None:
        return [translated("on this machine"), *parts]
    at = translated("on {host} by {scheduler}").format(host=place.host or "?", scheduler=place.scheduler)
    waits = [translated_text(place.reason)] if place.reason else []
    return [
        at if place.host else translated("at {scheduler}").format(scheduler=place.scheduler),
        *filter(None, (place.id, place.word)),
        *waits,
        *parts,
    ]


def rooms(state: Path) -> list[Room]:
    """Return the file systems that the daemon writes to, each once."""
    places = read_live(StatePaths(state).live).places
    folders = [(place.folder, place.needed) for place in places] or [(str(state), 0)]
    by_disk: dict[object, Room] = {}
    for folder, needed in folders:
        key: object = folder
        free, size = None, None
        with contextlib.suppress(OSError, TimeoutError):
            key, free, size = ask(folder, lambda folder=folder: _look(folder), DISK_SECONDS)  # type: ignore[misc]
        known = by_disk.get(key, Room((), free, size, 0))
        by_disk[key] = Room((*known.folders, folder), free, size, max(known.needed, needed))
    return list(by_disk.values())


def _look(folder: str) -> tuple[int, int, int]:
    place = nearest_existing(Path(folder))
    status = os.statvfs(place)
    return os.stat(place).st_dev, status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
