"""How much CPU time an attempt gets, and how much it could use: children run at a low priority, and a training may leave them next to none.

Called by `worker` at its looks. A moving mean over some seconds, since a share is of no use that changes with every look.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from daemon.running.attempts.executor import CpuShare
from daemon.system.processes import procfs

MEMORY_SECONDS = 10.0
"""Time constant of the mean."""
FIRST_SECONDS = 3.0
"""What it takes to tell anything."""


class CpuMeter:
    """The CPU time of one attempt's processes."""

    def __init__(self, most: float = math.inf) -> None:
        """`most`: cores that it could use at a time; helper threads that are ready beside its own would use no more."""
        self._most = most
        self._threads: dict[int, tuple[float, float, bool]] = {}
        self._at: float | None = None
        self._watched = self._got = self._wanted = 0.0
        self.kept_waiting = 0.0
        """Seconds in which other processes had the CPU time that these ones were ready to use, while they were starved of it."""

    def look(self, pids: Iterable[int], now: float) -> None:
        """Take in what the processes had up to `now`, by the monotonic clock."""
        before, self._threads = self._threads, procfs.cpu_times(pids)
        since, self._at = self._at, now
        if since is None or now <= since or not self._threads:
            return
        passed = now - since
        got = waited = 0.0
        for thread, (ran, stood, ready) in self._threads.items():
            ran_before, stood_before, _ = before.get(thread, (0.0, 0.0, False))
            ran, stood = ran - ran_before, stood - stood_before
            got += max(0.0, ran)
            # A wait is counted by the kernel when it is over: one that lasts is told by a thread that is ready and does nothing.
            waited += passed if ready and ran <= 0 and stood <= 0 else max(0.0, stood)
        kept = math.exp(-passed / MEMORY_SECONDS) if self._watched else 0.0
        self._watched += passed
        self._got = kept * self._got + (1 - kept) * got / passed
        self._wanted = kept * self._wanted + (1 - kept) * max(got, min(got + waited, self._most * passed)) / passed
        if CpuShare(got / passed, (got + waited) / passed).starved:
            self.kept_waiting += passed * waited / (got + waited)

    @property
    def share(self) -> CpuShare | None:
        """The mean of late; None where it is too early, or the kernel does not count."""
        return CpuShare(self._got, self._wanted) if self._watched >= FIRST_SECONDS else None
