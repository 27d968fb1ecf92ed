"""Which directories are checkpoints, by name or by what they hold, and the step in a name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from daemon.checkpoints.inspection import inspect
from daemon.checkpoints.names import step_of
from daemon.watching.scan import Scanner
from tests.detection.bench import Bench
from tests.detection.helpers import TRAINERS_FILES, below, change_weights, copy_of, plain_adapter


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-4", 4), ("checkpoint-00010", 10), ("checkpoint-0", 0), ("step-500", 500), ("step_500", 500), ("step-000100", 100),
        ("epoch_0", 0), ("epoch-12", 12), ("checkpoint-999999999999", 999_999_999_999),
        ("checkpoint-1e9", None), ("checkpoint-abc", None), ("checkpoint--5", None), ("checkpoint-", None), ("checkpoint-+5", None),
        ("checkpoint-5 ", None), ("checkpoint-" + "9" * 13, None), ("checkpoint-" + "9" * 200, None), ("checkpoint-٤", None),
        ("epoch=0-step=6", 6), ("epoch=3", 3), ("step=6", 6), ("global_step100", 100), ("iter_0000100", 100), ("ckpt-7", 7),
        ("checkpoint_8", 8), ("epoch=0-step=", None), ("llama-step-2", None), ("step-", None), ("epoch_1.5", None), ("final", None),
    ],
)  # fmt: skip
def test_the_step_is_the_number_in_the_name_and_only_whole_numbers_of_sane_length_are(tmp_path: Path, name: str, step: int | None) -> None:
    assert step_of(Path("run") / name) == step
    (tmp_path / "run" / name).mkdir(parents=True)
    assert (below(tmp_path) == [f"run/{name}"]) == (step is not None and name.startswith("checkpoint-"))


def test_a_padded_name_is_the_step_that_its_state_tells(pico_checkpoint: Path, tmp_path: Path) -> None:
    found = inspect(copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-00010", step=10))
    assert (found.complete, found.step) == (True, 10)


def test_other_names_are_checkpoints_only_once_they_hold_what_trainers_write(pico_checkpoint: Path, tmp_path: Path) -> None:  # R1.1
    for name in ("step_3", "epoch_1", "final", "final_checkpoint", "adapter"):
        plain_adapter(pico_checkpoint, tmp_path / "run" / name)
        (tmp_path / "empty" / name).mkdir(parents=True)
    assert below(tmp_path) == ["run/adapter", "run/epoch_1", "run/final", "run/final_checkpoint", "run/step_3"]


def test_a_folder_of_runs_that_is_called_like_a_step_hides_none_of_them(pico_checkpoint: Path, tmp_path: Path) -> None:  # R1.1
    for name in ("step-2", "final", "adapter"):
        copy_of(pico_checkpoint, tmp_path / name / "run" / "checkpoint-4")
    assert below(tmp_path) == ["adapter/run/checkpoint-4", "final/run/checkpoint-4", "step-2/run/checkpoint-4"]
    assert (
        Scanner().checkpoint_of(tmp_path, f"{tmp_path}/step-2/run/checkpoint-4/tokenizer.json")
        == tmp_path / "step-2" / "run" / "checkpoint-4"
    )


@pytest.mark.parametrize("changed", ["final/adapter_model.safetensors", "final/tokenizer.json", "final/", "final/chat_template.jinja"])
def test_an_event_finds_the_directory_that_a_scan_finds(pico_checkpoint: Path, tmp_path: Path, changed: str) -> None:  # R1.1
    assert Scanner().checkpoint_of(tmp_path, f"{tmp_path}/run/{changed}") is None
    final = plain_adapter(pico_checkpoint, tmp_path / "run" / "final")
    assert Scanner().checkpoint_of(tmp_path, f"{tmp_path}/run/{changed}") == final
    assert below(tmp_path) == ["run/final"]


def test_no_more_levels_are_looked_into_for_other_names(pico_checkpoint: Path, tmp_path: Path) -> None:
    plain_adapter(pico_checkpoint, tmp_path / "run" / "final")
    copy_of(pico_checkpoint, tmp_path / "run" / "final" / "checkpoint-4")
    assert below(tmp_path, depth=2) == ["run/final"]
    assert below(tmp_path, depth=3) == ["run/final", "run/final/checkpoint-4"]


def _runs(bench: Bench) -> set[tuple[str, int, bool]]:
    bench.pass_time(60.0)
    return {(job.checkpoint.run, job.checkpoint.step, job.checkpoint.ending) for job in bench.jobs()}


def _trained(run: Path, source: Path, seed: int) -> Path:
    """A run of Trainer with its checkpoints, and the last of them once more in the run's own directory, as `save_model` writes it."""
    shutil.copytree(source, run)
    for checkpoint in run.iterdir():
        change_weights(checkpoint, seed + int(checkpoint.name[-1]) / 10)
    shutil.copytree(run / "checkpoint-4", run, ignore=shutil.ignore_patterns("trainer_state.json", "*.pt", "*.pth"), dirs_exist_ok=True)
    return run


@pytest.mark.parametrize("names", [("model-1", "model-2"), ("step_1", "step_2"), ("final", "last")])
def test_runs_that_are_called_like_steps_are_runs_where_checkpoints_lie_in_them(
    bench: Bench, pico_run: Path, names: tuple[str, str]
) -> None:
    for seed, name in enumerate(names):
        _trained(bench.root / "sweep" / name, pico_run, seed)
    assert _runs(bench) == {(f"sweep/{name}", step, False) for name in names for step in (2, 4)}


def test_a_run_without_checkpoints_is_one_where_trainer_saved_its_model_and_else_its_name_is_a_steps(bench: Bench, pico_run: Path) -> None:
    for number in (1, 2):
        run = _trained(bench.root / f"model-{number}", pico_run, number)
        for checkpoint in run.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
        change_weights(shutil.copytree(run, bench.root / "loop" / f"model-{number}", ignore=TRAINERS_FILES), 0.7, state=False)
    assert _runs(bench) == {("model-1", 0, True), ("model-2", 0, True), ("loop", 1, False), ("loop", 2, False)}


def test_the_adapter_beside_a_runs_checkpoints_is_the_runs_last_and_no_step_of_the_folder_around_it(bench: Bench, pico_run: Path) -> None:
    run = shutil.copytree(pico_run, bench.root / "model-7")
    change_weights(plain_adapter(run / "checkpoint-4", run / "adapter"), 0.5, state=False)
    assert _runs(bench) == {("model-7", 2, False), ("model-7", 4, False), ("model-7", 4, True)}
