"""Which checkpoint is which: moved runs, copies, content that changes while it is exported, content that comes back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.detection.helpers import change_weights, copy_of
from tests.selection.conftest import Desks

Add = Callable[..., Path]


def test_a_run_that_is_renamed_brings_no_second_job(desk: Desks, add: Add) -> None:  # R1.1
    here = desk()
    add(here, 4)
    here.look()
    (job,) = here.jobs()
    os.rename(here.root / "run", here.root / "renamed")
    here.look()
    assert [one.id for one in here.jobs()] == [job.id]
    (record,) = here.told("moved")
    assert (record["path"], record["before"]) == (str(here.root / "renamed/checkpoint-4"), [str(here.root / "run/checkpoint-4")])
    assert here.seen_as(here.root / "renamed" / "checkpoint-4") == "known"
    os.rename(here.root / "renamed", here.root / "again")
    here.look()
    assert len(here.jobs()) == 1
    assert here.told("lost") == here.told("The checkpoint") == []


def test_a_copy_whose_original_is_still_there_is_a_checkpoint_of_its_own(desk: Desks, add: Add) -> None:
    here = desk()
    original = add(here, 4)
    here.look()
    shutil.copytree(original.parent, here.root / "copy")
    here.look()
    assert sorted(job.checkpoint.run for job in here.jobs()) == ["copy", "run"]


def test_a_copy_of_a_run_that_was_moved_is_one_too(desk: Desks, add: Add) -> None:
    here = desk()
    add(here, 4)
    here.look()
    os.rename(here.root / "run", here.root / "renamed")
    here.look()
    shutil.copytree(here.root / "renamed", here.root / "copy")
    here.look()
    assert sorted(job.checkpoint.run for job in here.jobs()) == ["copy", "run"]


def test_a_training_that_begins_again_where_a_moved_run_was_is_taken_and_takes_nothing_away(desk: Desks, add: Add) -> None:
    here = desk()
    add(here, 4)
    here.look()
    os.rename(here.root / "run", here.root / "renamed")
    here.look()
    add(here, 4, weights=9.0)
    here.look()
    assert [(job.checkpoint.run, job.state) for job in here.jobs()] == [("run", "pending")] * 2
    assert len({job.checkpoint.digest for job in here.jobs()}) == 2
    assert len({str(job.target) for job in here.jobs()}) == 2, "two checkpoints never share a place"


def test_overwritten_while_it_waits_a_job_ends_as_superseded_and_its_pin_goes(desk: Desks, add: Add) -> None:  # R1.1
    here = desk()
    checkpoint = add(here, 4)
    here.look()
    (first,) = here.jobs()
    change_weights(checkpoint, 0.5)
    here.look()
    (second,) = here.jobs()
    ended = here.job(first.id)
    assert (ended.state, ended.reason) == ("superseded", f"superseded by {second.id}")
    here.clear()
    assert [path.name for path in here.pins.iterdir()] == [second.id]
    assert here.journal.jobs.untidy() == []
    assert {job.id: job.error for job in here.status().jobs} == {first.id: ended.reason, second.id: None}


def test_content_that_comes_back_after_its_job_was_superseded_is_exported_after_all(desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    saved = here.home / "saved"
    shutil.copytree(checkpoint, saved)
    here.look()
    (first,) = here.jobs()
    change_weights(checkpoint, 0.5)
    here.look()
    shutil.copy(saved / "adapter_model.safetensors", checkpoint)
    os.utime(checkpoint / "trainer_state.json")
    here.look(seconds=3.1)
    assert first.id not in [job.id for job in here.jobs()], "not before the runner has cleared the old one away"
    here.clear()
    here.look()
    assert [job.id for job in here.jobs()] == [first.id]
    assert here.job(first.id).state == "pending"


def test_a_damaged_rewrite_takes_no_sound_one_off_the_queue(desk: Desks, add: Add) -> None:  # R1.5
    here = desk(watch={"stale_seconds": 10.0})
    checkpoint = add(here, 4)
    here.look()
    (first,) = here.jobs()
    os.truncate(checkpoint / "adapter_model.safetensors", 5000)
    for _ in range(4):
        here.look(seconds=5.0)
    assert len(here.jobs()) == 2
    assert here.job(first.id).state == "pending"


def test_runs_of_one_name_below_two_roots_publish_apart(desk: Desks, add: Add, tmp_path: Path) -> None:
    other = tmp_path / "desk-0" / "other"
    here = desk(watch={"roots": (tmp_path / "desk-0" / "runs", other)})
    first = add(here, 4)
    here.look()
    shutil.copytree(first.parent, other / "run")
    here.look()
    mine, theirs = sorted(here.jobs(), key=lambda job: job.checkpoint.root != str(here.root))
    assert mine.checkpoint.run == theirs.checkpoint.run == "run"
    assert Path(mine.target).parent.name == "run"
    assert Path(theirs.target).parent.name.startswith("run~")
    copy_of(first, other / "run" / "checkpoint-8", step=8, weights=8.0)
    here.look()
    (later,) = [job for job in here.jobs() if job.checkpoint.step == 8]
    assert Path(later.target).parent == Path(theirs.target).parent
