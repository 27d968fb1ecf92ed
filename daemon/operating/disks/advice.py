"""What can be deleted on a disk that is short of room: told by the daemon, `ckptd status` and `ckptd check`, which look for themselves."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from daemon.config.places.paths import KEPT, STAGING, Paths, StatePaths
from daemon.contract import units
from daemon.system.filesystems.disks import Shortage, nearest_existing

MOST_ENTRIES = 20_000
"""Files that are counted at most to find out what takes the room."""
LISTED = 3


def sizes(folders: Iterable[tuple[str, Path]]) -> list[tuple[str, Path, int]]:
    """Bytes of the disk that each (what it is, folder) takes, the largest first; no more than MOST_ENTRIES files are looked at.

    A file with several names counts once, for the first folder that has one.
    """
    rows, left, counted = [], MOST_ENTRIES, set[tuple[int, int]]()
    for what, folder in folders:
        size = 0
        for directory, below, names in os.walk(folder):
            below[:] = [name for name in below if not name.startswith(".")]  # what is ours and hidden is a row of its own
            for name in names:
                left -= 1
                with contextlib.suppress(OSError):
                    status = os.lstat(os.path.join(directory, name))
                    if (status.st_dev, status.st_ino) not in counted:
                        counted.add((status.st_dev, status.st_ino))
                        size += status.st_blocks * 512
            if left <= 0:
                break
        if size:
            rows.append((what, folder, size))
    return sorted(rows, key=lambda row: -row[2])


def advice(shortage: Shortage, paths: StatePaths, output: Path | None = None) -> str:
    """What can be deleted on a file system that is short of room, the largest first, as a sentence."""
    output = paths.output if isinstance(paths, Paths) else output
    known = [
        ("backups of the journal, of which the newest is enough", paths.backups),
        ("logs of ended exports", paths.jobs),
        ("files left by `ckptd export`", paths.state / "foreground"),
        ("toolchains that are no longer used (`ckptd toolchain remove`)", paths.state / "toolchains"),
    ]
    if output is not None:
        known += [
            ("kept outputs, which are made again when they are needed", output / KEPT),
            ("outputs of unfinished exports, which are removed automatically", output / STAGING),
            ("published exports (`ckptd prune` removes what [retention] does not keep)", output),
        ]
    device = None
    with contextlib.suppress(OSError):
        device = os.stat(nearest_existing(Path(shortage.folder))).st_dev
    here = []
    for what, folder in known:
        with contextlib.suppress(OSError):
            if os.stat(folder).st_dev == device:
                here.append((what, folder))
    listed = [f"{folder} takes {units.size(size)} ({what})" for what, folder, size in sizes(here)[:LISTED]]
    files = f" Files of ckptd there: {'; '.join(listed)}." if listed else ""
    return f"Fix: delete files there, or set {' or '.join(shortage.keys)} to a larger disk.{files}"
