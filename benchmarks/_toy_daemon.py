"""The real daemon with attempts that end as soon as they begin: `python _toy_daemon.py CONFIG`, for `daemon.py`.

All of the daemon's own parts work as they do for real exports: watches, pins, journal, runner, publication, retention, status.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._many_jobs import Instant, Instantly
from daemon.config.loading import load
from daemon.operating.log import logs
from daemon.operating.service import serve
from daemon.running.attempts.executor import Attempt, Order

ZERO = os.open("/dev/zero", os.O_RDONLY)


class AtOnce(Instantly):
    """Runs attempts in no time, and lets the runner know at once."""

    def start(self, order: Order) -> Attempt:
        """It has ended when it is asked, and says so."""
        attempt = Instant(order)
        attempt.wait_handle = ZERO
        return attempt


if __name__ == "__main__":
    config = Path(sys.argv[1])
    settings = load(config, need_roots=True)
    logs.set_up(settings.log, None)
    serve(settings, lambda: load(config, need_roots=True), executor=AtOnce())
