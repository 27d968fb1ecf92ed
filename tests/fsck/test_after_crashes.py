"""kill -9 at every step of a publication: one more try, and the checker finds nothing lost, nothing twice, nothing half."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from daemon.contract.disk.files import sweep_temporaries
from daemon.publishing.exchange.swap import complete_swaps
from tests.fsck.world import STAGES, World
from tests.sampling import some
from tests.verbs import run_program

LINKED = ["publish.before-link", "publish.link-made", "publish.linked", "publish.link-durable"]
COMMIT = ["before.finish-job", "after.finish-job"]
ASSEMBLED = ["publish.part", "publish.assembled", "publish.manifest", "publish.before-rename"]
FIRST = [*ASSEMBLED, "publish.renamed", "publish.parent-durable", *LINKED, *COMMIT]
AGAIN = [
    *ASSEMBLED, "publish.swap-recorded", "publish.exchanged", "publish.renamed", "publish.parent-durable", "publish.retired",
    "publish.old-removed", *LINKED, *COMMIT,
]  # fmt: skip
TWO_RENAMES = ["publish.swap-recorded", "publish.moved-away", "publish.renamed", "publish.old-removed"]
CASES = [
    *(("first", point) for point in FIRST), *(("again", point) for point in AGAIN), *(("two renames", point) for point in TWO_RENAMES),
]  # fmt: skip
PROGRAM = """
import errno, sys
from pathlib import Path
import daemon.publishing.exchange.swap
from tests.fsck.world import World

def refuse(first, second):
    raise OSError(errno.EINVAL, "Invalid argument")

if sys.argv[2] == "two renames":
    daemon.publishing.exchange.swap.exchange = refuse
World(Path(sys.argv[1])).finish("job-4")
"""


def ready(home: Path, way: str) -> None:
    """A job whose stages have all succeeded; its export is the first one, or takes the place of an earlier one."""
    world = World(home)
    if way == "first":
        job = world.enter(4)
    else:
        job = "job-4"
        world.finished(4)
        world.execute("UPDATE job SET state = 'partial'")
        world.repin(4)
        assert world.journal.jobs.retry(job)
    world.work(job, *STAGES)
    assert world.codes(deep=True) == []
    world.close()


@pytest.mark.parametrize(("way", "point"), some(CASES, of=6))
def test_after_one_more_try_nothing_is_lost_or_twice_or_half(tmp_path: Path, way: str, point: str) -> None:  # R6.5
    ready(tmp_path, way)
    done = run_program(PROGRAM, tmp_path, way, CKPTD_FAULT=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    world = World(tmp_path)
    try:
        sweep_temporaries(world.paths.state)
        complete_swaps(world.paths.staging)
        job = world.journal.jobs.get("job-4")
        assert job is not None
        if job.state == "running":
            world.finish("job-4")
        else:
            assert point == "after.finish-job"
            assert world.codes() == ["pin-orphan", "staging-orphan"], "what the crash left is seen"
            world.tidy("job-4")
        found = world.examine(deep=True)
        assert (found.findings, found.notes, found.exports) == ((), (), 1)
        assert sorted(os.listdir(world.paths.output / "run")) == ["latest", "step-4"]
    finally:
        world.close()
