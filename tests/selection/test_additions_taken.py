"""Adapters of `[[merge.add]]` when a checkpoint is taken: written at that moment, missing, in pieces, named twice; and reloads of them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from daemon.checkpoints.inspection import inspect
from daemon.checkpoints.pinning import additions
from daemon.checkpoints.pinning.pins import identify
from daemon.config.settings import AddedAdapter, MergeSettings
from daemon.contract.jobs.messages import ADDITIONS
from daemon.operating.integrity.maintenance import open_journal
from daemon.system import episodes
from daemon.watching.taking.intake import Intake
from daemon.watching.tracker import Tracker
from tests.detection.helpers import change_weights, copy_of, plain_adapter
from tests.selection.conftest import Desk, Desks

Add = Callable[..., Path]


@dataclass
class Clock:
    """The time by which additions settle."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    for module in (additions, episodes):
        stand_in = SimpleNamespace(
            monotonic=one.monotonic, time=time.time, CLOCK_BOOTTIME=time.CLOCK_BOOTTIME, clock_gettime=lambda which: one.monotonic()
        )
        monkeypatch.setattr(module, "time", stand_in)
    return one


@pytest.fixture
def style(pico_checkpoint: Path, tmp_path: Path) -> Path:
    """An adapter of its own content that was written long ago."""
    folder = plain_adapter(pico_checkpoint, tmp_path / "style")
    change_weights(folder, 3.0, state=False)
    leave_alone(folder)
    return folder


