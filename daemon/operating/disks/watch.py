"""Watches over the disks that ckptd writes to: a full one is a state of its own, told when it begins and when it is over.

Called by the daemon's main loop. What is told, and what goes on by itself afterwards, is for the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from daemon.checkpoints.pinning.pins import pins_of
from daemon.config.places.paths import Paths, StatePaths
from daemon.config.settings import Settings
from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.rows import now
from daemon.operating.disks.advice import advice
from daemon.system.filesystems.disks import LEAST_BYTES, Place, Refusals, Shortage, nearest_existing, probe, short_of_room, unwritable
from daemon.system.logger import Logger

log = Logger("daemon")

AGAIN_SECONDS = 120.0
"""A disk that refuses writes again so soon after it took them again has not recovered."""
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 60.0
"""Seconds that such a disk must take writes before it counts as having room; doubled each time."""


@dataclass
class Episode:
    """A time without room on one file system. `since`: ISO 8601 in UTC."""

    shortage: Shortage
    since: str
    announced: bool = False


@dataclass
class _Refused:
    """Writes that were refused below a folder. Times are monotonic."""

    why: str
    until: float
    pause: float
    ended: float | None = None


@dataclass
class DiskWatch:
    """Looks at the disks; `tell` gets each episode as it begins and (`over`) as it ends, `again` is called when there is room again."""

    settings: Settings
    paths: Paths
    refusals: Refusals
    tell: Callable[[Shortage, bool], object]
    again: Callable[[], object]
    episodes: dict[str, Episode] = field(default_factory=dict)
    """Folder → its episode."""
    unwritable: tuple[str, ...] = ()
    """What could not be written to at the last look though there is room, as sentences."""
    _refused: dict[str, _Refused] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            for folder, row in json.loads(self._file.read_bytes()).items():
                shortage = Shortage(folder, tuple(row["keys"]), 0, 0)
                self.episodes[folder] = Episode(shortage, str(row["since"]), announced=True)

    @property
    def _file(self) -> Path:
        return self.paths.state / "disks.json"

    @property
    def places(self) -> tuple[Place, ...]:
        """All that is watched."""
        return places_of(self.settings, self.paths)

    def shortages(self) -> tuple[Shortage, ...]:
        """What is short of room now, as of the last look."""
        return tuple(episode.shortage for episode in self.episodes.values())

    def look(self, needs: Collection[Place] = ()) -> None:
        """Look at every disk. `needs`: what waits for room."""
        self._take_refusals()
        self.unwritable = unwritable(self.places)
        refused = {folder: refusal.why for folder, refusal in self._refused.items() if refusal.ended is None}
        shortages = {shortage.folder: shortage for shortage in short_of_room(self.places, tuple(needs), refused)}
        fresh = [folder for folder in shortages if folder not in self.episodes]
        over = [folder for folder in self.episodes if folder not in shortages]
        for folder, shortage in shortages.items():
            if folder in self.episodes:
                self.episodes[folder].shortage = replace(shortage, delete=self.episodes[folder].shortage.delete)
        for folder in fresh:
            shortage = replace(shortages[folder], delete=advice(shortages[folder], self.paths))
            self.episodes[folder] = Episode(shortage, now())
            log.warning(
                f"Not enough disk space: {shortage.sentence()}. Work waits, and continues automatically. {shortage.delete}",
                event_id=Event.DISK_LOW,
                code=FaultCode.DISK_LOW,
                path=folder,
                free=shortage.free,
                needed=shortage.needed,
            )
        for folder in over:
            episode = self.episodes.pop(folder)
            log.info(
                "there is enough disk space again; the work that waited continues",
                event_id=Event.DISK_RECOVERED,
                path=folder,
                since=episode.since,
            )
            if episode.announced:
                self.tell(episode.shortage, True)
        for episode in self.episodes.values():
            if not episode.announced:
                episode.announced = True
                self.tell(episode.shortage, False)
        if fresh or over:
            self._keep()
        if over:
            self.again()

    def _take_refusals(self) -> None:
        """Find out whether what could not be written was refused for want of room, and whether what was is taken again."""
        moment, noted = time.monotonic(), self.refusals.take()
        if noted and not short_of_room(self.places):  # else that is why
            errors = {folder: error for folder in map(str, self._folders()) if (error := self._probe(folder)) is not None}
            for folder, error in errors.items():
                self._refuse(folder, error.strerror or str(error), moment, lasting=True)
            # A small file is written, and what was to be written is not: the path of the error may be a guess, so this comes last.
            for fault in () if errors else filter(_is_certain, noted):
                self._refuse(self._meant(fault), fault.cause, moment, lasting=False)
        for folder, refusal in self._refused.items():
            if refusal.ended is None and moment >= refusal.until and self._probe(folder) is None:
                refusal.ended = moment

    def _refuse(self, folder: str, why: str, moment: float, *, lasting: bool) -> None:
        before = self._refused.get(folder)
        if before is not None and before.ended is None:
            before.until = max(before.until, moment + before.pause)
            return
        soon = before is not None and before.ended is not None and moment - before.ended < AGAIN_SECONDS
        pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * before.pause)) if before is not None and soon else 0.0
        self._refused[folder] = _Refused(why, moment + pause, pause)
        if not lasting and pause == 0:  # it takes writes already: one refusal is no episode, and what met it is tried again
            self._refused[folder].ended = moment
            self.again()

    def _meant(self, fault: Fault) -> str:
        """The folder of ours that is nearest above the path of a fault, else one on the same disk; the state's for the journal."""
        folders = [str(folder) for folder in self._folders()]
        path = Path(fault.path or folders[0])
        above = [folder for folder in folders if Path(folder) in path.parents]
        with contextlib.suppress(OSError):
            device = os.stat(nearest_existing(path)).st_dev
            above = above or [folder for folder in folders if os.stat(nearest_existing(Path(folder))).st_dev == device]
        return max(above, key=len, default=folders[0])

    def _probe(self, folder: str) -> OSError | None:
        """As `probe`, in a place of ours: what lies beside it belongs to others."""
        mine = {
            str(self.settings.output.directory): self.paths.staging,
            str(self.settings.pin.directory): pins_of(self.settings.pin, self.paths),
        }
        return probe(mine.get(folder, Path(folder)))

    def _folders(self) -> list[Path]:
        return [Path(place.folder) for place in self.places]

    def _keep(self) -> None:
        """Remember what was told, so that another start does not tell it again. Where the disk is full, that may happen."""
        kept = {folder: {"since": episode.since, "keys": episode.shortage.keys} for folder, episode in self.episodes.items()}
        with contextlib.suppress(OSError):
            write_atomic(self._file, json.dumps(kept), durable=False)


def _is_certain(fault: Fault) -> bool:
    """Whether it is known that the disk that a fault is about refused a write for want of room."""
    return (fault.code == FaultCode.DISK_FULL and fault.path is not None) or "SQLITE_FULL" in fault.cause


def places_of(settings: Settings, paths: StatePaths) -> tuple[Place, ...]:
    """The folders of a configuration that are written to."""
    folders = {"state.directory": paths.state, "output.directory": settings.output.directory, "pin.directory": settings.pin.directory}
    needed = max(int(settings.limits.disk_reserve), LEAST_BYTES)
    return tuple(Place(key, str(folder), needed) for key, folder in folders.items() if folder)
