"""Which directories below a root are checkpoints: by name, by depth, never through links."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.watching.scan import Scanner
from tests.detection.conftest import OtherUser
from tests.detection.helpers import below


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


def test_checkpoints_are_found_by_name_at_every_level_down_to_the_depth(tmp_path: Path) -> None:  # R1.1
    make(tmp_path, "checkpoint-1", "run/checkpoint-2", "team/run/checkpoint-30", "a/b/c/checkpoint-4", "a/b/c/d/checkpoint-5")
    assert below(tmp_path) == ["a/b/c/checkpoint-4", "a/b/c/d/checkpoint-5", "checkpoint-1", "run/checkpoint-2", "team/run/checkpoint-30"]
    assert below(tmp_path, depth=4) == ["a/b/c/checkpoint-4", "checkpoint-1", "run/checkpoint-2", "team/run/checkpoint-30"]
    assert below(tmp_path, depth=1) == ["checkpoint-1"]
    assert below(tmp_path, depth=2) == ["checkpoint-1", "run/checkpoint-2"]


def test_hidden_temporary_and_similar_names_are_passed_over(tmp_path: Path) -> None:
    make(
        tmp_path, "run/tmp-checkpoint-1", "run/.tmp-checkpoint-2", "run/checkpoint-3-tmp", "run/checkpoint-4-export", "run/checkpoint-",
        "run/checkpoint-x", "run/mycheckpoint-5", ".hidden/checkpoint-6", "tmp-run/checkpoint-7", "run-tmp/checkpoint-8",
        "run/checkpoint-9",
    )  # fmt: skip
    (tmp_path / "run" / "checkpoint-10").touch()
    assert below(tmp_path) == ["run/checkpoint-9"]


def test_links_are_not_followed_so_that_loops_end(tmp_path: Path) -> None:
    make(tmp_path, "run/checkpoint-1")
    (tmp_path / "run" / "again").symlink_to(tmp_path)
    (tmp_path / "other").symlink_to(tmp_path / "run")
    (tmp_path / "run" / "checkpoint-2").symlink_to("checkpoint-1")
    assert below(tmp_path, depth=16) == ["run/checkpoint-1"]


def test_a_checkpoint_inside_a_checkpoint_is_not_one_of_its_own(tmp_path: Path) -> None:
    make(tmp_path, "run/checkpoint-1/checkpoint-2")
    assert below(tmp_path) == ["run/checkpoint-1"]


def test_a_folder_that_cannot_be_read_is_reported_and_the_rest_is_still_found(other_user: OtherUser) -> None:  # R1.5
    make(other_user.folder, "locked/checkpoint-1", "open/checkpoint-2")
    (other_user.folder / "locked").chmod(0o700)
    said = other_user.run(
        "from daemon.watching.scan import Scanner",
        "for one in Scanner().find(folder, lambda error: print('error', error.filename)): print('found', one.path)",
    )
    assert sorted(said) == [f"error {other_user.folder}/locked", f"found {other_user.folder}/open/checkpoint-2"]


def test_a_root_that_is_gone_is_reported_and_gives_nothing(tmp_path: Path) -> None:
    errors: list[OSError] = []
    assert list(Scanner().find(tmp_path / "gone", errors.append)) == []
    assert [error.filename for error in errors] == [str(tmp_path / "gone")]


@pytest.mark.parametrize(
    ("changed", "checkpoint"),
    [
        ("run/checkpoint-4/adapter_model.safetensors", "run/checkpoint-4"),
        ("run/checkpoint-4/", "run/checkpoint-4"),
        ("checkpoint-4/deep/er/file", "checkpoint-4"),
        ("run/checkpoint-4/checkpoint-5/file", "run/checkpoint-4"),
        ("run/trainer_state.json", None),
        ("run/tmp-checkpoint-4/file", None),
        (".hidden/checkpoint-4/file", None),
        ("tmp-run/checkpoint-4/file", None),
        ("run/checkpoint-4-export/file", None),
        ("", None),
    ],
)
def test_a_changed_path_belongs_to_the_checkpoint_around_it(tmp_path: Path, changed: str, checkpoint: str | None) -> None:
    expected = None if checkpoint is None else tmp_path / checkpoint
    assert Scanner().checkpoint_of(tmp_path, f"{tmp_path}/{changed}") == expected


def test_a_path_outside_of_the_root_belongs_to_nothing(tmp_path: Path) -> None:
    assert Scanner().checkpoint_of(tmp_path / "runs", f"{tmp_path}/runs-old/checkpoint-4/file") is None


def test_ten_thousand_directories_are_scanned_in_a_few_seconds(tmp_path: Path) -> None:
    for run in range(100):
        for step in range(100):
            (tmp_path / f"run-{run}" / f"checkpoint-{step}").mkdir(parents=True)
    assert len(below(tmp_path)) == 10_000
