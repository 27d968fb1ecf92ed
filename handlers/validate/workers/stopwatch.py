"""How long a model takes, whatever else the machine does meanwhile.

Called where speeds are measured. Other programs get the cores in between: what a pass takes by the wall says how busy the machine is, and
two models can be compared after many turns only. The kernel says for how long a thread was ready and had no core (/proc/PID/schedstat);
that is not the model's time. Threads that the model's library has of its own are not looked at: while they have no core, time counts.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

_WAITED = Path("/proc/thread-self/schedstat")


class Stopwatch:
    """Runs from the moment at which it is made, for the thread that made it."""

    def __init__(self) -> None:
        self._started, self._waited = time.perf_counter(), _seconds_waited()

    def lap(self) -> float:
        """Return the seconds since it was made or since the last lap, without those for which this thread waited for a core."""
        before, self._started = self._started, time.perf_counter()
        waited_before, self._waited = self._waited, _seconds_waited()
        return max(1e-9, self._started - before - (self._waited - waited_before))


def _seconds_waited() -> float:
    """Seconds for which this thread has been ready and had no core; 0 where the kernel doesn't count them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_WAITED.read_text("ascii").split()[1]) / 1e9
    return 0.0
