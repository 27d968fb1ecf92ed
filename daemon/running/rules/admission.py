"""Whether a stage may start: what it is estimated to need, against what the box has now. Go, wait, or never.

Called by the starter before each attempt. Nothing is loaded to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemon.config.places.paths import Paths
from daemon.config.settings import LimitSettings
from daemon.contract import units
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import StageSpec
from daemon.running.rules.estimates import Estimate
from daemon.system import box
from daemon.system.filesystems.disks import LEAST_INODES, free_inodes

WAIT_SECONDS = 30.0


_SOURCE = {"formula": "estimated from its size", "same size": "measured before", "similar sizes": "measured on similar models",
           "layers": "estimated for one layer at a time"}  # fmt: skip


@dataclass(frozen=True)
class Admission:
    """The answer: `fault` None lets the stage start; else it says what is lacking, for now or (`never`) for good."""

    fault: Fault | None = None
    never: bool = False
    room: int = 0
    """Bytes that must be free on the disk that the fault names, where it is room that is lacking."""


@dataclass(frozen=True)
class Reserved:
    """What running children were admitted with and have not taken yet, in bytes."""

    memory: int = 0
    disk: int = 0


def admit(
    spec: StageSpec, need: Estimate, limits: LimitSettings, paths: Paths, reserved: Reserved, would_fit: Callable[[int], Sequence[str]]
) -> Admission:  # fmt: skip
    """Compare what a stage needs with the box as it is now, less what is reserved. `would_fit` gives the variants
    that fit into so many bytes, to be named instead of one that never does."""
    total, available = box.memory()
    allowed, disk_reserve = int(total * limits.memory_fraction), int(limits.disk_reserve)
    operation = f"start the stage {spec.name}"
    if need.memory > allowed:
        cause = (
            f"it needs about {units.size(need.memory)} of memory ({_SOURCE[need.source]}),"
            f" but limits.memory_fraction allows {units.size(allowed)} of {units.size(total)}"
        )
        if need.remark:
            cause += f"; {need.remark}"
        fitting = ", ".join(would_fit(allowed))
        instead = f"leave this variant out ({fitting} would fit)" if fitting else "leave this variant out"
        return Admission(Fault(
            code=FaultCode.MEMORY_NEVER, operation=operation, cause=cause,
            remedy=f"export on a larger machine, raise limits.memory_fraction, or {instead}",
        ), never=True)  # fmt: skip
    free_memory = max(0, available - reserved.memory)
    if need.memory > free_memory:
        held = f" ({units.size(reserved.memory)} more are reserved for other stages)" if reserved.memory else ""
        cause = f"it needs about {units.size(need.memory)} of memory, but {units.size(free_memory)} are free now{held}"
        return Admission(Fault(
            code=FaultCode.MEMORY_NOW, operation=operation, cause=cause,
            remedy="nothing; it waits for memory (to start it sooner, free memory)",
        ))  # fmt: skip
    for folder, wanted, key in ((paths.output, need.disk + reserved.disk, "output.directory"), (paths.state, 0, "state.directory")):
        if box.is_read_only(folder):
            return Admission(Fault(
                code=FaultCode.READ_ONLY, operation=operation, cause="its file system is read-only now", path=str(folder),
                remedy="look for disk errors in the kernel's log, and mount the disk for writing again",
            ))  # fmt: skip
        free = box.free_disk(folder)
        if free - wanted < disk_reserve:
            cause = (
                f"it writes about {units.size(need.disk)}, {units.size(free)} are free and limits.disk_reserve reserves"
                f" {units.size(disk_reserve)}"
            )
            return Admission(Fault(
                code=FaultCode.DISK_NOW, operation=operation, cause=cause, path=str(folder),
                remedy=f"free space there, set {key} to a larger disk, or lower limits.disk_reserve"
                if disk_reserve else f"free space there, or set {key} to a larger disk",
            ), room=wanted + disk_reserve)  # fmt: skip
        inodes = free_inodes(folder)
        if inodes is not None and inodes < LEAST_INODES:
            cause = f"its file system has {inodes} free inodes, and {LEAST_INODES} are needed: it has too many files"
            return Admission(Fault(
                code=FaultCode.DISK_NOW, operation=operation, cause=cause, path=str(folder),
                remedy=f"delete files there, or set {key} to another disk",
            ))  # fmt: skip
    return Admission()
