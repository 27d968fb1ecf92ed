"""Where pins lie, what they cost, and what happens when a trainer writes into a file that a pin shares with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.checkpoints.pinning import pins as pin_module
from daemon.checkpoints.pinning.pins import identify
from daemon.config.loading import load
from daemon.contract.faults.errors import UsageError
from daemon.system.box import free_disk
from tests.detection.helpers import set_state
from tests.selection.conftest import Desks

Add = Callable[..., Path]
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(autouse=True)
def no_reflinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ext4: what is tested here is what happens without them."""
    monkeypatch.setattr(pin_module, "clone", lambda source, target: False)


def write_into(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.seek(-64, os.SEEK_END)
        stream.write(b"x" * 64)


def test_pins_lie_where_the_configuration_says_and_orphans_there_are_collected(desk: Desks, add: Add, tmp_path: Path) -> None:
    here = desk(pin={"directory": tmp_path / "pins"})
    add(here, 4)
    here.look()
    (job,) = here.jobs()
    assert job.pin.parent == here.pins != here.home / "state" / "pins"
    assert here.pins.parent == tmp_path / "pins"
    (here.pins / "orphan").mkdir()
    here.runner.recover()
    assert [path.name for path in here.pins.iterdir()] == [job.id]


def test_pins_inside_a_watched_root_are_refused(tmp_path: Path) -> None:  # R5.4
    file = tmp_path / "config.toml"
    file.write_text(f'[watch]\nroots = ["{tmp_path}/runs"]\n[pin]\ndirectory = "{tmp_path}/runs/pins"\n')
    with pytest.raises(UsageError, match=r"pin\.directory: .* lies inside the watched root"):
        load(file)


def test_small_files_are_copied_and_a_later_rewrite_does_not_reach_the_job(desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    here.look()
    (job,) = here.jobs()
    write_into(checkpoint / WEIGHTS)
    assert identify(job.pin) == job.checkpoint.digest
    assert not here.runner.parts.outcomes.is_rewritten(job)


def test_files_above_the_limit_cost_no_space(desk: Desks, add: Add) -> None:  # R6.2
    here = desk(pin={"copy_limit": 10_000})
    checkpoint = add(here, 4)
    here.look()
    (job,) = here.jobs()
    assert (job.pin / WEIGHTS).stat().st_ino == (checkpoint / WEIGHTS).stat().st_ino
    assert (job.pin / "adapter_config.json").stat().st_nlink == 1


def test_a_rewrite_of_a_linked_file_supersedes_the_job_and_the_new_content_is_taken(desk: Desks, add: Add) -> None:
    here = desk(pin={"copy_limit": 10_000})
    checkpoint = add(here, 4)
    here.look()
    (job,) = here.jobs()
    write_into(checkpoint / WEIGHTS)
    here.runner.tick()
    ended = here.job(job.id)
    assert ended.state == "superseded"
    assert ended.reason == f"the trainer rewrote {WEIGHTS} in place while it was exported; the new content is exported as a new checkpoint"
    assert here.runner.children.running == {}
    here.look()
    (new,) = here.jobs()
    assert new.checkpoint.digest == identify(new.pin) != job.checkpoint.digest
    here.clear()
    assert [path.name for path in here.pins.iterdir()] == [new.id]


def test_a_file_that_was_only_touched_is_exported_after_all(desk: Desks, add: Add) -> None:
    here = desk(pin={"copy_limit": 10_000})
    checkpoint = add(here, 4)
    here.look()
    (job,) = here.jobs()
    os.utime(checkpoint / WEIGHTS)
    here.runner.tick()
    assert here.job(job.id).state == "superseded"
    here.clear()
    here.look()
    assert [one.id for one in here.jobs()] == [job.id]
    assert not here.runner.parts.outcomes.is_rewritten(here.job(job.id))


def test_rotation_of_linked_files_is_no_rewrite(desk: Desks, add: Add) -> None:
    here = desk(pin={"copy_limit": 10_000})
    checkpoint = add(here, 4)
    here.look()
    (job,) = here.jobs()
    (checkpoint / WEIGHTS).unlink()
    assert not here.runner.parts.outcomes.is_rewritten(job)
    assert identify(job.pin) == job.checkpoint.digest


def test_a_pin_that_would_take_the_reserve_is_not_made_is_said_once_and_comes_when_there_is_room(
    desk: Desks, add: Add, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # R6.2
    here = desk(limits={"disk_reserve": free_disk(tmp_path) * 2})
    checkpoint = add(here, 4)
    set_state(checkpoint, best_metric=1.0)
    for _ in range(3):
        here.look()
    assert here.jobs() == []
    assert list(here.pins.iterdir()) == []
    (record,) = here.told("Could not pin the checkpoint")
    assert "limits.disk_reserve reserves" in record["event"]
    assert "set pin.directory to a larger disk" in record["event"]
    monkeypatch.setattr(pin_module, "free_disk", lambda folder: free_disk(tmp_path) * 3)
    here.look()
    assert here.steps() == [4]
