"""The type of the file system that holds a path, and whether another machine may write to it."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "9p", "afs", "virtiofs"}
)
"""File systems on which another machine may write without an inotify event here."""


def file_system_type(path: Path) -> str:
    """Type of the file system that holds `path`, "" when it can't be told."""
    real = os.path.realpath(path)
    best, kind = "", ""
    for partition in psutil.disk_partitions(all=True):
        mount = partition.mountpoint
        if (real == mount or real.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, partition.fstype
    return kind


def is_remote(kind: str) -> bool:
    """Whether a type of file system may change without local events."""
    return kind in NETWORK_TYPES or kind.startswith("fuse")
