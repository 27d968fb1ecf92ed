"""What scans cost where nothing happens: an incomplete directory that stays as it is is not opened again and again."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.checkpoints.inspection import Inspection, inspect
from daemon.watching import resting
from daemon.watching.resting import LOOK_AGAIN_SECONDS, MAPPED_SECONDS
from tests.detection.bench import Bench
from tests.detection.helpers import copy_of

RESCAN = 30.0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each directory was opened and looked through."""
    counted: Counter[str] = Counter()

    def counting(path: Path) -> Inspection:
        counted[path.name] += 1
        return inspect(path)

    monkeypatch.setattr(resting, "inspect", counting)
    return counted


def incomplete(bench: Bench, checkpoint: Path, step: int) -> Path:
    target = copy_of(checkpoint, bench.root / "run" / f"checkpoint-{step}", step=step)
    (target / "trainer_state.json").unlink()
    return target


def test_an_incomplete_directory_that_stays_as_it_is_is_looked_through_now_and_then_alone(
    bench: Bench, pico_checkpoint: Path, looks: Counter[str]
) -> None:
    incomplete(bench, pico_checkpoint, 4)
    bench.pass_time(2 * MAPPED_SECONDS, RESCAN)
    before = looks["checkpoint-4"]
    bench.pass_time(3600.0, RESCAN)
    assert before >= 2 and 3600 / LOOK_AGAIN_SECONDS / 2 <= looks["checkpoint-4"] - before <= 2 * 3600 / LOOK_AGAIN_SECONDS + 1
    assert [path.name for path in bench.tracker.listing.incomplete] == ["checkpoint-4"]


CHANGES = {
    "a file comes": lambda folder: (folder / "more.json").write_text("{}"),
    "a file is written in place": lambda folder: (folder / "adapter_config.json").write_text((folder / "adapter_config.json").read_text()),
    "a file may be read by others": lambda folder: (folder / "adapter_config.json").chmod(0o640),
    "a time alone is set": lambda folder: os.utime(folder / "adapter_config.json", ns=(1, 1)),
    "a file is replaced by one of the same size and time": lambda folder: replaced(folder / "adapter_config.json"),
    "the run's configuration comes": lambda folder: (folder.parent / "config.json").write_text("{}"),
    "the directory may be read by others": lambda folder: folder.chmod(0o750),
}


def replaced(file: Path) -> None:
    beside, status = file.with_name("beside"), file.stat()
    beside.write_bytes(file.read_bytes())
    os.utime(beside, ns=(status.st_atime_ns, status.st_mtime_ns))
    beside.rename(file)


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_in_it_has_the_next_scan_look_through_it(
    bench: Bench, pico_checkpoint: Path, looks: Counter[str], change: str
) -> None:
    folder = incomplete(bench, pico_checkpoint, 4)
    bench.pass_time(2 * MAPPED_SECONDS + RESCAN, RESCAN)
    before = looks["checkpoint-4"]
    bench.pass_time(RESCAN, RESCAN)
    assert looks["checkpoint-4"] == before, "at rest"
    CHANGES[change](folder)
    bench.pass_time(RESCAN, RESCAN)
    assert looks["checkpoint-4"] == before + 1


@pytest.fixture
def hours_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the files' times is hours ahead, so that whatever lies there has rested for long."""
    monkeypatch.setattr(resting, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 4 * 3600 * 10**9))


@pytest.mark.usefixtures("hours_later")
def test_what_had_rested_for_long_when_it_was_looked_through_first_is_passed_over_by_the_next_scan(
    bench: Bench, pico_checkpoint: Path, looks: Counter[str]
) -> None:
    incomplete(bench, pico_checkpoint, 4)
    bench.pass_time(RESCAN, RESCAN)
    before = looks["checkpoint-4"]
    bench.pass_time(10 * RESCAN, RESCAN)
    assert before == looks["checkpoint-4"] == 1


@pytest.mark.usefixtures("hours_later")
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_after_the_first_look_is_seen_by_the_next_scan_whatever_the_clock_of_its_times_says(
    bench: Bench, pico_checkpoint: Path, looks: Counter[str], change: str
) -> None:
    folder = incomplete(bench, pico_checkpoint, 4)
    bench.pass_time(RESCAN, RESCAN)
    CHANGES[change](folder)
    bench.pass_time(RESCAN, RESCAN)
    first = looks["checkpoint-4"]
    bench.pass_time(2 * MAPPED_SECONDS, RESCAN)
    assert first == 2 and looks["checkpoint-4"] >= 3, "a mapping may still have been written through after that"


def test_it_is_reported_when_it_has_been_incomplete_for_long_and_taken_when_its_last_file_comes(
    bench: Bench, pico_checkpoint: Path, looks: Counter[str]
) -> None:
    folder = incomplete(bench, pico_checkpoint, 4)
    bench.pass_time(1000.0, RESCAN)
    assert bench.tracker.listing.incomplete[folder].reported
    (folder / "trainer_state.json").write_text('{"global_step": 4}')
    bench.pass_time(2 * RESCAN, RESCAN)
    assert [job.checkpoint.step for job in bench.jobs()] == [4]


STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["write", "unlink", "chmod", "hold", "complete"])), max_size=12)


@given(STEPS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_scan_that_passes_over_what_is_at_rest_decides_as_one_that_looks_at_everything(
    bench: Bench, pico_checkpoint: Path, steps: list[tuple[int, str]]
) -> None:
    """After whatever happened, what is listed as incomplete, and why, is what a look at it says."""
    with tempfile.TemporaryDirectory(dir=bench.root) as run:
        folders = [copy_of(pico_checkpoint, Path(run) / f"checkpoint-{step}", step=step) for step in range(1, 5)]
        for folder in folders:
            (folder / "trainer_state.json").unlink()
        bench.pass_time(2 * MAPPED_SECONDS + RESCAN, RESCAN)
        for which, what in steps:
            change(folders[which], what)
            bench.pass_time(2 * RESCAN, RESCAN)
            for folder in folders:
                truth: Any = inspect(folder)
                listed = bench.tracker.listing.incomplete.get(folder)
                assert (listed is None) if truth.complete else (listed is not None and listed.missing == truth.missing)
    bench.pass_time(2 * RESCAN, RESCAN)


def change(folder: Path, what: str) -> None:
    config, state = folder / "adapter_config.json", folder / "trainer_state.json"
    if what == "write":
        config.write_text("{")
    elif what == "unlink":
        config.unlink(missing_ok=True)
    elif what == "chmod" and config.exists():
        config.chmod(0o600)
    elif what == "complete":
        config.write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "base_model_name_or_path": "x"}')
        state.write_text(f'{{"global_step": {folder.name.rpartition("-")[2]}}}')
