"""What can go wrong with events, one by one: each is noticed soon, far ahead of the next rescan, and nothing is missed."""

from __future__ import annotations

import mmap
import os
import queue
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import WatchSettings
from daemon.watching.events.inotify import Hint, Kind
from daemon.watching.events.observers import Observers
from tests.detection.conftest import OtherUser, Stations
from tests.detection.helpers import WRITTEN_LAST, copy_of
from tests.detection.kernel import instances, wakeups, watched_below

NO_RESCAN = {"rescan_seconds": 3600.0}
"""So that what is found was found by an event or by the check of the watches."""


def reader() -> threading.Thread:
    """The thread that reads events."""
    (thread,) = [one for one in threading.enumerate() if one.name == "inotify"]
    return thread


def observers(*roots: Path, **options: Any) -> tuple[Observers, queue.SimpleQueue[Hint], list[str]]:
    """Watches without a watcher: the queue that its hints go into, and what it says."""
    hints: queue.SimpleQueue[Hint] = queue.SimpleQueue()
    said: list[str] = []
    made = Observers(WatchSettings(roots=roots, **options), hints, lambda _key, text: said.append(text))
    made.renew()
    return made, hints, said


def test_only_directories_that_lead_to_checkpoints_are_watched_and_all_by_one_instance(tmp_path: Path) -> None:
    for name in (
        "run/checkpoint-1/global_step1", "run/wandb/run-1/files", "run/tmp-checkpoint-2", "run/checkpoint-3-tmp", ".cache/models",
        "a/b/c/d", "a/b/c/checkpoint-4", "team/run/final/sub",
    ):  # fmt: skip
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    before = instances()
    made, _, _ = observers(tmp_path, depth=4)
    try:
        assert watched_below(tmp_path) == [
            ".", "a", "a/b", "a/b/c", "a/b/c/checkpoint-4", "run", "run/checkpoint-1", "team", "team/run", "team/run/final",
        ]  # fmt: skip
        assert len(made) == 10
        assert len(instances()) == len(before) + 1
    finally:
        made.stop()
    assert instances() == before


def test_watches_follow_directories_that_come_move_and_vanish(station: Stations) -> None:
    here = station(watch=NO_RESCAN)

    def are_watched(*names: str) -> None:
        here.wait(lambda: watched_below(here.root) == sorted([".", *names]), f"watches on {names}, not {watched_below(here.root)}")

    are_watched()
    (here.root / "a" / "run" / "checkpoint-1").mkdir(parents=True)
    are_watched("a", "a/run", "a/run/checkpoint-1")
    os.rename(here.root / "a", here.root / "b")
    are_watched("b", "b/run", "b/run/checkpoint-1")
    os.rename(here.root / "b" / "run", here.root / "b" / "tmp-run")
    are_watched("b")
    os.rename(here.root / "b" / "tmp-run", here.root / "run")
    are_watched("b", "run", "run/checkpoint-1")
    shutil.rmtree(here.root / "run")
    os.rename(here.root / "b", here.home / "outside")
    are_watched()
    (here.home / "outside" / "unseen").mkdir()
    (here.root / "run").mkdir()
    are_watched("run")
    assert len(here.watcher._observers) == 2  # nothing is remembered of what has gone


def test_a_run_that_was_renamed_is_still_watched_by_its_new_name(station: Stations, pico_run: Path) -> None:  # R1.1
    here = station(watch=NO_RESCAN)
    copy_of(pico_run / "checkpoint-2", here.root / "draft" / "checkpoint-2")
    here.wait_for_jobs(1)
    os.rename(here.root / "draft", here.root / "good")
    copy_of(pico_run / "checkpoint-4", here.root / "good" / "checkpoint-4")
    here.wait(lambda: ("good", 4) in [(job.checkpoint.run, job.checkpoint.step) for job in here.jobs()], "the step of the renamed run")


def test_reading_what_is_watched_wakes_nobody(station: Stations, pico_checkpoint: Path) -> None:
    here = station()
    target = copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(1)
    here.wait(lambda: here.watcher.tracker.next_due() is None, "the watcher has come to rest")
    before = wakeups(reader())
    for _ in range(20):
        for folder in (here.root, target.parent, target):
            os.listdir(folder)
        for file in target.iterdir():
            file.read_bytes() if file.is_file() else None
    here.wait_for_scans()
    assert wakeups(reader()) == before
    (target / "late.txt").touch()
    here.wait(lambda: wakeups(reader()) > before, "a write wakes it")


