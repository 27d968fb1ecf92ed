"""A daemon of another machine on a state directory that is shared without its locks (`daemon.system.lease`), as other verbs see it.

Without common locks nobody else may open the journal's file, not even to read: SQLite would take a commit that is being made for one that a
crash cut off, and undo it.
"""

from __future__ import annotations

import time
from pathlib import Path

from daemon.contract.disk.files import boot_id
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.system import lease, lock
from daemon.system.lease import Holder

LOCK = "lock"
_touches: dict[Path, tuple[tuple[int, int], float, bool]] = {}
"""Lease → how it was when this process looked, since when, and whether it was seen to change to that."""


def elsewhere(state: Path) -> Holder | None:
    """The daemon of another machine that works with a state directory and whose lock is not seen from here; None where there is none.

    Two looks are compared, no clocks: on some network file systems each machine sets the times of files by its own. So this may last
    until the next touch, and FRESH_SECONDS where there is none: only where a lease of another machine is there.
    """
    file = state / lease.LEASE
    try:
        holder = lease.read(file)
        if holder is None or holder.boot == boot_id():
            return None
        if lock.is_locked(state / LOCK) and lock.holder(state / LOCK)[0] == holder.pid:
            return None  # locks are passed on here, also those of SQLite
        return holder if not lease.was_before_this_boot(file, holder, lease.this_process()) and _is_touched(file) else None
    except OSError:
        return None


def refuse_elsewhere(state: Path, operation: str) -> None:
    """Raise UsageError where a daemon of another machine works with a state directory and its lock is not seen from here."""
    if (holder := elsewhere(state)) is not None:
        raise UsageError(FaultCode.ALREADY_RUNNING, operation, holder.works(), "run the command on that machine", path=state)


def _is_touched(file: Path) -> bool:
    while (state := lease.state_of(file)) is not None:
        last, now = _touches.get(file), lease.now()
        if last is None or last[0] != state:
            _touches[file] = last = (state, now, last is not None)
        if now - last[1] > lease.FRESH_SECONDS:
            return False
        if last[2]:
            return True
        time.sleep(0.2)
    return False
