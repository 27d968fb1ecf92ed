"""Checkpoints that are deleted before they could be pinned are said and remembered; no others are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.cli.views.status import print_status
from daemon.watching import tracker, undecided
from tests.detection.helpers import change_weights
from tests.selection.conftest import Desks

Add = Callable[..., Path]


def test_a_checkpoint_that_is_deleted_before_it_settles_is_reported_with_its_times(desk: Desks, add: Add, capsys: object) -> None:
    here = desk()
    checkpoint = add(here, 4)
    here.look(seconds=2.0)
    assert here.status().lost == ()
    shutil.rmtree(checkpoint)
    here.look(seconds=0.5)
    (record,) = here.told(f"The checkpoint {checkpoint} was deleted before it could be pinned: first seen 20")
    assert record["log_level"] == "warning"
    assert "lived 2.0 s; raise save_total_limit or lower watch.settle_seconds" in record["event"]
    (lost,) = here.status().lost
    assert (lost.path, lost.lived) == (str(checkpoint), 2.0)
    assert lost.first_seen in record["event"]
    assert lost.last_seen in record["event"]
    print_status(here.status())
    assert "lost" in capsys.readouterr().out  # type: ignore[attr-defined]
    here.look()
    assert len(here.status().lost) == 1


def test_one_that_was_taken_skipped_or_known_is_no_loss_not_even_while_it_is_deleted_file_by_file(desk: Desks, add: Add) -> None:
    here = desk(select={"policy": "every", "every": 4})
    checkpoints = [add(here, 4), add(here, 5)]
    here.look()
    assert here.steps() == [4]
    for checkpoint in checkpoints:
        (checkpoint / "trainer_state.json").unlink()
        here.look(seconds=0.5)
        shutil.rmtree(checkpoint)
    here.look()
    assert (here.status().lost, here.told("The checkpoint")) == ((), [])


def test_an_empty_directory_or_a_root_that_goes_is_no_loss(desk: Desks, add: Add) -> None:
    here = desk()
    (here.root / "run" / "checkpoint-9").mkdir(parents=True)
    here.look(seconds=0.5)
    (here.root / "run" / "checkpoint-9").rmdir()
    here.look()
    add(here, 4)
    here.look(seconds=0.5)
    os.rename(here.root, here.home / "elsewhere")
    here.look()
    assert here.status().lost == ()


def test_an_incomplete_one_that_goes_without_an_event_is_noticed_by_the_next_scan(desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    (checkpoint / "trainer_state.json").unlink()
    here.look()
    assert list(here.tracker.listing.incomplete) == [checkpoint]
    shutil.rmtree(checkpoint)
    here.look(seconds=0.5)
    assert here.tracker.listing.incomplete == {}
    assert [row.path for row in here.status().lost] == [str(checkpoint)]


@pytest.mark.parametrize("births", [True, False])
@pytest.mark.parametrize("seconds", [0.5, 2.0])
@pytest.mark.parametrize("name", ["run/incoming", "run/checkpoint-4.part", "other/incoming"])
def test_one_that_is_renamed_when_it_is_finished_is_no_loss(
    name: str, seconds: float, births: bool, desk: Desks, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    if not births:
        monkeypatch.setattr(tracker, "identity_of", lambda _: None)
        monkeypatch.setattr(undecided, "identity_of", lambda _: None)
    here = desk()
    checkpoint = add(here, 4)
    incoming = here.root / name
    incoming.parent.mkdir(exist_ok=True)
    checkpoint.rename(incoming)
    here.look(seconds=seconds)
    assert list(here.tracker.undecided.sighted) == [incoming]
    incoming.rename(checkpoint)
    here.look()
    assert (here.steps(), here.status().lost, here.told("The checkpoint")) == ([4], (), [])
    assert [job.checkpoint.path for job in here.jobs()] == [str(checkpoint)]


def test_one_that_grows_until_it_is_renamed_is_no_loss(desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    incoming, weights = checkpoint.with_name("incoming"), "adapter_model.safetensors"
    incoming.mkdir()
    (incoming / weights).write_bytes((checkpoint / weights).read_bytes()[:100])
    here.look(seconds=0.5)
    shutil.copytree(checkpoint, incoming, dirs_exist_ok=True)
    shutil.rmtree(checkpoint)
    here.tracker._forget(checkpoint)
    incoming.rename(checkpoint)
    here.look()
    assert (here.steps(), here.status().lost) == ([4], ())


def test_with_the_inodes_of_the_one_before_a_new_one_is_no_renaming(desk: Desks, add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    here = desk()
    for births in (True, False):
        if not births:
            monkeypatch.setattr(tracker, "identity_of", lambda _: None)
            monkeypatch.setattr(undecided, "identity_of", lambda _: None)
        checkpoint = add(here, 4 + births)
        here.look(seconds=1.0)
        shutil.rmtree(checkpoint)
        add(here, 10 + births)
        here.look(seconds=0.5)
    assert len(here.status().lost) == 2


def test_one_that_is_renamed_and_then_deleted_is_a_loss_of_the_new_name(desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    incoming = checkpoint.with_name("incoming")
    checkpoint.rename(incoming)
    here.look(seconds=2.0)
    incoming.rename(checkpoint)
    here.look(seconds=1.0)
    shutil.rmtree(checkpoint)
    here.look(seconds=0.5)
    (lost,) = here.status().lost
    assert (lost.path, lost.lived) == (str(checkpoint), 3.0)


def test_one_that_is_renamed_out_of_sight_is_a_loss(desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    here.look(seconds=1.0)
    checkpoint.rename(checkpoint.with_name(".trash"))
    here.look(seconds=0.5)
    assert [row.path for row in here.status().lost] == [str(checkpoint)]


def test_with_rotation_after_every_save_each_checkpoint_is_taken_or_reported(desk: Desks, add: Add) -> None:  # R1.1
    here = desk()
    slow = {4, 6}
    before = None
    for step in range(2, 9):
        if before is not None:
            shutil.rmtree(before)
        before = add(here, step)
        here.look(seconds=4.0 if step in slow or step == 8 else 1.0)
    assert here.steps() == [4, 6, 8]
    assert sorted(Path(row.path).name for row in here.status().lost) == [f"checkpoint-{step}" for step in (2, 3, 5, 7)]
    for job in here.jobs():
        assert (job.pin / "adapter_model.safetensors").is_file()


def test_a_rewrite_that_comes_before_the_first_content_settled_is_one_checkpoint(desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    here.look(seconds=1.0)
    change_weights(checkpoint, 0.5)
    here.look()
    assert (len(here.jobs()), here.status().lost) == (1, ())