def test_what_is_written_through_a_mapping_gives_no_event_and_is_found_by_a_scan(station: Stations, pico_checkpoint: Path) -> None:  # R1.1
    here = station()
    last = copy_of(pico_checkpoint, here.home / "made") / WRITTEN_LAST
    content = last.read_bytes()
    last.write_bytes(bytes(len(content)))
    os.rename(last.parent, here.root / "checkpoint-4")
    target = here.root / "checkpoint-4"
    with open(target / WRITTEN_LAST, "r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapping:
        here.wait(lambda: target in here.watcher.tracker.listing.incomplete, "the file of zeros was found wanting")
        before = wakeups(reader())
        mapping[:] = content
        mapping.flush()
        here.wait_for_jobs(1)
        assert wakeups(reader()) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_that_ends_the_thread_of_events_costs_no_checkpoint(station: Stations, pico_run: Path) -> None:  # R1.1
    here = station(watch=NO_RESCAN)
    (here.root / "run").mkdir()
    here.wait(lambda: "run" in watched_below(here.root), "the run is watched")
    thread, before = reader(), len(instances())
    here.watcher._observers._directories.hints = None  # type: ignore[union-attr, assignment]
    copy_of(pico_run / "checkpoint-2", here.root / "run" / "checkpoint-2")

    def has_ended() -> bool:
        # On a busy box the hint of `run` may be taken only now: it is watched anew then, and what happened so far is of no watch.
        Path(tempfile.mkdtemp(dir=here.root)).rmdir()
        return not thread.is_alive()

    here.wait(has_ended, "the thread has ended")
    here.wait_for_jobs(1)
    copy_of(pico_run / "checkpoint-4", here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(2)
    assert len(instances()) == before


def test_an_error_in_one_round_does_not_end_the_watching(
    station: Stations, pico_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R1.1
    here = station(watch=NO_RESCAN)
    failed = threading.Event()

    def fail(now: float) -> None:
        monkeypatch.undo()
        failed.set()
        raise RuntimeError("for once")

    monkeypatch.setattr(here.watcher.tracker, "due", fail)
    copy_of(pico_run / "checkpoint-4", here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(1)
    assert failed.is_set()


def test_a_root_that_is_deleted_and_made_again_is_noticed_without_a_rescan(station: Stations, pico_run: Path) -> None:  # R1.1
    here = station(watch=NO_RESCAN)
    copy_of(pico_run / "checkpoint-2", here.root / "run" / "checkpoint-2")
    here.wait_for_jobs(1)
    shutil.rmtree(here.root)
    copy_of(pico_run / "checkpoint-4", here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(2)
    assert here.steps() == [2, 4]
    here.wait(lambda: watched_below(here.root) == [".", "run", "run/checkpoint-4"], "the new root is watched like the old one")


def test_a_root_that_another_directory_replaces_is_noticed_without_a_rescan(station: Stations, pico_run: Path) -> None:  # R1.1
    here = station(watch=NO_RESCAN)
    here.wait_for_scans(0)
    copy_of(pico_run / "checkpoint-4", here.home / "other" / "run" / "checkpoint-4")
    os.rename(here.root, here.home / "old")
    os.rename(here.home / "other", here.root)
    here.wait_for_jobs(1)
    (here.home / "old" / "run" / "checkpoint-6").mkdir(parents=True)
    assert watched_below(here.home / "old") == []


def test_a_root_that_is_a_link_is_followed_also_when_it_comes_to_lead_elsewhere(station: Stations, pico_run: Path) -> None:  # R1.1
    here = station(root=False, watch=NO_RESCAN)
    for name in ("first", "second"):
        (here.home / name).mkdir()
    here.root.symlink_to(here.home / "first")
    here.wait(lambda: watched_below(here.home / "first") == ["."], "the link's target is watched")
    copy_of(pico_run / "checkpoint-2", here.home / "first" / "run" / "checkpoint-2")
    (job,) = here.wait_for_jobs(1)
    assert job.checkpoint.path == str(here.root / "run" / "checkpoint-2")
    here.root.unlink()
    here.root.symlink_to(here.home / "second")
    copy_of(pico_run / "checkpoint-4", here.home / "second" / "run" / "checkpoint-4")
    here.wait_for_jobs(2)
    assert watched_below(here.home / "first") == []


def test_of_nested_roots_the_inner_one_has_the_checkpoint_and_no_other(station: Stations, pico_run: Path, tmp_path: Path) -> None:  # R1.1
    inner = tmp_path / "runs" / "team" / "project"
    inner.mkdir(parents=True)
    here = station(watch={"roots": (tmp_path / "runs", inner), "rescan_seconds": 0.5, "depth": 3})
    copy_of(pico_run / "checkpoint-2", inner / "a" / "b" / "checkpoint-2")  # deeper than the outer root's scan goes
    copy_of(pico_run / "checkpoint-4", here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(2)
    here.wait_for_scans()
    assert sorted(job.checkpoint.run for job in here.jobs()) == ["a/b", "run"]


def test_of_two_roots_that_a_link_makes_one_only_one_is_taken_from(station: Stations, pico_run: Path, tmp_path: Path) -> None:  # R1.1
    (tmp_path / "runs" / "team").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "runs" / "team")
    here = station(watch={"roots": (tmp_path / "link", tmp_path / "runs"), "rescan_seconds": 0.5})
    copy_of(pico_run / "checkpoint-4", tmp_path / "runs" / "team" / "run" / "checkpoint-4")
    here.wait_for_jobs(1)
    here.wait_for_scans()
    assert [job.checkpoint.run for job in here.jobs()] == ["team/run"]


def test_a_directory_that_may_not_be_read_is_passed_over_until_it_may(other_user: OtherUser) -> None:  # R1.5
    (other_user.folder / "open" / "checkpoint-1").mkdir(parents=True)
    (other_user.folder / "locked" / "checkpoint-2").mkdir(parents=True)
    os.chown(other_user.folder / "locked", 65534, 65534)
    (other_user.folder / "locked").chmod(0)
    said = other_user.run(
        "import queue\nfrom daemon.watching.events.observers import Observers\nfrom daemon.config.settings import WatchSettings",
        "hints = queue.SimpleQueue()\n"
        "seen = Observers(WatchSettings(roots=(folder,)), hints, lambda key, text: print(text))\n"
        "seen.renew()\n"
        "print(len(seen), seen.backend_of(folder), seen.why_unsound())\n"
        "(folder / 'locked').chmod(0o700)\n"
        "hint = hints.get(timeout=5)\n"
        "print(hint.path, seen.cover(hint.path), len(seen))\n"
        "seen.stop()\n",
    )
    locked = other_user.folder / "locked"
    assert said == ["3 inotify None", f"{locked} ['{locked}/checkpoint-2'] 5"]


def test_a_root_that_may_not_be_read_is_scanned_until_it_may(other_user: OtherUser) -> None:  # R1.5
    (other_user.folder / "runs" / "run").mkdir(parents=True)
    os.chown(other_user.folder / "runs", 65534, 65534)
    (other_user.folder / "runs").chmod(0)
    said = other_user.run(
        "import queue\nfrom daemon.watching.events.observers import Observers\nfrom daemon.config.settings import WatchSettings",
        "root = folder / 'runs'\n"
        "seen = Observers(WatchSettings(roots=(root,)), queue.SimpleQueue(), lambda key, text: print(text))\n"
        "seen.renew()\n"
        "print(len(seen), seen.backend_of(root), seen.why_unsound())\n"
        "seen.stop()\n",
    )
    assert said == ["0 poll None"]


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "fuse.sshfs"])
def test_a_file_system_that_others_write_to_is_scanned_without_a_watch(
    station: Stations, pico_run: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:  # R1.1
    monkeypatch.setattr(
        "daemon.watching.events.observers.file_system_type", lambda path: kind
    )  # no such server is at hand: its name must do
    here = station(watch=NO_RESCAN)
    here.wait_for_scans(0)
    assert here.watcher.backend_of(here.root) == "poll"
    assert watched_below(here.root) == []
    copy_of(pico_run / "checkpoint-4", here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(1)


def test_a_root_with_such_a_file_system_mounted_below_it_is_scanned_too(monkeypatch: pytest.MonkeyPatch) -> None:  # R1.1
    root = Path("/dev")
    if not any(path.is_mount() for path in root.iterdir() if path.is_dir()):
        pytest.skip("nothing is mounted below /dev")
    monkeypatch.setattr("daemon.watching.events.observers.file_system_type", lambda path: "devtmpfs" if path == root else "nfs4")
    made, _, said = observers(root, depth=1)
    made.stop()
    assert (made.backend_of(root), said) == ("poll", [])


def test_a_storm_of_events_is_one_look_at_everything(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        pytest.skip(f"this kernel queues {limit} events")
    run = tmp_path / "run"
    folders = [run / f"checkpoint-{number}" for number in range(4)]
    for folder in folders:
        folder.mkdir(parents=True)
    made, hints, _ = observers(tmp_path)
    try:
        with made._directories._inotify._lock:  # type: ignore[union-attr]  # the thread can't read while this is held
            for number in range(limit // 8 + 100):
                for folder in folders:
                    (folder / f"{number}").touch()
        end = time.monotonic() + 10
        while made.why_unsound() is None:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert "queue overflowed" in (made.why_unsound() or "")
        taken = [hints.get() for _ in range(hints.qsize())]
        assert [hint.kind for hint in taken].count(Kind.LOOK) == 1
        made.renew()
        assert made.why_unsound() is None
    finally:
        made.stop()