def leave_alone(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        os.utime(path, (1.6e9, 1.6e9))


def adding(*paths: Path) -> dict[str, object]:
    return {"merge": {"add": [{"path": path, "weight": 0.5} for path in paths]}}


def reload(here: Desk, *paths: Path) -> None:
    """The daemon goes on with these adapters in `merge.add`."""
    merge = MergeSettings(add=tuple(AddedAdapter(path=path, weight=0.5) for path in paths))
    here.settings = here.settings.model_copy(update={"merge": merge})
    here.tracker = Tracker(here.settings.watch, Intake(here.settings, here.journal, here.runner.paths), taken=lambda: None)


def test_a_checkpoint_waits_for_an_adapter_that_is_being_saved_and_takes_it_whole(desk: Desks, add: Add, style: Path, clock: Clock) -> None:
    here = desk(**adding(style))
    weights = (style / "adapter_model.safetensors").read_bytes()
    (style / "adapter_model.safetensors").write_bytes(weights[:-50])
    add(here, 4)
    here.look()
    assert here.jobs() == []
    (record,) = here.told("Could not merge an adapter beside the checkpoint's own")
    assert "may still be written" in record["event"] and str(style) in record["event"]
    clock.now = 29.0
    (style / "adapter_model.safetensors").write_bytes(weights)  # whole, and its configuration may follow
    here.look()
    clock.now = 58.0
    here.look()
    assert here.jobs() == []
    clock.now = 59.5
    here.look()
    (job,) = here.jobs()
    assert job.checkpoint.additions[0].digest == identify(style) == identify(job.pin / ADDITIONS / "0")


def test_an_adapter_that_is_replaced_or_away_is_waited_for_and_one_that_stays_away_is_reported_in_the_end(
    desk: Desks, add: Add, style: Path, clock: Clock
) -> None:
    here = desk(**adding(style))
    os.rename(style, style.with_name("aside"))
    first = add(here, 4)
    here.look()
    assert here.jobs() == [], "it may be on its way"
    os.rename(style.with_name("aside"), style)
    leave_alone(style)
    here.look()
    assert here.steps() == [4] and here.seen_as(first) == "taken"
    shutil.rmtree(style)
    second = add(here, 8)
    here.look()
    clock.now = 23 * 3600.0
    here.look()
    assert here.steps() == [4], "it may come back"
    clock.now = 24 * 3600.0 + 1
    here.look()
    clock.now += 31.0
    here.look()
    assert here.seen_as(second) == "damaged", "it does not wait for ever"
    third = add(here, 12)
    here.look()
    assert here.seen_as(third) == "damaged", "that it is missing is known by now"


@pytest.mark.parametrize("stamp", [-1.0, 0.0, 4e9])
def test_an_adapter_of_any_time_is_taken(stamp: float, desk: Desks, add: Add, style: Path, clock: Clock) -> None:
    for path in style.iterdir():
        os.utime(path, (stamp, stamp))
    here = desk(**adding(style))
    add(here, 4)
    here.look()
    clock.now = 31.0
    here.look()
    assert here.steps() == [4]


def test_an_adapter_that_counts_twice_is_told(desk: Desks, add: Add, style: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    own = copy_of(pico_checkpoint, tmp_path / "own", weights=4)
    (own / "tokenizer_config.json").unlink(missing_ok=True)
    leave_alone(own)
    copy = shutil.copytree(style, tmp_path / "copy")
    here = desk(**adding(own, style, copy))
    add(here, 4)
    here.look()
    (job,) = here.jobs()
    told = [one for one in job.warnings if "the same weights as" in one]
    assert len(told) == 2
    assert f"The adapter own ({own}) has the same weights as the checkpoint itself" in told[0]
    assert f"The adapter copy ({copy}) has the same weights as style" in told[1]


def test_an_adapter_in_pieces_is_refused_in_words(desk: Desks, add: Add, pico_checkpoint: Path, tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint import FileSystemWriter, save

    pieces = tmp_path / "pieces"
    with pytest.warns(UserWarning, match=r"torch.distributed is"):
        save({"base_model.model.q_proj.lora_A.weight": torch.ones(3)}, storage_writer=FileSystemWriter(pieces), no_dist=True)
    shutil.copy(pico_checkpoint / "adapter_config.json", pieces)
    assert inspect(pieces).complete
    leave_alone(pieces)
    here = desk(**adding(pieces))
    checkpoint = add(here, 4)
    here.look()
    assert here.seen_as(checkpoint) == "damaged"
    (record,) = here.told("Could not merge an adapter")
    assert "sharded" in record["event"] and "pytorch-adapter" in record["event"]


def test_a_reload_changes_what_later_checkpoints_are_merged_with_and_no_job_that_is_open(
    desk: Desks, add: Add, style: Path, tmp_path: Path
) -> None:
    other = plain_adapter(style, tmp_path / "other")
    change_weights(other, 5.0, state=False)
    leave_alone(other)
    here = desk(**adding(style))
    first = add(here, 4)
    here.look()
    before = here.jobs()
    reload(here, style, other)
    here.look()
    assert here.jobs() == before
    add(here, 8)
    here.look()
    reload(here)
    add(here, 12)
    here.look()
    assert [[one.name for one in job.checkpoint.additions] for job in here.jobs()] == [["style"], ["style", "other"], []]
    os.utime(first / "trainer_state.json")
    here.look(seconds=60)
    assert [job.checkpoint.additions for job in here.jobs() if job.checkpoint.step == 4] == [()], "looked at again, it follows the new one"
    assert here.job(before[0].id).state == "superseded"


@pytest.mark.parametrize("whole", [True, False])
def test_a_journal_that_is_rebuilt_knows_what_a_job_is_merged_with(whole: bool, desk: Desks, add: Add, style: Path) -> None:
    here = desk(**adding(style))
    add(here, 4)
    here.look()
    (before,) = here.jobs()
    if not whole:
        shutil.rmtree(before.pin / ADDITIONS)
    here.journal.close()
    here.runner.paths.journal.write_bytes(b"garbage" * 999)
    here.journal = here.runner.journal = here.runner.parts.journal = open_journal(here.runner.paths)
    assert [job.checkpoint for job in here.jobs()] == ([before.checkpoint] if whole else [])
    reload(here, style)
    here.clear()
    here.look()
    (after,) = here.jobs()
    assert (after.id, after.checkpoint.identity) == (before.id, before.checkpoint.identity)
    assert identify(after.pin / ADDITIONS / "0") == identify(style), "a pin without it is made again"
