"""Random histories of directories that are written, renamed, swapped, copied, deleted and brought back: each content has one job for each
place that it lay at, and none is forgotten."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from daemon.contract.disk.files import remove_tree
from tests.cli.test_verbs_agree import RAM, Box
from tests.simulation.files import ORDER, WEIGHTS, make_checkpoint

RUNS = ("a", "b", "c")
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["write", "rename", "swap", "copy", "delete", "bring back"]), st.sampled_from(RUNS), st.sampled_from(RUNS)),
    min_size=1, max_size=10,
)  # fmt: skip
Action = tuple[str, str, str]


class History:
    """Runs with one checkpoint each, whose content is known by its number."""

    def __init__(self, home: Path) -> None:
        self.box = Box(home, {})
        self.box.root.mkdir()
        self.backups = home / "backups"
        self.backups.mkdir()
        self.contents = 0
        self.most: Counter[bytes] = Counter()
        """Weights → the greatest number of places at which they lay at one time."""
        self.again: Counter[bytes] = Counter()
        """Weights → how often they came back from a backup."""

    def _at(self, run: str) -> Path:
        return self.box.root / run / "checkpoint-4"

    def do(self, action: str, one: str, other: str) -> None:
        """One thing that people or trainers do, where it can be done."""
        here, there = self.box.root / one, self.box.root / other
        if action == "write":
            self._write(self._at(one))
        elif action == "delete" and here.exists():
            remove_tree(here)
        elif action == "rename" and here.exists() and not there.exists():
            os.rename(here, there)
        elif action == "copy" and here.exists() and not there.exists():
            shutil.copytree(here, there)
        elif action == "swap" and here.exists() and there.exists() and one != other:
            os.rename(here, self.box.root / ".aside")
            os.rename(there, here)
            os.rename(self.box.root / ".aside", there)
        elif action == "bring back" and not here.exists() and (kept := sorted(self.backups.iterdir())):
            backup = kept[ord(other) % len(kept)]
            self.again[(backup / "checkpoint-4" / WEIGHTS).read_bytes()] += 1
            shutil.copytree(backup, here)

    def _write(self, checkpoint: Path) -> None:
        self.contents += 1
        checkpoint.mkdir(parents=True, exist_ok=True)
        files = make_checkpoint(Random(self.contents), 4)
        for name in ORDER:
            (checkpoint / name).write_bytes(files[name])
        shutil.copytree(checkpoint.parent, self.backups / f"{self.contents:03}")

    def settle(self) -> list[str]:
        """Let the daemon look; what is wrong then, in words."""
        self.box.pass_time()
        self._clear()
        self.box.pass_time()
        stands = {run: (self._at(run) / WEIGHTS).read_bytes() for run in RUNS if self._at(run).exists()}
        for weights, count in Counter(stands.values()).items():
            self.most[weights] = max(self.most[weights], count)
        rows = [job for name in self.box.journal.jobs.open_ids() if (job := self.box.journal.jobs.get(name))]
        pinned = Counter((job.pin / WEIGHTS).read_bytes() for job in rows)
        said = [f"{run} has no job" for run, weights in stands.items() if not pinned[weights]]
        said += [f"{count} jobs for what lay at {self.most[weights]} places, and came back {self.again[weights]} times"
                 for weights, count in pinned.items() if count > self.most[weights] + self.again[weights]]  # fmt: skip
        targets = Counter(job.target for job in rows)
        return said + [f"{target} is the place of {count} exports" for target, count in targets.items() if count > 1]

    def _clear(self) -> None:
        """What the runner does about jobs that gave way."""
        for job in self.box.journal.jobs.untidy():
            remove_tree(job.pin)
            self.box.journal.jobs.tidied(job.id)


def wrong(actions: list[Action]) -> list[str]:
    """What is wrong after one of these actions, in words."""
    with tempfile.TemporaryDirectory(dir=RAM if RAM.is_dir() else None) as home, capture_logs():
        history = History(Path(home))
        try:
            for number, action in enumerate(actions):
                history.do(*action)
                if said := history.settle():
                    return [f"after {number + 1} actions: {line}" for line in said]
        finally:
            history.box.journal.close()
    return []


@settings(max_examples=25, deadline=None, derandomize=True)
@given(ACTIONS)
@example([("write", "a", "a"), ("write", "b", "b"), ("swap", "a", "b"), ("swap", "a", "b")])
@example([("write", "a", "a"), ("rename", "a", "b"), ("bring back", "a", "a"), ("write", "a", "a")])
def test_whatever_happens_to_names_each_content_is_exported_once_for_each_of_its_places(actions: list[Action]) -> None:
    assert wrong(actions) == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(max_examples=1500, deadline=None, derandomize=True)
@given(ACTIONS)
def test_thousands_of_histories_of_names_lose_and_double_nothing(actions: list[Action]) -> None:
    assert wrong(actions) == []
