"""What the box has, against what a stage is estimated to need: go, wait, or never. Nothing is loaded to find out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from daemon.errors import Fault
from daemon.running.estimates import Estimate
from handlers.plan import StageSpec

WAIT_SECONDS = 30.0
_SOURCE = {"formula": "a formula on its size", "same size": "what it took before", "similar sizes": "what it took for similar models"}


@dataclass(frozen=True)
class Admission:
    """The answer: `fault` None lets the stage start; else it says what is lacking, for now or (`never`) for good."""

    fault: Fault | None = None
    never: bool = False


def human(count: float) -> str:
    """Bytes as people read them: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def cgroup_memory(root: Path = Path("/sys/fs/cgroup")) -> tuple[int, int] | None:
    """(limit, used) in bytes of this process's cgroup v2, None without a limit."""
    try:
        line = next(row for row in Path("/proc/self/cgroup").read_text().splitlines() if row.startswith("0::"))
        folder = root / line[3:].lstrip("/")
        limit = (folder / "memory.max").read_text().strip()
        return None if limit == "max" else (int(limit), int((folder / "memory.current").read_text()))
    except (OSError, StopIteration, ValueError):
        return None


def memory() -> tuple[int, int]:
    """(total, available) bytes of memory, the narrower of the box and this cgroup."""
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


@dataclass(frozen=True)
class Reserved:
    """What running children were admitted with and have not taken yet, in bytes."""

    memory: int = 0
    disk: int = 0


def admit(
    spec: StageSpec, need: Estimate, *, output: Path, state: Path, memory_fraction: float, disk_reserve: int,
    reserved: Reserved = Reserved(), would_fit: Callable[[int], Sequence[str]] = lambda allowed: (),
) -> Admission:  # fmt: skip
    """Compare what a stage needs with the box as it is now, less what is reserved. `would_fit` gives the variants
    that fit into so many bytes, to be named instead of one that never does."""
    total, available = memory()
    allowed = int(total * memory_fraction)
    operation = f"start the stage {spec.name}"
    if need.memory > allowed:
        cause = (
            f"it needs about {human(need.memory)} of memory (by {_SOURCE[need.source]}),"
            f" and limits.memory_fraction allows {human(allowed)} of {human(total)}"
        )
        fitting = ", ".join(would_fit(allowed))
        instead = f"leave this variant out ({fitting} would fit)" if fitting else "leave this variant out"
        return Admission(Fault(
            code="memory-never", operation=operation, cause=cause,
            remedy=f"export on a larger box, raise limits.memory_fraction, or {instead}",
        ), never=True)  # fmt: skip
    free_memory = max(0, available - reserved.memory)
    if need.memory > free_memory:
        held = f" ({human(reserved.memory)} more are promised to other stages)" if reserved.memory else ""
        cause = f"it needs about {human(need.memory)} of memory and {human(free_memory)} are free now{held}"
        return Admission(Fault(
            code="memory-now", operation=operation, cause=cause, remedy="nothing, it waits for memory; free some to have it sooner",
        ))  # fmt: skip
    for folder, wanted, key in ((output, need.disk + reserved.disk, "output.directory"), (state, 0, "state.directory")):
        if is_read_only(folder):
            return Admission(Fault(
                code="read-only", operation=operation, cause="its file system can only be read now", path=str(folder),
                remedy="look into the kernel's log for the disk's errors and mount it for writing again",
            ))  # fmt: skip
        free = free_disk(folder)
        if free - wanted < disk_reserve:
            cause = f"it writes about {human(need.disk)}, {human(free)} are free and limits.disk_reserve keeps {human(disk_reserve)}"
            return Admission(Fault(
                code="disk-now", operation=operation, cause=cause, path=str(folder),
                remedy=f"free space there, point {key} at a larger disk, or lower limits.disk_reserve",
            ))  # fmt: skip
    return Admission()
