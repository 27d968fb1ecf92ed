"""A run that is a link to another disk is a run like any other; no link makes a walk go round, or out to where it has no business."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.operating.diagnosis.readability import tried
from daemon.operating.monitoring.explain import explain
from daemon.watching.groups import Watchers
from daemon.watching.links import followed_now, leading_out
from daemon.watching.taking.intake import Intake
from tests.detection.helpers import copy_of, open_jobs

Watch = Callable[..., "Watched"]


class Watched:
    """Watchers of `folder/runs` with a journal of their own; `look` is what the daemon's main loop does."""

    def __init__(self, folder: Path, **watch: Any) -> None:
        self.root = folder / "runs"
        self.settings = Settings(
            watch={"roots": (self.root,), "settle_seconds": 0.2, "rescan_seconds": 0.5, **watch},
            output={"directory": folder / "exports"}, state={"directory": folder / "state"},
        )  # fmt: skip
        paths = prepare(self.settings.state_directory, self.settings.output.directory)
        self.journal = Journal(paths.journal)
        self.watchers = Watchers(self.settings, Intake(self.settings, self.journal, paths), taken=lambda: None)
        self.watchers.start()

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < end, f"in vain: links {self.watchers.links}, jobs {self.runs()}"
            self.watchers.look()
            time.sleep(0.05)

    def rest(self) -> None:
        """Two scans more."""
        for _ in range(2):
            before = self.watchers.last_scan
            self.until(lambda before=before: self.watchers.last_scan > before)
        time.sleep(0.4)

    def runs(self) -> list[tuple[str, int]]:
        return sorted((job.checkpoint.run, job.checkpoint.step) for job in open_jobs(self.journal))


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    made: list[Watched] = []

    def start(**rules: Any) -> Watched:
        (tmp_path / "runs").mkdir(exist_ok=True)
        made.append(Watched(tmp_path, **rules))
        return made[-1]

    yield start
    for watched in made:
        watched.watchers.stop()
        watched.journal.close()


@pytest.mark.parametrize("backend", ["inotify", "poll"])
def test_a_run_that_is_a_link_is_taken_by_the_name_of_the_link(watch: Watch, tmp_path: Path, pico_checkpoint: Path, backend: str) -> None:
    here = watch(backend=backend)
    copy_of(pico_checkpoint, tmp_path / "disk" / "x17" / "checkpoint-4")
    (here.root / "team").mkdir()
    (here.root / "team" / "run").symlink_to(tmp_path / "disk" / "x17")
    here.until(lambda: here.runs() == [("team/run", 4)])
    copy_of(pico_checkpoint, tmp_path / "disk" / "x17" / "checkpoint-8", step=8, weights=0.5)
    here.until(lambda: here.runs() == [("team/run", 4), ("team/run", 8)])
    job = open_jobs(here.journal)[0]
    assert (job.checkpoint.root, Path(job.checkpoint.path)) == (str(here.root), here.root / "team/run/checkpoint-4")
    said = explain(here.settings, here.root / "team" / "run" / "checkpoint-4")
    assert said.kind == "checkpoint" and said.watched and said.unwatched is None


@pytest.mark.slow  # what has no last file is given half a minute
def test_what_a_linked_run_holds_itself_when_training_has_ended_is_taken_once(watch: Watch, tmp_path: Path, pico_checkpoint: Path) -> None:
    here = watch()
    copy_of(pico_checkpoint, tmp_path / "disk" / "x17")
    (here.root / "run").symlink_to(tmp_path / "disk" / "x17")
    here.until(lambda: [run for run, _ in here.runs()] == ["run"])
    here.rest()
    assert len(here.runs()) == 1
    assert here.journal.sightings.decisions_below(str(here.root / "run")).keys() == {str(here.root / "run")}


def test_a_link_that_goes_is_watched_no_longer_and_what_comes_instead_is(watch: Watch, tmp_path: Path, pico_checkpoint: Path) -> None:
    here = watch()
    for name, step in (("a", 4), ("b", 8)):
        copy_of(pico_checkpoint, tmp_path / "disk" / name / f"checkpoint-{step}", step=step)
    link = here.root / "run"
    link.symlink_to(tmp_path / "disk" / "a")
    here.until(lambda: here.runs() == [("run", 4)])
    link.unlink()
    here.until(lambda: here.watchers.links == ())
    assert len(here.watchers.each) == 1
    link.symlink_to(tmp_path / "disk" / "b")
    here.until(lambda: here.runs() == [("run", 4), ("run", 8)])


