"""From a trainer's files to the journal: real inotify, real scans, a real journal; nothing stands in for anything."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from daemon.checkpoints.files import export_files
from daemon.checkpoints.inspection import inspect
from daemon.checkpoints.pinning.pins import ACCESS, LEFT_OUT, identify
from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.watching.taking.intake import Intake
from daemon.watching.watcher import Watcher
from tests.detection.conftest import Stations
from tests.detection.helpers import WRITTEN_LAST, change_weights, copy_of, in_trainers_order, set_state


def test_a_checkpoint_that_is_written_slowly_is_taken_once_and_never_before_its_last_file(
    station: Stations, pico_checkpoint: Path
) -> None:  # R1.1, R1.5
    here = station()
    target = here.root / "run" / "checkpoint-4"
    target.mkdir(parents=True)
    for source in in_trainers_order(pico_checkpoint):
        content = source.read_bytes()
        pause = 0.5 if source.name in (WRITTEN_LAST, "adapter_model.safetensors") else 0.02  # well above the settle time
        time.sleep(pause)
        with open(target / source.name, "wb", buffering=0) as stream:
            assert here.jobs() == []
            stream.write(content[: len(content) // 2])
            time.sleep(pause)
            assert here.jobs() == []
            stream.write(content[len(content) // 2 :])
    (job,) = here.wait_for_jobs(1)
    assert (job.checkpoint.run, job.checkpoint.step, job.checkpoint.path) == ("run", 4, str(target))
    assert job.checkpoint.digest == identify(job.pin) == identify(target)
    assert sorted(path.name for path in job.pin.iterdir() if path.name not in (ACCESS, LEFT_OUT)) == export_files(target)
    here.wait_for_scans()
    assert (len(here.jobs()), here.taken) == (1, 1)


def test_events_alone_bring_it_in_without_waiting_for_a_rescan(station: Stations, pico_checkpoint: Path) -> None:  # R1.1
    here = station(watch={"rescan_seconds": 3600.0})
    (here.root / "run").mkdir()
    time.sleep(0.5)  # the scan that follows a new directory is over, and no other will come
    copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(1)


def test_scans_alone_bring_it_in_where_there_are_no_events(station: Stations, pico_checkpoint: Path) -> None:  # R1.1
    here = station(watch={"backend": "poll"})
    assert here.watcher.backend_of(here.root) == "poll"
    copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(1)


def test_a_tree_that_is_moved_in_is_taken_at_once(station: Stations, pico_checkpoint: Path, tmp_path: Path) -> None:  # R1.1
    here = station(watch={"rescan_seconds": 3600.0})
    here.wait_for_scans(0)
    copy_of(pico_checkpoint, tmp_path / "elsewhere" / "run" / "checkpoint-4")
    os.rename(tmp_path / "elsewhere", here.root / "team")
    (job,) = here.wait_for_jobs(1)
    assert job.checkpoint.run == "team/run"


def test_what_was_there_before_the_start_is_taken(station: Stations, pico_run: Path, tmp_path: Path) -> None:  # R1.1
    shutil.copytree(pico_run, tmp_path / "runs" / "run")
    here = station()
    here.wait_for_jobs(2)
    assert here.steps() == [2, 4]


def test_a_root_that_is_made_later_is_taken_up(station: Stations, pico_checkpoint: Path) -> None:  # R1.1
    here = station(root=False)
    here.wait_for_scans(1)
    copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(1)


def test_a_root_that_is_deleted_and_made_again_is_watched_again(station: Stations, pico_run: Path) -> None:  # R1.1
    here = station()
    copy_of(pico_run / "checkpoint-2", here.root / "run" / "checkpoint-2")
    here.wait_for_jobs(1)
    shutil.rmtree(here.root)
    here.root.mkdir()
    here.wait_for_scans()
    copy_of(pico_run / "checkpoint-4", here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(2)
    assert here.steps() == [2, 4]


def test_rotation_right_after_the_pin_takes_nothing_away(station: Stations, pico_checkpoint: Path) -> None:  # R1.1
    here = station()
    copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4")
    (job,) = here.wait_for_jobs(1)
    shutil.rmtree(here.root / "run" / "checkpoint-4")
    here.wait_for_scans()
    assert identify(job.pin) == job.checkpoint.digest
    assert inspect(job.pin).complete
    assert len(here.jobs()) == 1


def test_the_same_directory_with_other_content_is_another_job(station: Stations, pico_checkpoint: Path) -> None:  # R1.1
    here = station()
    target = copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4")
    (first,) = here.wait_for_jobs(1)
    change_weights(target, 0.25)
    here.wait(lambda: here.jobs() and here.jobs()[0].id != first.id, "the job of the new content, alone")
    (second,) = here.jobs()
    assert second.checkpoint.path == first.checkpoint.path
    assert second.checkpoint.identity != first.checkpoint.identity
    assert identify(second.pin) == second.checkpoint.digest


def test_the_same_content_written_again_is_no_other_job(station: Stations, pico_checkpoint: Path) -> None:
    here = station()
    target = copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4")
    here.wait_for_jobs(1)
    before = here.journal.sightings.fingerprint(str(target))
    shutil.rmtree(target)
    copy_of(pico_checkpoint, here.home / "again")
    os.utime(here.home / "again" / "adapter_model.safetensors")
    os.utime(here.home / "again" / WRITTEN_LAST)
    os.rename(here.home / "again", target)
    here.wait(lambda: here.journal.sightings.fingerprint(str(target)) != before, "the new files were decided upon")
    assert len(here.jobs()) == 1
    assert sorted(path.name for path in (here.home / "state" / "pins").iterdir()) == [here.jobs()[0].id]


def test_a_restart_does_not_take_it_again_but_takes_what_came_meanwhile(station: Stations, pico_run: Path) -> None:  # R1.1
    here = station()
    copy_of(pico_run / "checkpoint-2", here.root / "run" / "checkpoint-2")
    (first,) = here.wait_for_jobs(1)
    here.stop()
    copy_of(pico_run / "checkpoint-4", here.root / "run" / "checkpoint-4")
    here.start()
    here.wait_for_jobs(2)
    here.wait_for_scans()
    assert here.steps() == [2, 4]
    assert here.taken == 2
    assert first.id in [job.id for job in here.jobs()]


def test_nothing_is_ever_written_into_the_root(station: Stations, pico_checkpoint: Path) -> None:
    here = station()
    target = copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4")
    before = {path: path.stat().st_mtime_ns for path in (here.root, *here.root.rglob("*"))}
    here.wait_for_jobs(1)
    here.wait_for_scans()
    assert {path: path.stat().st_mtime_ns for path in (here.root, *here.root.rglob("*"))} == before
    assert target.is_dir()


def test_the_policy_every_takes_the_steps_that_its_number_divides(station: Stations, pico_checkpoint: Path) -> None:  # R1.1
    here = station(select={"policy": "every", "every": 4})
    for step in (2, 4, 6, 8):
        copy_of(pico_checkpoint, here.root / "run" / f"checkpoint-{step}", step=step, weights=step)
    here.wait_for_jobs(2)
    here.wait_for_scans()
    assert here.steps() == [4, 8]


def test_the_policy_best_takes_what_the_trainer_calls_its_best(station: Stations, pico_run: Path) -> None:  # R1.1
    here = station(select={"policy": "best"})
    for step in (2, 4):
        target = copy_of(pico_run / f"checkpoint-{step}", here.home / "made" / f"checkpoint-{step}")
        set_state(target, best_model_checkpoint="/where/it/was/trained/run/checkpoint-4", best_metric=0.5)
    os.rename(here.home / "made", here.root / "run")
    here.wait_for_jobs(1)
    here.wait_for_scans()
    assert here.steps() == [4]


def test_the_policy_latest_lets_a_newer_one_replace_those_that_wait(station: Stations, pico_checkpoint: Path) -> None:  # R1.1
    here = station(select={"policy": "latest"})
    copy_of(pico_checkpoint, here.root / "run" / "checkpoint-8", step=8, weights=8)
    copy_of(pico_checkpoint, here.root / "other" / "checkpoint-2", step=2, weights=2)
    here.wait_for_jobs(2)
    copy_of(pico_checkpoint, here.root / "run" / "checkpoint-10", step=10, weights=10)
    here.wait(lambda: here.steps() == [2, 10], "the newer one replaces the older one of its run alone")
    assert [job.checkpoint.step for job in here.journal.jobs.untidy()] == [8], "the runner is to clear the replaced one away"


def test_the_policy_latest_takes_only_the_newest_of_those_that_a_start_finds(
    station: Stations, pico_checkpoint: Path, tmp_path: Path
) -> None:  # R1.1
    for step in (8, 9, 10, 100):
        copy_of(pico_checkpoint, tmp_path / "runs" / "run" / f"checkpoint-{step}", step=step, weights=step)
    here = station(select={"policy": "latest"})
    here.wait_for_jobs(1)
    here.wait_for_scans()
    assert here.steps() == [100]


def test_a_damaged_checkpoint_that_claims_to_be_done_becomes_a_job_that_says_why(station: Stations, pico_checkpoint: Path) -> None:  # R1.5
    here = station(watch={"stale_seconds": 0.6})
    target = here.root / "run" / "checkpoint-4"
    copy_of(pico_checkpoint, here.home / "made")
    os.truncate(here.home / "made" / "adapter_model.safetensors", 5000)
    shutil.copytree(here.home / "made", target)
    (job,) = here.wait_for_jobs(1)
    merge = here.journal.stages.of(job.id)["merge"]
    assert merge.state == "failed"
    assert merge.fault is not None
    said = merge.fault.sentence()
    assert said.startswith(f"Could not read the checkpoint ({target}): adapter_model.safetensors: the file has 5,000 bytes")
    assert "Fix: save it again" in said
    shutil.copy(pico_checkpoint / "adapter_model.safetensors", target)
    os.utime(target / WRITTEN_LAST)
    here.wait(lambda: here.jobs() and here.jobs()[0].id != job.id, "the job of the whole checkpoint, alone")
    (whole,) = here.jobs()
    assert here.journal.stages.of(whole.id)["merge"].state == "waiting"


def test_a_checkpoint_that_is_only_unfinished_becomes_no_job_and_is_shown_as_incomplete(
    station: Stations, pico_checkpoint: Path
) -> None:  # R1.5, R6.1
    here = station(watch={"stale_seconds": 0.6})
    target = here.root / "run" / "checkpoint-4"
    shutil.copytree(pico_checkpoint, target, ignore=shutil.ignore_patterns(WRITTEN_LAST))
    here.wait(
        lambda: target in here.watcher.tracker.listing.incomplete and here.watcher.tracker.listing.incomplete[target].reported,
        "it is reported",
    )
    assert here.jobs() == []
    assert here.watcher.tracker.listing.incomplete[target].missing == (f"{WRITTEN_LAST}, which the trainer writes last, is not there yet",)
    shutil.copy(pico_checkpoint / WRITTEN_LAST, target)
    here.wait_for_jobs(1)
    # The journal has the job an instant before the list loses the directory.
    here.wait(lambda: not here.watcher.tracker.listing.incomplete, "it is no longer shown as incomplete")


def test_events_find_no_checkpoint_that_a_scan_would_not_find(station: Stations, pico_checkpoint: Path) -> None:
    here = station(watch={"depth": 2})
    copy_of(pico_checkpoint, here.home / "elsewhere" / "checkpoint-4")
    (here.root / "linked").mkdir()
    (here.root / "linked" / "checkpoint-4").symlink_to(here.home / "elsewhere" / "checkpoint-4")
    copy_of(pico_checkpoint, here.root / "too" / "deep" / "checkpoint-4", weights=3)
    copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4", weights=1)
    here.wait_for_jobs(1)
    here.wait_for_scans()
    assert [job.checkpoint.run for job in here.jobs()] == ["run"]


def test_one_directory_that_cannot_be_understood_does_not_keep_others_back(station: Stations, pico_checkpoint: Path) -> None:  # R1.5
    here = station()
    odd = copy_of(pico_checkpoint, here.home / "made" / "checkpoint-1", step=1)
    (odd / "adapter_config.json").write_text("[" * 100_000)
    os.rename(here.home / "made", here.root / "a")
    copy_of(pico_checkpoint, here.root / "b" / "checkpoint-4")
    here.wait_for_jobs(1)
    here.wait_for_scans()
    assert [job.checkpoint.run for job in here.jobs()] == ["b"]


def test_a_watcher_with_nothing_to_do_uses_no_processor_time(station: Stations, pico_run: Path) -> None:
    here = station(watch={"rescan_seconds": 30.0})
    shutil.copytree(pico_run, here.root / "run")
    here.wait_for_jobs(2)
    time.sleep(0.5)
    before = time.process_time()
    time.sleep(2.0)
    assert time.process_time() - before < 0.2


def test_a_watcher_whose_first_scan_is_still_to_come_has_not_missed_one(tmp_path: Path) -> None:
    """Else the daemon calls itself unwell, and gives systemd no sign of life, until all roots were walked for the first time."""
    settings = Settings(watch={"roots": (tmp_path,)}, output={"directory": tmp_path / "o"}, state={"directory": tmp_path / "s"})
    paths = prepare(settings.state_directory, settings.output.directory)
    journal = Journal(paths.journal)
    try:
        assert time.monotonic() - Watcher(settings, Intake(settings, journal, paths), taken=lambda: None).last_scan < 30
    finally:
        journal.close()
