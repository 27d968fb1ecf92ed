"""Several ckptd with one output, each with a state of its own: same trainings, trainings of the same name, and others; with kills.

Publication, owners, retention and what a start finds are the real ones. Everything follows from the seed: who takes which checkpoint, whose
turn it is, at which named point of a publication another one has its turn or the daemon dies, where people put their files.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from daemon.config.settings import RetentionSettings
from daemon.contract.disk import failpoints
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.faults.errors import CkptdError
from daemon.operating.integrity.fsck import examine
from daemon.publishing.retention import prune
from daemon.publishing.verification import exports_below, verify
from daemon.running.endings import tidy_job
from daemon.running.recovery import tidy_up
from tests.publish.two import Daemon, bytes_below

NAMES = ("first", "second", "third")
TRAININGS = (("/shared", "run"), ("/shared", "other"), ("/{name}", "run"), ("/{name}", "mine-{name}"))
"""Roots and runs: the first two are one training that all watch; the third has the same name in each root."""
WORDS = "of a person"


class Died(BaseException):
    """A daemon was killed."""


@dataclass
class Output:
    """A world of daemons below `folder`; `play` gives what was violated."""

    seed: int
    folder: Path
    said: list[str] = field(default_factory=list)
    refused: int = 0
    deaths: int = 0
    published: int = 0
    turns: int = 0
    """Of one daemon while another one published."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.output = self.folder / "out"
        self.naming = self.rng.choice(["{run}/step-{step}", "{run}-{step}"])
        self.daemons = {name: self._daemon(name) for name in NAMES[: self.rng.choice([2, 2, 3])]}
        self.owner: dict[Path, str] = {}
        """Target → the daemon that published there first."""
        self._notes = self._depth = 0
        self._at_work: set[str] = set()

    def _daemon(self, name: str) -> Daemon:
        return Daemon(self.folder / name, self.output, self.naming)

    def play(self, rounds: int = 40) -> list[str]:
        """Play it, then let every daemon end its work; gives what was violated."""
        genuine = failpoints.point
        failpoints.point = self._point  # type: ignore[assignment]
        try:
            for _ in range(rounds):
                self._turn(self.rng.choice([*self.daemons]))
                self._look()
        finally:
            failpoints.point = genuine  # type: ignore[assignment]
        for name in self.daemons:
            self._start_again(name)
            for job in sorted(self.daemons[name].journal.jobs.open_ids()):
                self._end(name, job)
        self._look()
        self._check_end()
        return self.said

    # What happens

    def _point(self, point: str) -> None:
        """Between two steps of a publication: another daemon has its turn, or this one dies."""
        if not point.startswith(("publish.", "owner.", "retention.")):
            return  # the journal's, in a thread of its own
        if self.rng.random() < 0.02:
            raise Died
        if self._depth < 2 and self.rng.random() < 0.05:
            others = [name for name in self.daemons if name not in self._at_work]
            if others:
                self.turns += 1
                self._turn(self.rng.choice(others))

    def _turn(self, name: str) -> None:
        self._depth += 1
        self._at_work.add(name)
        try:
            self._act(name)
        except Died:
            self.deaths += 1
            self._start_again(name)
        finally:
            self._at_work.discard(name)
            self._depth -= 1

    def _act(self, name: str) -> None:
        one, chance = self.daemons[name], self.rng.random()
        waiting = sorted(one.journal.jobs.open_ids())
        if chance < 0.45 or not waiting:
            root, run = self.rng.choice(TRAININGS)
            content = self.rng.choice(["", "again"])
            with suppress(AssertionError):  # it is known already
                job = one.take(run.format(name=name), self.rng.choice([2, 4]), root=root.format(name=name), content=content)
                one.make(job)
        elif chance < 0.85:
            self._end(name, self.rng.choice(waiting))
        elif chance < 0.93:
            folders = sorted({target.parent for target in self.owner if target.parent.is_dir()})
            try:
                prune(
                    folders, None, RetentionSettings(keep_last=1), staging=one.paths.staging, top=self.output, busy=set(waiting),
                    owner=one.paths.owner, records=one.paths.published,
                )  # fmt: skip
            finally:  # it may have died in the middle of it
                self._note_removed(name)
        else:
            self._plant()

    def _end(self, name: str, job: str) -> None:
        one = self.daemons[name]
        row = one.journal.jobs.get(job)
        if row is None or row.state != "running":
            return
        try:
            ended = one.end(row)
        except OSError:  # it is tried again
            return
        if ended.state == "failed":
            self.refused += 1
            if "ckptd" not in str(ended.reason) and "another checkpoint" not in str(ended.reason):
                self.said.append(f"{job} was refused without a reason: {ended.reason}")
        elif ended.state == "succeeded":
            self.published += 1
            if self.owner.setdefault(ended.target, name) != name:
                self.said.append(f"{job} replaced what {self.owner[ended.target]} had published in {ended.target}")
        with suppress(CkptdError):
            tidy_job(ended, one.journal, one.paths)

    def _plant(self) -> None:
        exports = sorted(exports_below(self.output))
        if exports:
            self._notes += 1
            (self.rng.choice(exports) / f"note-{self._notes}").write_text(f"{WORDS} {self._notes}")

    def _start_again(self, name: str) -> None:
        self.daemons[name].journal.close()
        genuine, failpoints.point = failpoints.point, lambda name: None  # type: ignore[assignment]
        try:
            self.daemons[name] = one = self._daemon(name)
            tidy_up(one.journal, one.paths, one.paths.pins, ())
            for job in sorted(one.journal.jobs.open_ids()):
                row = one.row(job)
                if row.state == "running":
                    one.make(row)  # what a crash left of it is made again
        finally:
            failpoints.point = genuine  # type: ignore[assignment]

    def _note_removed(self, name: str) -> None:
        for target, owner in list(self.owner.items()):
            if not target.exists() and owner == name:
                del self.owner[target]

    # What must be true

    def _look(self) -> None:
        """Every export that was published is there, of its daemon, and no file of a person is lost."""
        for target, name in self.owner.items():
            found = str(manifest_of(target).get("export_id"))
            if not found.startswith(f"{name}-"):
                self.said.append(f"{target} is {found}, and {name} had published it")
            elif any(problem.code not in ("extra",) for problem in verify(target).problems):
                self.said.append(f"{target} is not whole: {verify(target).problems}")
        notes = sum(value.endswith(tuple("0123456789")) and WORDS in value for value in bytes_below(self.output).values())
        if notes != self._notes:
            self.said.append(f"{notes} of {self._notes} notes are left")

    def _check_end(self) -> None:
        for name, one in self.daemons.items():
            if left := one.journal.jobs.open_ids():
                self.said.append(f"jobs of {name} never end: {left}")
            one.journal.close()
            found = examine(one.paths.state, self.output, quiescent=True)
            wrong = [finding.sentence() for finding in found.findings if finding.code not in ("export-extra", "pin-missing")]
            self.said += [f"{name}: {sentence}" for sentence in wrong]

    def close(self) -> None:
        """Close the journals, remove everything."""
        for one in self.daemons.values():
            with suppress(Exception):
                one.journal.close()
        shutil.rmtree(self.folder)
