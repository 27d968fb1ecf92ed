"""What the box has, against what a stage is estimated to need: go, wait, or never. Nothing is loaded to find out."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from daemon.errors import Fault
from handlers.plan import ModelSize, StageSpec

WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Admission:
    """The answer: `fault` None lets the stage start; else it says what is lacking, for now or (`never`) for good."""

    estimate: int
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


def free_disk(folder: Path) -> int:
    """Free bytes, for this user, on the file system that holds `folder` or its nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def admit(spec: StageSpec, size: ModelSize, *, output: Path, state: Path, memory_fraction: float, disk_reserve: int) -> Admission:
    """Compare the estimates of a stage with the box as it is now."""
    estimate, disk = spec.memory(size), spec.disk(size)
    total, available = memory()
    allowed = int(total * memory_fraction)
    operation = f"start the stage {spec.name}"
    if estimate > allowed:
        cause = f"it needs about {human(estimate)} of memory, and limits.memory_fraction allows {human(allowed)} of {human(total)}"
        return Admission(estimate, Fault(
            code="memory-never", operation=operation, cause=cause,
            remedy="export on a larger box, raise limits.memory_fraction, or leave this variant out",
        ), never=True)  # fmt: skip
    if estimate > available:
        cause = f"it needs about {human(estimate)} of memory and {human(available)} are free now"
        return Admission(estimate, Fault(
            code="memory-now", operation=operation, cause=cause, remedy="nothing, it waits for memory; free some to have it sooner",
        ))  # fmt: skip
    for folder, need, key in ((output, disk, "output.directory"), (state, 0, "state.directory")):
        free = free_disk(folder)
        if free - need < disk_reserve:
            cause = f"it writes about {human(need)}, {human(free)} are free and limits.disk_reserve keeps {human(disk_reserve)}"
            return Admission(estimate, Fault(
                code="disk-now", operation=operation, cause=cause, path=str(folder),
                remedy=f"free space there, point {key} at a larger disk, or lower limits.disk_reserve",
            ))  # fmt: skip
    return Admission(estimate)
