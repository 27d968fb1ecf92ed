"""Two checkpoints never share a place: what training ended with has its own, and whatever else would collide is told apart."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.operating.integrity.fsck import examine
from tests.cli.test_bad_input import export
from tests.detection.helpers import change_weights, copy_of, plain_adapter
from tests.selection.conftest import Desk, Desks

Add = Callable[..., Path]
FILES = ("adapter_config.json", "adapter_model.safetensors")


def end_training(here: Desk, checkpoint: Path, name: str = "", weights: float = 0.5) -> Path:
    """What trainers save when they end: an adapter without a trainer's state, in the run's own directory or in one below."""
    folder = checkpoint.parent / name
    folder.mkdir(exist_ok=True)
    for file in FILES:
        shutil.copy(checkpoint / file, folder)
    change_weights(folder, weights, state=False)
    return folder


def targets(here: Desk) -> dict[str, str]:
    """Checkpoint's path below the root → export's folder below the output."""
    return {os.path.relpath(job.checkpoint.path, here.root): os.path.relpath(job.target, here.home / "exports") for job in here.jobs()}


def test_the_final_adapter_in_the_runs_directory_has_a_place_of_its_own(desk: Desks, add: Add) -> None:  # R1.1 R6.1
    here = desk()
    last = add(here, 16)
    end_training(here, last)
    here.look(seconds=60)
    assert targets(here) == {"run/checkpoint-16": "run/step-16", "run": "run/final"}
    assert {(job.checkpoint.step, job.checkpoint.ending) for job in here.jobs()} == {(16, False), (16, True)}


def test_a_place_can_be_named_by_what_training_knew(desk: Desks, add: Add, tmp_path: Path) -> None:  # R5.2
    naming = "{model_name}/{run}/{step:04d}-epoch-{epoch}-loss-{metric}-{quantization}"
    here = desk(output={"directory": tmp_path / "desk-0" / "exports", "naming": naming}, export={"quantization": "int8"})
    add(here, 16, epoch=1.5, log_history=[{"step": 16, "loss": 2.5}, {"step": 16, "eval_loss": 1.23456}])
    add(here, 18, epoch=None, log_history=[])
    here.look(seconds=60)
    assert targets(here) == {
        "run/checkpoint-16": "pico/run/0016-epoch-1.5-loss-1.235-int8", "run/checkpoint-18": "pico/run/0018-epoch-none-loss-none-int8",
    }  # fmt: skip


def test_a_final_adapter_that_is_the_last_checkpoint_is_exported_once(desk: Desks, add: Add) -> None:
    here = desk()
    last = add(here, 16)
    here.look(seconds=60)
    final = last.parent / "final"
    shutil.copytree(last, final)
    (final / "trainer_state.json").unlink()
    here.look(seconds=60)
    assert targets(here) == {"run/checkpoint-16": "run/step-16"}
    assert here.seen_as(final) == "known"


@pytest.mark.parametrize("name", ["epoch=1-step=16", "step-16"])
def test_the_ending_of_a_run_without_checkpoint_n_comes_after_its_last_step(desk: Desks, add: Add, name: str) -> None:  # R6.1
    here = desk()
    last = plain_adapter(add(here, 16, "elsewhere"), here.root / "run" / name)
    end_training(here, last, "final")
    shutil.copytree(last, last.parent / "final_model")
    here.look(seconds=60)
    found = {job.checkpoint.path: job.checkpoint for job in here.jobs()}
    assert (found[str(last.parent / "final")].step, found[str(last.parent / "final")].ending) == (16, True)
    assert len([path for path in found if "/run/" in path]) == 2, "the same content is exported once"


def test_several_that_end_a_run_are_told_apart_by_their_content(desk: Desks, add: Add) -> None:
    here = desk()
    last = add(here, 16)
    for name, weights in (("final", 0.5), ("adapter", 0.25), ("final_model", 0.125)):
        end_training(here, last, name, weights)
        here.look(seconds=60)
    found = targets(here)
    digests = {os.path.relpath(job.checkpoint.path, here.root): job.checkpoint.digest[:8] for job in here.jobs()}
    assert found["run/final"] == "run/final"
    for name in ("adapter", "final_model"):
        assert found[f"run/{name}"] == f"run/final-{digests[f'run/{name}']}"
    assert len(here.told("the export's plain name is another checkpoint's")) == 2


def test_a_final_adapter_that_is_written_again_takes_over_its_place(desk: Desks, add: Add) -> None:
    here = desk()
    final = end_training(here, add(here, 16), "final")
    here.look(seconds=60)
    (first,) = [job for job in here.jobs() if job.checkpoint.ending]
    change_weights(final, 0.75, state=False)
    here.look(seconds=60)
    (second,) = [job for job in here.jobs() if job.checkpoint.ending]
    assert (here.job(first.id).state, here.job(second.id).state) == ("superseded", "pending")
    assert first.id != second.id and first.target == second.target == here.home / "exports" / "run" / "final"


@pytest.mark.parametrize(
    ("naming", "expected"),
    [("{run}-{step}", "run-final"), ("{run}/step_{step:06d}", "run/final"), ("{date}/{run}/{step}", "{date}/run/final")],
)
def test_every_naming_pattern_tells_the_ending_from_the_steps(desk: Desks, add: Add, naming: str, expected: str) -> None:
    here = desk(output={"directory": desk_exports(desk), "naming": naming})
    end_training(here, add(here, 16), "final")
    here.look(seconds=60)
    (ended,) = [job for job in here.jobs() if job.checkpoint.ending]
    found = os.path.relpath(ended.target, here.settings.output.directory)
    assert found == expected.replace("{date}", found.partition("/")[0])


def desk_exports(desk: Desks) -> Path:
    """A folder for exports beside a desk of its own."""
    return desk().home / "exports-of-others"


def test_two_directories_of_one_step_publish_apart(desk: Desks, add: Add) -> None:
    here = desk()
    first = add(here, 3)
    here.look(seconds=60)
    other = copy_of(first, first.parent / "step-3", step=3, weights=0.5)
    here.look(seconds=60)
    found = targets(here)
    assert found["run/checkpoint-3"] == "run/step-3" and found["run/step-3"].startswith("run/step-3-"), other


def test_what_another_journal_published_is_not_replaced(desk: Desks, add: Add) -> None:
    here = desk()
    checkpoint = add(here, 4)
    published = here.home / "exports" / "run" / "step-4"
    published.mkdir(parents=True)
    (published / "MANIFEST.json").write_text(
        json.dumps({"manifest_version": 1, "checkpoint": "/elsewhere/run/checkpoint-4", "identity": "x"})
    )
    here.look()
    (job,) = here.jobs()
    assert Path(job.target).name == f"step-4-{job.checkpoint.digest[:8]}"
    (record,) = here.told("the export's plain name is another checkpoint's")
    assert (record["by"], record["path"]) == ("/elsewhere/run/checkpoint-4", str(checkpoint))


@pytest.mark.slow
def test_an_export_by_hand_has_the_place_and_the_name_that_the_daemon_gives(desk: Desks, add: Add) -> None:  # R1.1
    """Of a base that is nowhere, so that it ends at once; what it reports lies where the export would."""
    here = desk()
    run = "saves/qwen/lora/sft"
    last = add(here, 16, run)
    end_training(here, last)
    for folder in (last, last.parent):
        config = json.loads((folder / "adapter_config.json").read_bytes())
        (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "acme/nowhere"}))
    here.look(seconds=60)
    assert targets(here) == {f"{run}/checkpoint-16": f"{run}/step-16", run: f"{run}/final"}
    for job in here.jobs():
        answer = export(here.home, Path(job.checkpoint.path), "--json", CKPTD_WATCH__ROOTS=str(here.root))
        assert answer.returncode == 1
        value = json.loads(answer.stdout)
        assert (value["run"], value["step"], value["ending"]) == (job.checkpoint.run, 16, job.checkpoint.ending)
        assert value["target"] == str(here.home / "out" / os.path.relpath(job.target, here.home / "exports")) + ".failed"


def test_fsck_finds_two_checkpoints_with_one_place(desk: Desks, add: Add) -> None:
    here = desk()
    end_training(here, add(here, 16))
    here.look(seconds=60)
    with sqlite3.connect(here.home / "state" / "journal.sqlite3") as connection:
        connection.execute("UPDATE job SET target = (SELECT min(target) FROM job)")
    connection.close()
    codes = [finding.code for finding in examine(here.home / "state", here.home / "exports", quiescent=True).findings]
    assert "shared-target" in codes
