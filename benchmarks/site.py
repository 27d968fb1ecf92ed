"""A site of many runs, planned with figures: what a checkpoint a minute of each costs the journal and the scheduler, and what breaks first.

A simulation in virtual time, with the real code that talks to a scheduler, shows the bound that the arithmetic names.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from daemon.journal.journal import Journal
from daemon.running.cluster import link
from tests.cluster.virtual import Stage, VirtualCluster, VirtualRunner

RUNS, STAGES = 1000, 10
"""Runs of the plan; stages of an export with the default variants: merge, reference, merged, three variants, two checks, speed, report."""
COMMITS_A_STAGE = 4
"""Claimed, started, recorded where it is, ended."""
COMMITS = 300
SIMULATED_MINUTES = 1.0
SLOTS = 4000
"""Machines of the virtual site: so many that they are not what bounds it."""


class Arriving(VirtualRunner):
    """Its stages become ready at a rate; `waits` is how long each was ready before the scheduler had it, in seconds."""

    def __init__(self, folder: Path, cluster: VirtualCluster, a_minute: float) -> None:
        super().__init__(folder, cluster, 0, late=90.0)
        self._rate = a_minute / 60
        self.ready: deque[tuple[float, Stage]] = deque()
        self.made = 0
        self.open: list[tuple[float, Stage]] = []
        self.waits: list[float] = []

    def minute(self) -> None:
        """Let a minute pass."""
        end = self.cluster.now + 60 * SIMULATED_MINUTES
        self.executor.link.pause = self.cluster.advance  # what the code waits, the site's time passes
        while self.cluster.now < end:
            before = self.cluster.now
            while self.made < self._rate * self.cluster.now:
                stage = Stage(f"s{self.made}")
                self._start(stage)
                self.open.append((self.made / self._rate, stage))
                self.made += 1
            self.executor.link.call()
            self.executor.link.watch()
            waiting = []
            for since, stage in self.open:
                if stage.attempt is not None and stage.attempt.place is not None and stage.attempt.place.id:
                    self.waits.append(self.cluster.now - since)
                else:
                    waiting.append((since, stage))
            self.open = waiting
            if self.cluster.now == before:
                self.cluster.advance(0.2)


def simulated(folder: Path, a_minute: float, seed: int) -> dict[str, float]:
    """Stages that became ready in a minute, that were handed in until all of them were, and the longest wait for that."""
    cluster = VirtualCluster(SLOTS, [], random.Random(seed))
    runner = Arriving(folder, cluster, a_minute)
    runner.minute()
    return {
        "ready_a_minute": a_minute, "handed_in": len(runner.waits), "left": len(runner.open), "seconds": round(cluster.now),
        "longest_wait_s": round(max(runner.waits, default=0.0), 1),
    }  # fmt: skip


def commits_a_second(folder: Path) -> float:
    """Durable commits of the journal here, one after the other."""
    folder.mkdir(parents=True)
    journal = Journal(folder / "journal.sqlite3")
    try:
        began = time.perf_counter()
        for number in range(COMMITS):
            journal.controls.pause_all(number % 2 == 0)
        return COMMITS / (time.perf_counter() - began)
    finally:
        journal.close()


def plan(commits: float) -> dict[str, Any]:
    """The arithmetic of the plan."""
    stages = RUNS * STAGES
    most = link.SUBMISSIONS_A_SECOND * 60
    return {
        "runs": RUNS, "stages_an_export": STAGES, "exports_a_minute": RUNS, "stages_a_minute": stages,
        "submissions_a_minute_at_most": most, "runs_that_fit_submissions": int(most / STAGES),
        "commits_a_minute": stages * COMMITS_A_STAGE, "commits_a_second_here": round(commits),
        "runs_that_fit_the_journal": int(60 * commits / (STAGES * COMMITS_A_STAGE)),
        "squeue_a_minute": 60 / link.LOOK_SECONDS,
    }  # fmt: skip


@contextlib.contextmanager
def _quick() -> Iterator[Path]:
    """A folder in memory where there is such a thing: the simulation's time is virtual, and its files are not what is measured."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


def main() -> None:
    """Print the figures, and write them with --json."""
    options = _common.parser(str(__doc__)).parse_args()
    with _common.scratch("site") as folder, _quick() as quick:
        figures: dict[str, Any] = {"plan": plan(commits_a_second(folder / "journal"))}
        rates = (600.0, 60 * link.SUBMISSIONS_A_SECOND, 1.5 * 60 * link.SUBMISSIONS_A_SECOND)
        figures["simulated"] = [simulated(quick / f"rate-{rate:.0f}", rate, seed) for seed, rate in enumerate(rates)]
    _common.write("site", figures, options.json)


if __name__ == "__main__":
    main()
