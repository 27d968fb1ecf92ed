"""Training comes first: a child yields the processor also to sessions that are not its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SECONDS = 3.0
BUSY = "while True: pass"
CHILD = f"""
import time
from daemon.contract.jobs.messages import ChildLimits
from handlers.child import process
process.bind(ChildLimits())
before, end = time.process_time(), time.monotonic() + {SECONDS}
while time.monotonic() < end:
    pass
print(time.process_time() - before)
"""


def spin(program: str, core: int) -> subprocess.Popen[str]:
    """A process in a session of its own that wants all of one core."""
    return subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_beside_a_busy_process_of_another_session_a_child_gets_next_to_nothing() -> None:
    core = min(os.sched_getaffinity(0))
    busy, child = spin(BUSY, core), spin(CHILD, core)
    try:
        took = float(child.communicate(timeout=120)[0])
    finally:
        busy.kill()
        busy.communicate()
    assert took < 0.2 * SECONDS, f"{took:.2f} s of processor time in {SECONDS} s"