def test_two_links_to_one_run_make_one_run(watch: Watch, tmp_path: Path, pico_checkpoint: Path) -> None:
    here = watch()
    copy_of(pico_checkpoint, tmp_path / "disk" / "team" / "x17" / "checkpoint-4")
    (here.root / "first").symlink_to(tmp_path / "disk" / "team")
    (here.root / "second").symlink_to(tmp_path / "disk" / "team" / "x17")
    here.until(lambda: here.runs() == [("first/x17", 4)])
    here.rest()
    assert here.runs() == [("first/x17", 4)] and here.watchers.links == (here.root / "first",)


def test_links_that_lead_back_or_nowhere_are_left_alone(tmp_path: Path) -> None:
    settings = Settings(
        watch={"roots": (tmp_path / "box" / "runs",)}, output={"directory": tmp_path / "exports"}, state={"directory": tmp_path / "state"}
    )
    root = tmp_path / "box" / "runs"
    for folder in (root / "run", tmp_path / "exports" / "run", tmp_path / "state", tmp_path / "disk" / "x17"):
        folder.mkdir(parents=True)
    (tmp_path / "file").touch()
    leads = {
        "self": "self", "gone": tmp_path / "gone", "file": tmp_path / "file", "inside": "run", "root": root, "around": tmp_path / "box",
        "everything": "/", "exports": tmp_path / "exports", "export": tmp_path / "exports" / "run", "state": tmp_path / "state",
        os.fsdecode(b"no text \xff"): tmp_path / "disk" / "x17", "good": tmp_path / "disk" / "x17",
    }  # fmt: skip
    for name, target in leads.items():
        (root / name).symlink_to(target)
    assert leading_out([str(root / name) for name in leads], settings) == {root / "good": os.path.realpath(tmp_path / "disk" / "x17")}


def test_no_link_is_followed_where_the_configuration_says_so(watch: Watch, tmp_path: Path, pico_checkpoint: Path) -> None:
    here = watch(links="no")
    copy_of(pico_checkpoint, tmp_path / "disk" / "x17" / "checkpoint-4")
    (here.root / "run").symlink_to(tmp_path / "disk" / "x17")
    here.rest()
    assert here.runs() == [] and here.watchers.links == ()
    said = explain(here.settings, here.root / "run" / "checkpoint-4")
    assert said.kind == "checkpoint" and "is a link, which scans don't follow" in (said.unwatched or "")


def test_the_event_of_a_link_is_enough_without_a_scan(watch: Watch, tmp_path: Path, pico_checkpoint: Path) -> None:
    here = watch(rescan_seconds=3600.0)
    copy_of(pico_checkpoint, tmp_path / "disk" / "x17" / "checkpoint-4")
    here.until(lambda: here.watchers._of[here.root].tracker.links.get(here.root) is not None)  # the first scan has ended
    (here.root / "run").symlink_to(tmp_path / "disk" / "x17")
    here.until(lambda: here.runs() == [("run", 4)])
    made = tmp_path / "made"
    made.symlink_to(tmp_path / "disk" / "x18")
    copy_of(pico_checkpoint, tmp_path / "disk" / "x18" / "checkpoint-8", step=8, weights=0.5)
    made.rename(here.root / "renamed")
    here.until(lambda: here.runs() == [("renamed", 8), ("run", 4)])


def test_check_looks_behind_the_links_that_are_followed(tmp_path: Path, pico_checkpoint: Path) -> None:
    copy_of(pico_checkpoint, tmp_path / "disk" / "x17" / "checkpoint-4")
    copy_of(pico_checkpoint, tmp_path / "runs" / "near" / "checkpoint-4")
    (tmp_path / "runs" / "run").symlink_to(tmp_path / "disk" / "x17")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs" / "near")
    for links, seen in (("follow", 2), ("no", 1)):
        settings = Settings(
            watch={"roots": (tmp_path / "runs",), "links": links}, output={"directory": tmp_path / "exports"},
            state={"directory": tmp_path / "state"},
        )  # fmt: skip
        assert followed_now(settings, 5.0) == ([tmp_path / "runs" / "run"] if seen == 2 else [])
        assert tried(settings).summary.endswith(f"{seen} checkpoint{'s' * (seen > 1)}")
