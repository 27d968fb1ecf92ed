"""The lock on a state directory: one daemon works with a journal at a time.

Held by `ckptd run` and `ckptd export`; `is_locked` is how other verbs see that a daemon runs.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode

PATIENCE_SECONDS = 1.0
"""`is_locked` of another process may hold the lock for an instant, a daemon holds it long."""


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold the journal's lock. Raises UsageError when another process holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0) as stream:
        try:
            _lock(stream.fileno())
        except BlockingIOError:
            owner = holder(lock)[0] or "unknown"
            raise UsageError(
                FaultCode.ALREADY_RUNNING, "start on this journal", f"another ckptd (pid {owner}) uses it",
                "stop that one; a second daemon needs a configuration with a state.directory of its own",
                path=lock.parent,
            ) from None  # fmt: skip
        mine = str(os.getpid()).encode()
        stream.write(mine)  # over what is there, so that a full disk is no obstacle
        stream.truncate(len(mine))
        yield


def _lock(descriptor: int) -> None:
    """Lock, or raise BlockingIOError."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.02)


def holder(lock: Path) -> tuple[int | None, float]:
    """The process that locked it last, None where that is not known, and the seconds since then by the wall clock."""
    try:
        with open(lock, "rb") as stream:
            pid, since = stream.read(100).decode(errors="replace").strip(), os.fstat(stream.fileno()).st_mtime
    except OSError:
        return None, 0.0
    return int(pid) if pid.isdecimal() else None, time.time() - since


def is_locked(lock: Path) -> bool:
    """Whether a daemon holds the lock now."""
    try:
        with open(lock, encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
