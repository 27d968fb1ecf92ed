"""Directories that get another name, are links, or hold links; contents that come again under the same name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.checkpoints.pinning.pins import identify
from daemon.operating.asked.retrying import retry_job
from daemon.operating.monitoring.explain import CheckpointExplanation, explain
from tests.detection.helpers import change_weights, copy_of, plain_adapter
from tests.selection.conftest import Desks

Add = Callable[..., Path]


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)


def test_two_runs_that_swap_their_names_bring_no_second_job(desk: Desks, add: Add) -> None:
    here = desk()
    for run, weights in (("a", 1.0), ("b", 2.0)):
        for step in (4, 8):
            add(here, step, run, weights=weights + step)
    here.look()
    before = {job.id for job in here.jobs()}
    for _ in range(2):
        swap(here.root / "a", here.root / "b")
        here.look()
        here.look()
        assert {job.id for job in here.jobs()} == before
        assert here.journal.jobs.untidy() == []


def test_three_runs_whose_names_go_round_bring_no_second_job(desk: Desks, add: Add) -> None:
    here = desk()
    for run, weights in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        add(here, 4, run, weights=weights)
    here.look()
    before = {job.id for job in here.jobs()}
    os.rename(here.root / "a", here.root / "aside")
    os.rename(here.root / "b", here.root / "a")
    os.rename(here.root / "c", here.root / "b")
    os.rename(here.root / "aside", here.root / "c")
    here.look()
    assert {job.id for job in here.jobs()} == before


def test_a_checkpoint_that_is_deleted_and_written_again_as_it_was_brings_no_second_job(desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    here.look()
    (job,) = here.jobs()
    shutil.copytree(checkpoint, here.home / "saved")
    shutil.rmtree(checkpoint)
    here.look()
    shutil.copytree(here.home / "saved", checkpoint, copy_function=shutil.copyfile)
    here.look(seconds=60)
    assert [one.id for one in here.jobs()] == [job.id] and here.seen_as(checkpoint) == "known"


def test_an_ending_that_is_saved_again_takes_the_place_of_the_first(desk: Desks, pico_checkpoint: Path) -> None:
    here = desk()
    final = plain_adapter(pico_checkpoint, here.root / "run" / "final")
    here.look(seconds=60)
    (first,) = here.jobs()
    change_weights(final, 0.5, state=False)
    here.look(seconds=60)
    (second,) = here.jobs()
    assert here.job(first.id).state == "superseded" and second.target == first.target
    assert identify(second.pin) == identify(final)


def test_hard_links_between_checkpoints_are_checkpoints_like_others(desk: Desks, add: Add) -> None:
    here = desk()
    first = add(here, 4)
    second = copy_of(first, here.root / "run" / "checkpoint-8", step=8)
    for name in ("adapter_model.safetensors", "tokenizer.json"):
        (second / name).unlink()
        os.link(first / name, second / name)
    os.link(second / "tokenizer.json", second / "copy.json")
    here.look()
    assert here.steps() == [4, 8]
    pins = [path for job in here.jobs() for path in job.pin.iterdir() if not path.name.startswith(".")]
    assert all(path.stat().st_nlink == 1 for path in pins)


@pytest.mark.parametrize("stamp", [-5e8, 0.0, 4e9])
def test_files_of_any_time_are_taken(stamp: float, desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    for path in checkpoint.iterdir():
        os.utime(path, (stamp, stamp))
    here.look()
    assert here.steps() == [4]


def test_a_checkpoint_of_a_run_that_was_renamed_can_be_retried(desk: Desks, add: Add) -> None:
    here = desk()
    add(here, 4)
    here.look()
    (job,) = here.jobs()
    here.journal.controls.cancel(job.id, "by hand")
    here.clear()
    os.rename(here.root / "run", here.root / "renamed")
    here.look()
    retry_job(here.settings, job.id)
    (again,) = here.jobs()
    assert again.id == job.id and identify(again.pin) == job.checkpoint.digest


def test_a_link_in_the_place_of_a_checkpoint_is_told_where_nothing_else_finds_it(desk: Desks, add: Add, tmp_path: Path) -> None:
    here = desk(watch={"roots": (tmp_path / "desk-0/runs", tmp_path / "desk-0/other")})
    (here.home / "other").mkdir()
    checkpoint = add(here, 4)
    elsewhere = copy_of(checkpoint, here.home / "fast" / "checkpoint-8", step=8)
    watched = copy_of(checkpoint, here.home / "other" / "run" / "checkpoint-12", step=12)
    for name, target in (("checkpoint-8", elsewhere), ("checkpoint-12", watched), ("checkpoint-16", checkpoint)):
        (checkpoint.parent / name).symlink_to(target)
    (checkpoint.parent / "checkpoint-20").symlink_to("nowhere")
    (checkpoint.parent / "checkpoint-24").symlink_to(checkpoint / "trainer_state.json")
    here.look()
    link = checkpoint.parent / "checkpoint-8"
    assert here.steps() == [4, 12]
    assert list(here.tracker.listing.passed_over) == [link]
    explained = explain(here.settings, link)
    assert isinstance(explained, CheckpointExplanation) and explained.unwatched == here.tracker.listing.passed_over[link]
    assert "is a link, which scans don't follow; put its target into watch.roots" in explained.unwatched
    assert len(here.told("Seen, not watched")) == 1
    link.unlink()
    elsewhere.rename(link)
    here.look()
    assert here.steps() == [4, 8, 12] and here.tracker.listing.passed_over == {}
