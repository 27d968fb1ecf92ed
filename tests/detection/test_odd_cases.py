"""What real file systems and trainers also do: names that are no text, other devices, renames, files that come late."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.pinning.pins import PinRules, identify, make_pin
from tests.detection.bench import Bench
from tests.detection.helpers import WRITTEN_LAST, copy_of, in_trainers_order


def test_a_name_that_is_no_utf_8_is_said_once_and_keeps_nothing_else_back(bench: Bench, pico_checkpoint: Path) -> None:  # R1.5
    odd = os.fsdecode(os.fsencode(bench.root) + b"/run-\xff\xfe")
    copy_of(pico_checkpoint, Path(odd) / "checkpoint-4")
    copy_of(pico_checkpoint, bench.root / "run" / "checkpoint-4")
    with capture_logs() as said:
        bench.pass_time(30.0)
    assert [job.checkpoint.run for job in bench.jobs()] == ["run"]
    assert len([entry for entry in said if "is not UTF-8; rename it" in entry["event"]]) == 1


@pytest.mark.parametrize(
    "run", ["run with spaces", "[red]run[/red]", "'; DROP TABLE job; --", "läuft-走る", "-rf", "a" * 200, "line\nbreak"]
)
def test_an_absurd_name_is_a_name_like_any_other(bench: Bench, pico_checkpoint: Path, run: str) -> None:
    copy_of(pico_checkpoint, bench.root / run / "checkpoint-4")
    bench.pass_time(10.0)
    (job,) = bench.jobs()
    assert job.checkpoint.run == run
    assert job.pin.parent.name == "pins" and identify(job.pin) == job.checkpoint.digest


def test_a_pin_on_another_device_is_a_copy(pico_checkpoint: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        checkpoint = copy_of(pico_checkpoint, Path(elsewhere) / "run" / "checkpoint-4")
        assert checkpoint.stat().st_dev != tmp_path.stat().st_dev
        make_pin(checkpoint, tmp_path / "pin", fingerprint(checkpoint), PinRules(copy_limit=0))
        assert identify(tmp_path / "pin") == identify(checkpoint)
        assert (tmp_path / "pin" / "adapter_model.safetensors").stat().st_nlink == 1


def test_a_file_that_comes_late_is_a_checkpoint_of_its_own_only_where_an_export_reads_it(bench: Bench, pico_checkpoint: Path) -> None:
    checkpoint = copy_of(pico_checkpoint, bench.root / "run" / "checkpoint-4")
    bench.pass_time(10.0)
    (first,) = bench.jobs()
    (checkpoint / "rng_state_1.pth").write_bytes(b"another rank's, late")
    (checkpoint / "completions.parquet").write_bytes(b"what GRPO writes after the state")
    bench.pass_time(40.0)
    assert [job.id for job in bench.jobs()] == [first.id]
    (checkpoint / "special_tokens_map.json").write_text("{}")
    os.utime(checkpoint / WRITTEN_LAST)
    bench.pass_time(40.0)
    (second,) = bench.jobs()
    assert second.id != first.id and (second.pin / "special_tokens_map.json").is_file()


def test_a_directory_that_is_renamed_while_it_is_written_is_taken_whole_under_its_last_name(bench: Bench, pico_checkpoint: Path) -> None:
    staging, final = bench.root / "run" / "tmp-checkpoint-4", bench.root / "run" / "checkpoint-4"
    staging.mkdir(parents=True)
    files = in_trainers_order(pico_checkpoint)
    for file in files[:3]:
        shutil.copy(file, staging)
    bench.pass_time(10.0)
    staging.rename(final)
    bench.pass_time(10.0)
    assert bench.jobs() == []
    for file in files[3:]:
        shutil.copy(file, final)
    bench.pass_time(10.0)
    (job,) = bench.jobs()
    assert job.checkpoint.path == str(final) and identify(job.pin) == job.checkpoint.digest


def test_what_ms_swift_writes_is_taken_once_and_its_run_is_the_directory_of_the_start(bench: Bench, pico_checkpoint: Path) -> None:
    run = bench.root / "my-run" / "v0-20261128-090000"
    copy_of(pico_checkpoint, run / "checkpoint-4")
    for folder in (run, run / "checkpoint-4"):
        (folder / "args.json").write_text('{"model": "Qwen/Qwen2.5-0.5B-Instruct", "tuner_type": "lora"}')
    for link in ("best", "last"):
        (run / link).symlink_to(run / "checkpoint-4")
    bench.pass_time(40.0)
    (job,) = bench.jobs()
    assert (job.checkpoint.run, job.checkpoint.step) == ("my-run/v0-20261128-090000", 4)


def test_a_model_that_ms_swift_merged_is_a_step_of_its_run_and_no_second_export_beside_its_adapter(
    bench: Bench, pico_base: Path, pico_checkpoint: Path
) -> None:
    run = bench.root / "my-run"
    copy_of(pico_checkpoint, run / "checkpoint-4")
    (run / "checkpoint-6" / "iter_0000006").mkdir(parents=True)
    for step in (4, 6):
        merged = run / f"checkpoint-{step}-merged"
        shutil.copytree(pico_base, merged)
        (merged / f"iter_000000{step}").mkdir()
        (merged / f"iter_000000{step}" / "common.pt").write_bytes(b"x")
    bench.pass_time(60.0)
    assert {(Path(job.checkpoint.path).name, job.checkpoint.run, job.checkpoint.step) for job in bench.jobs()} == {
        ("checkpoint-4", "my-run", 4), ("checkpoint-6-merged", "my-run", 6),
    }  # fmt: skip
    assert not [path for path in bench.tracker.listing.incomplete if "merged" in str(path)]
