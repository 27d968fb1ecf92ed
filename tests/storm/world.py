"""A storm: two real daemons with one output and three runs, killed at random moments, in a world that moves folders and fills disks.

Each daemon has a state of its own. The run `both` lies below a root that both watch: one of them publishes it, and the other one's jobs
end with the reason. The run `alone` is there twice, below a root of each daemon: two trainings of one name. The stages are toys; daemon,
journal, children, publication and verbs are the real ones. Everything that is chosen follows from the seed, but not the moments at which
the daemons come to something.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

import psutil

from daemon.checkpoints.pinning.pins import identify
from daemon.config.places.output_owners import RECORD
from daemon.journal.file.opening import reading
from daemon.journal.rows import JobRow, job_of
from tests.faults.layer import Faults, Rule
from tests.runner.conftest import Toy, arrived
from tests.service import ENDED

LIMITS = '[limits]\nretry_seconds = 0.1\nattempts = 50\ncrashes = 1000\ndisk_reserve = 0\npriority = "normal"\n[retention]\nkeep_last = 0\n'
NAMES = ("first", "second")
SHARED = "both"
ALONE = "alone"
FINAL_SECONDS = 300
"""In which everything that is open ends, once nothing more happens."""


class Sharing(Toy):
    """A daemon whose output others have too."""

    def __init__(self, folder: Path, roots: list[Path], output: Path, mapped: str) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder, root=roots[0], extra=f"{mapped}{LIMITS}")
        for root in roots:
            root.mkdir(exist_ok=True)
        self.reconfigure(f'["{self.root}"]', json.dumps([str(root) for root in roots]))
        self.reconfigure(f'directory = "{self.exports}"', f'directory = "{output}"')
        self.exports = output

    def jobs(self) -> list[JobRow]:
        """Every job of its journal."""
        # None yet, or one without tables: the daemon is making it.
        with contextlib.suppress(FileNotFoundError, sqlite3.OperationalError), reading(self.state / "journal.sqlite3") as connection:
            return [job_of(row) for row in connection.execute("SELECT * FROM job").fetchall()]
        return []

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def serves(self) -> bool:
        """Whether the process that was started last has come to its work."""
        daemon = self.status()["daemon"]
        return bool(self.process is not None and daemon["running"] and daemon["pid"] == self.process.pid)


class Storm:
    """A world of two daemons below `folder`; `blow` plays it, `problems` holds what was violated meanwhile."""

    def __init__(self, folder: Path, checkpoint: Path, base: Path, seed: int) -> None:
        self.folder, self.output = folder, folder / "exports"
        self._rng = random.Random(seed)
        self._checkpoint = checkpoint
        self.roots = {name: folder / f"root-{name}" for name in (SHARED, *NAMES)}
        self.base = Path(shutil.copytree(base, folder / "base"))
        mapped = f"[base.map]\n{json.dumps(str(base))} = {json.dumps(str(self.base))}\n"
        self.toys = {
            name: Sharing(folder / name, [self.roots[SHARED], self.roots[name]], self.output, mapped) for name in NAMES
        }  # fmt: skip
        self.calm = Sharing(folder / "calm", list(self.roots.values()), folder / "calm-exports", mapped)
        """A single daemon with an output of its own that nothing disturbs, for what should be published."""
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._steps: dict[str, list[Path]] = {name: [] for name in self.roots}
        self._owners: dict[Path, str] = {}

    @property
    def checkpoints(self) -> dict[str, list[Path]]:
        """Root → its checkpoints."""
        return self._steps

    def blow(self, kills: int, every: int, longest: float) -> None:
        """Kill daemons so often, while checkpoints arrive and troubles come; then let everything end.

        `every`: rounds from one trouble to the next. `longest`: seconds that daemons work at most from one round to the next.
        """
        troubles = [self._take_the_base_away, self._plant_a_link, self._fill_the_disk]
        number = 0
        for name in self.roots:
            self._arrive(name)
        while self.counts["kills"] < kills:
            number += 1
            if number % 3 == 0:
                self._arrive(self._rng.choice([SHARED, SHARED, *NAMES]))
            self._start_the_dead()
            if number % every == 0:
                troubles[number // every % len(troubles)]()
                self._start_the_dead()
            if self._rng.random() < 0.7:
                self._wait_until_they_serve()
            time.sleep(self._rng.uniform(0.1, longest))
            for name in self._rng.choice([NAMES[:1], NAMES[1:], NAMES[:1], NAMES[1:], NAMES]):
                self._kill(name)
            self._look()
        self._start_the_dead()
        self._settle()
        self._look()
        for name, toy in self.toys.items():
            if (code := toy.stop()) != 0:
                self.problems.append(f"{name} ended with {code} after SIGTERM")

    def kill_all(self) -> None:
        """Leave no daemon."""
        for toy in (*self.toys.values(), self.calm):
            if toy.lives:
                toy.kill()

    # What happens

    def _arrive(self, name: str) -> None:
        """A checkpoint comes to the run below a root, or one that is there is written again with another content."""
        root, steps = self.roots[name], self._steps[name]
        run = root / (SHARED if name == SHARED else ALONE)
        self.counts["checkpoints"] += 1
        hidden, number = self.folder / "incoming", self.counts["checkpoints"]
        if steps and self._rng.random() < 0.2:
            target = self._rng.choice(steps)
            target.rename(self.folder / f"old-{number}")
            arrived(self._checkpoint, run, int(target.name.rpartition("-")[2]), hidden, own=[name, number])
            self.counts["checkpoints written again"] += 1
        else:
            steps.append(arrived(self._checkpoint, run, 10 * (len(steps) + 1), hidden, own=[name, number]))

    def _start_the_dead(self) -> None:
        for name, toy in self.toys.items():
            if not toy.lives:
                if toy.process is not None and toy.process.returncode != -signal.SIGKILL:
                    self.problems.append(f"{name} ended by itself with {toy.process.returncode}: {toy.log()[-1500:]}")
                toy.start()

    def _wait_until_they_serve(self) -> None:
        """On a busy box too most daemons come to their work before they die."""
        for toy in self.toys.values():
            end = time.monotonic() + 30
            while toy.lives and time.monotonic() < end and not toy.serves:
                time.sleep(0.05)

    def _kill(self, name: str) -> None:
        toy = self.toys[name]
        if not toy.lives:
            return
        if self._rng.random() < 0.2:
            for child in toy.attempts()[:1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
                    self.counts["children killed"] += 1
            time.sleep(self._rng.uniform(0, 0.3))
        toy.kill()
        self.counts["kills"] += 1
        self.counts["kills while jobs were open"] += any(job.state not in ENDED for job in toy.jobs())

    def _take_the_base_away(self) -> None:
        """The base's folder has another name for some seconds; a daemon dies meanwhile."""
        self.counts["times that the base was away"] += 1
        aside = self.folder / "base-aside"
        self.base.rename(aside)
        time.sleep(self._rng.uniform(0.5, 3))
        self._kill(self._rng.choice(NAMES))
        self._start_the_dead()
        time.sleep(self._rng.uniform(0.5, 3))
        aside.rename(self.base)

    def _plant_a_link(self) -> None:
        """While no daemon runs somebody puts a link in the place of the output's `.staging`: no daemon starts, and nothing goes there."""
        staging, aside, elsewhere = self.output / ".staging", self.output / ".staging-aside", self.folder / "elsewhere"
        for name in NAMES:
            self._kill(name)
        if not staging.is_dir():
            return
        self.counts["planted links"] += 1
        elsewhere.mkdir(exist_ok=True)
        staging.rename(aside)
        staging.symlink_to(elsewhere)
        for name, toy in self.toys.items():
            toy.start()
            code = toy.wait_dead(60)
            if code in (0, -signal.SIGKILL) or str(staging) not in toy.log()[-3000:]:
                self.problems.append(f"{name} ended with {code} where .staging was a link: {toy.log()[-1500:]}")
            toy.process = None
        self.problems += [f"{path} was written through a planted link" for path in elsewhere.iterdir()]
        staging.unlink()
        aside.rename(staging)

    def _fill_the_disk(self) -> None:
        """The output's disk is full for some seconds, for one of the daemons; that one dies meanwhile."""
        name = self._rng.choice(NAMES)
        toy = self.toys[name]
        self._kill(name)
        with Faults(kinds=("write", "mkdir")) as faults:
            with (toy.folder / "daemon.log").open("ab") as log:
                environment = {**os.environ, **toy.environment, "HF_HUB_OFFLINE": "1"}
                toy.process = faults.start([*toy.command, str(toy.config)], stdout=log, stderr=log, env=environment)
            time.sleep(self._rng.uniform(0.5, 2))
            faults.set(
                Rule("write", errno.ENOSPC, calls=None, below=self.output), Rule("mkdir", errno.ENOSPC, calls=None, below=self.output)
            )
            time.sleep(self._rng.uniform(1, 4))
            self.counts["writes to a full disk"] += len(faults.failed)
            self._kill(name)

    # What must hold

    def _look(self) -> None:
        """Each run's folder keeps its owner."""
        for record in self.output.glob(f"*/{RECORD}*"):
            instance = json.loads(record.read_bytes())["instance"]
            if self._owners.setdefault(record, instance) != instance:
                self.problems.append(f"{record.parent} had the owner {self._owners[record]}, and then {instance}")

    def _settle(self) -> None:
        """Nothing more happens: each daemon comes to the end of everything that it should take."""
        end = time.monotonic() + FINAL_SECONDS
        for name, toy in self.toys.items():
            wanted = {str(path): identify(path) for path in (*self._steps[SHARED], *self._steps[name])}
            while not at_rest(toy, wanted):
                if time.monotonic() > end or not toy.lives:
                    self.problems.append(
                        f"{name} did not come to an end: {[(job.id, job.state) for job in toy.jobs()]} {toy.log()[-2000:]}"
                    )
                    break
                time.sleep(0.2)


def at_rest(toy: Sharing, wanted: dict[str, str]) -> bool:
    """Whether every checkpoint (path → digest) has been taken and no job is open."""
    jobs = toy.jobs()
    taken = {(job.checkpoint.path, job.checkpoint.digest) for job in jobs}
    return wanted.items() <= taken and all(job.state in ENDED for job in jobs)
