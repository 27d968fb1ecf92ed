"""Walks a root for checkpoint directories: the truth to which events are only hints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from daemon.checkpoint import CHECKPOINT_NAME

NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "9p", "afs", "virtiofs"}
)
"""File systems on which another machine may write without an inotify event here."""
_IGNORED = ("tmp-",)


def is_ignored(name: str) -> bool:
    """Hidden and temporary names, among them those that older trainers staged under."""
    return name.startswith((".", *_IGNORED)) or name.endswith("-tmp")


def find_checkpoints(root: Path, depth: int, on_error: Callable[[OSError], None]) -> Iterator[Path]:
    """Directories below `root`, at most `depth` levels deep, that are named like a checkpoint. Links are not followed."""
    levels = [(str(root), 1)]
    while levels:
        folder, level = levels.pop()
        try:
            with os.scandir(folder) as entries:
                children = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            on_error(error)
            continue
        for entry in children:
            if CHECKPOINT_NAME.fullmatch(entry.name):
                yield Path(entry.path)
            elif level < depth and not is_ignored(entry.name):
                levels.append((entry.path, level + 1))


def checkpoint_of(root: Path, changed: str) -> Path | None:
    """The checkpoint directory below `root` in which `changed` lies, if any."""
    try:
        parts = Path(changed).relative_to(root).parts
    except ValueError:
        return None
    for index, part in enumerate(parts):
        if CHECKPOINT_NAME.fullmatch(part):
            return root.joinpath(*parts[: index + 1])
        if is_ignored(part):
            return None
    return None


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
