"""The memory and disk that this machine has free."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def cgroup_memory() -> tuple[int, int] | None:
    """(limit, used) in bytes of this process's cgroup v2, None without a limit."""
    try:
        line = next(row for row in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines() if row.startswith("0::"))
        folder = Path("/sys/fs/cgroup") / line[3:].lstrip("/")
        limit = (folder / "memory.max").read_text(encoding="utf-8").strip()
        return None if limit == "max" else (int(limit), int((folder / "memory.current").read_text(encoding="utf-8")))
    except (OSError, StopIteration, ValueError):
        return None


def memory() -> tuple[int, int]:
    """(total, available) bytes of memory, the narrower of the box and this cgroup."""
    import psutil  # not for a look at bytes and disks, as `ckptd status` takes it

    virtual = psutil.virtual_memory()
    total, available = int(virtual.total), int(virtual.available)
    limited = cgroup_memory()
    if limited:
        total = min(total, limited[0])
        available = min(available, max(0, limited[0] - limited[1]))
    return total, available


def is_read_only(folder: Path) -> bool:
    """Whether the file system of a folder is mounted for reading alone, as Linux does after errors of the disk."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def free_disk(folder: Path) -> int:
    """Free bytes, for this user, on the file system that holds `folder` or its nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
