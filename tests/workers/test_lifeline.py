"""A child's life hangs on the thread that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
CHILD = """
import sys, time
from daemon.contract.jobs.messages import ChildLimits
from handlers.child import process
process.bind(ChildLimits(threads=1, nice=0, idle=False, parent_pid=int(sys.argv[1])))
print("bound", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2] or str(os.getpid())], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def start(parent: str = "") -> tuple[subprocess.Popen[str], psutil.Process]:
    """A process with a child in a session of its own, which takes `parent` for its parent ("": the one that it has)."""
    process = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, parent], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    return process, psutil.Process(int(process.stdout.readline()))


def test_a_child_ends_when_its_parent_is_killed() -> None:  # R6.5
    parent, child = start()
    assert parent.stdout is not None
    assert parent.stdout.readline() == "bound\n"
    with parent.stdout:
        parent.kill()
        parent.wait()
        gone, left = psutil.wait_procs([child], timeout=10)
        for one in left:
            one.kill()
    assert gone == [child]


@pytest.mark.slow
def test_a_child_that_has_another_parent_already_ends_itself() -> None:
    parent, child = start(str(os.getpid()))
    try:
        gone, _ = psutil.wait_procs([child], timeout=10)
        assert gone or child.status() == psutil.STATUS_ZOMBIE
    finally:
        child.kill()
        parent.kill()
        parent.communicate()
