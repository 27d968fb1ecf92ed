"""What the tracker makes of layouts that have no last file or are refused, by a clock of the test's own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from structlog.testing import capture_logs

from daemon.checkpoints.files import export_files
from daemon.checkpoints.layouts import PATIENCE_SECONDS
from tests.detection.bench import Bench
from tests.detection.helpers import WRITTEN_LAST, change_weights, copy_of, plain_adapter


def test_a_plain_adapter_is_taken_after_longer_quiet_and_a_change_begins_it_anew(bench: Bench, pico_checkpoint: Path) -> None:  # R1.1 R1.5
    checkpoint = plain_adapter(pico_checkpoint, bench.root / "run" / "checkpoint-7")
    bench.pass_time(PATIENCE_SECONDS)
    assert bench.jobs() == []
    (checkpoint / "special_tokens_map.json").write_text("{}")
    bench.pass_time(PATIENCE_SECONDS)
    assert bench.jobs() == []
    bench.pass_time(2.0 + 5.0 + 0.2)
    (job,) = bench.jobs()
    assert (job.checkpoint.step, job.checkpoint.layout) == (7, "adapter")
    assert "special_tokens_map.json" in export_files(job.pin)


def test_its_patience_ends_by_itself_without_another_hint(bench: Bench, pico_checkpoint: Path) -> None:
    checkpoint = plain_adapter(pico_checkpoint, bench.root / "run" / "final")
    assert bench.tracker.hint(f"{checkpoint}/adapter_model.safetensors", 0.0)
    bench.pass_time(0.1)
    bench.pass_time(PATIENCE_SECONDS + 3.0, rescan=1000.0)
    assert [job.checkpoint.run for job in bench.jobs()] == ["run"]


def test_trainers_checkpoint_asks_for_no_patience(bench: Bench, pico_checkpoint: Path) -> None:  # R1.1
    copy_of(pico_checkpoint, bench.root / "run" / "checkpoint-4")
    bench.pass_time(2.2)
    assert len(bench.jobs()) == 1


def test_the_adapter_at_the_end_of_a_run_with_the_last_checkpoints_content_is_exported_once(bench: Bench, pico_run: Path) -> None:  # R1.1
    run = bench.root / "run"
    shutil.copytree(pico_run, run)
    plain_adapter(pico_run / "checkpoint-4", run / "final")
    for name in export_files(run / "final"):
        shutil.copy(run / "final" / name, run / name)
    bench.pass_time(PATIENCE_SECONDS + 10)
    assert sorted((job.checkpoint.run, job.checkpoint.step) for job in bench.jobs()) == [("run", 2), ("run", 4)]
    assert bench.journal.sightings.fingerprint(str(run)) is not None
    assert bench.journal.sightings.fingerprint(str(run / "final")) is not None


def test_a_run_whose_adapter_s_configuration_is_there_from_the_start_is_not_incomplete_while_its_checkpoints_come(
    bench: Bench, pico_run: Path
) -> None:
    run = bench.root / "run"
    shutil.copytree(pico_run / "checkpoint-2", run / "checkpoint-2")
    shutil.copy(pico_run / "checkpoint-2" / "adapter_config.json", run)  # as axolotl does
    with capture_logs() as logs:
        bench.pass_time(2 * 24 * 3600.0, rescan=600.0)
        assert run not in bench.tracker.listing.incomplete
        assert [row for row in logs if row["log_level"] == "warning"] == []
        shutil.copy(pico_run / "checkpoint-4" / "adapter_model.safetensors", run)
        bench.pass_time(PATIENCE_SECONDS + 10)
    assert sorted(job.checkpoint.path for job in bench.jobs()) == [str(run), str(run / "checkpoint-2")]


def test_a_run_that_is_removed_before_its_adapter_came_is_no_lost_checkpoint(bench: Bench, pico_run: Path) -> None:
    run = bench.root / "run"
    shutil.copytree(pico_run / "checkpoint-2", run / "checkpoint-2")
    shutil.copy(pico_run / "checkpoint-2" / "adapter_config.json", run)
    bench.pass_time(20.0)
    shutil.rmtree(run)
    with capture_logs() as logs:
        bench.pass_time(20.0)
    assert [row for row in logs if row["log_level"] == "warning"] == []


def test_an_adapter_s_configuration_without_weights_and_without_checkpoints_is_incomplete_for_long(bench: Bench, pico_run: Path) -> None:
    run = bench.root / "copied"
    run.mkdir()
    shutil.copy(pico_run / "checkpoint-2" / "adapter_config.json", run)
    with capture_logs() as logs:
        bench.pass_time(2 * 24 * 3600.0, rescan=600.0)
    assert ["incomplete for long" in row["event"] for row in logs if row["log_level"] == "warning"] == [True]


def test_a_refused_layout_is_said_once_and_remembered_as_skipped(bench: Bench) -> None:  # R1.5 R6.1
    folder = bench.root / "run" / "step-000100"
    folder.mkdir(parents=True)
    (folder / "lit_model.pth.lora").write_bytes(b"PK")
    with capture_logs() as logs:
        bench.pass_time(60)
    assert [(line["log_level"], line["code"]) for line in logs] == [("warning", "litgpt-checkpoint")]
    assert f"litgpt merge_lora {folder}" in logs[0]["event"]
    assert bench.jobs() == []
    assert bench.tracker.listing.incomplete == {}
    assert bench.journal.sightings.fingerprint(str(folder)) is not None


def test_new_weights_under_the_old_state_wait_for_the_state_that_trainer_writes_last(bench: Bench, pico_checkpoint: Path) -> None:  # R1.5
    checkpoint = copy_of(pico_checkpoint, bench.root / "run" / "checkpoint-4")
    os.utime(checkpoint / WRITTEN_LAST)
    bench.pass_time(5.0)
    (first,) = bench.jobs()
    change_weights(checkpoint, 0.5, state=False)
    bench.pass_time(PATIENCE_SECONDS - 5.0)
    assert [job.id for job in bench.jobs()] == [first.id], "the resumed run is still writing this step again"
    change_weights(checkpoint, 0.25)
    bench.pass_time(10.0)
    (second,) = bench.jobs()
    assert second.id != first.id
    assert second.pin.joinpath("adapter_model.safetensors").read_bytes() == (checkpoint / "adapter_model.safetensors").read_bytes()


def test_half_a_checkpoint_beside_a_trainers_own_is_no_plain_adapter(bench: Bench, pico_checkpoint: Path) -> None:  # R1.5
    copy_of(pico_checkpoint, bench.root / "run" / "checkpoint-4")
    half = plain_adapter(pico_checkpoint, bench.root / "run" / "checkpoint-8")
    bench.pass_time(3 * PATIENCE_SECONDS)
    assert [job.checkpoint.step for job in bench.jobs()] == [4]
    assert any("trainer_state.json" in missing for missing in bench.tracker.listing.incomplete[half].missing)


def test_what_is_left_of_a_trainers_checkpoint_is_no_loops_own_unless_something_was_written_since(  # R1.5
    bench: Bench, pico_checkpoint: Path
) -> None:
    checkpoint = copy_of(pico_checkpoint, bench.root / "run" / "checkpoint-4")
    bench.pass_time(10.0)
    (first,) = bench.jobs()
    for name in ("trainer_state.json", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "tokenizer.json"):
        (checkpoint / name).unlink()
    bench.pass_time(2 * PATIENCE_SECONDS)
    bench.restart()
    bench.pass_time(2 * PATIENCE_SECONDS)
    assert [job.id for job in bench.jobs()] == [first.id]
    assert any("being deleted" in missing for missing in bench.tracker.listing.incomplete[checkpoint].missing)
    change_weights(checkpoint, 0.25, state=False)  # a loop of one's own that saves there now
    bench.pass_time(2 * PATIENCE_SECONDS)
    (second,) = bench.jobs()
    assert (second.checkpoint.layout, second.id != first.id, bench.tracker.listing.incomplete) == ("adapter", True, {})
