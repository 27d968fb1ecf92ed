"""Named points at which a crash can be provoked: `CKPTD_FAULT=publish.renamed` kills the process there, as kill -9 would.

They stand at every commit of the journal and every step of a publication or a stage, so that "killed anywhere" can be tried.
`CKPTD_FAULT_ONCE=FILE`: only the first process that gets there, since it takes the file away. `CKPTD_FAULT_TRACE=FILE`: the
name of each point that is passed is appended there, so that a test can find them all.
"""

from __future__ import annotations

import os
import signal

VARIABLES = ("CKPTD_FAULT", "CKPTD_FAULT_ONCE", "CKPTD_FAULT_TRACE")
"""What is read of the environment."""


def point(name: str) -> None:
    """Die here without a chance to clean up if this point is the one that the environment names."""
    trace = os.environ.get("CKPTD_FAULT_TRACE")
    if trace:
        with open(trace, "a", encoding="utf-8") as stream:
            stream.write(name + "\n")
    if os.environ.get("CKPTD_FAULT") == name and _is_first():
        os.kill(os.getpid(), signal.SIGKILL)


def _is_first() -> bool:
    once = os.environ.get("CKPTD_FAULT_ONCE")
    if once is None:
        return True
    try:
        os.unlink(once)
    except FileNotFoundError:
        return False
    return True
