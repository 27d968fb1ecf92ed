"""The type of the file system that holds a path, and whether another machine may write to it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "9p", "afs", "virtiofs"}
)
"""File systems on which another machine may write without an inotify event here."""


class Mount(Protocol):
    """A row of the table of mounts."""

    @property
    def mountpoint(self) -> str:
        """The directory that it covers."""

    @property
    def fstype(self) -> str:
        """The type of its file system."""


def mounts() -> list[Mount]:
    """The table of mounts; no file system is asked."""
    import psutil  # not for `ckptd explain`, which takes no longer than a moment

    return list(psutil.disk_partitions(all=True))


def mount_of(real: str, table: Iterable[Mount]) -> Mount | None:
    """The mount that holds a path without links; of two at one place the one that hides the other."""
    best: Mount | None = None
    for mount in table:
        point = mount.mountpoint
        if (real == point or real.startswith(point.rstrip("/") + "/")) and (best is None or len(point) >= len(best.mountpoint)):
            best = mount
    return best


def file_system_type(path: Path) -> str:
    """Type of the file system that holds `path`, "" when it can't be told."""
    mount = mount_of(os.path.realpath(path), mounts())
    return mount.fstype if mount else ""


def is_remote(kind: str) -> bool:
    """Whether a type of file system may change without local events."""
    return kind in NETWORK_TYPES or kind.startswith("fuse")
