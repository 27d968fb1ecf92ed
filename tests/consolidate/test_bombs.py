"""The daemon's own look at a checkpoint takes seconds and little memory, whatever somebody wrote into it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.checkpoints import pieces
from daemon.checkpoints.inspection import inspect
from tests.consolidate import bombs
from tests.sampling import some

ROOT = Path(__file__).parents[2]
SECONDS = 60
"""Of a busy box; without a bound none of them ends within hours, or within any memory."""


def looked_into(*folders: Path) -> list[str]:
    command = [sys.executable, "-m", "tests.consolidate.bombs", *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(folders)
    assert all(len(line) < 2000 and line.isprintable() for line in lines), "a sentence for people"
    return lines


@pytest.mark.parametrize("name", some(bombs.DESCRIPTIONS, of=16))
def test_a_look_at_a_description_is_bounded(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "step-4"
    folder.mkdir()
    (folder / ".metadata").write_bytes(bombs.DESCRIPTIONS[name]())
    (folder / "__0_0.distcp").write_bytes(b"")
    assert looked_into(folder) != ["complete"]


@pytest.mark.parametrize("name", some(bombs.ARCHIVES, of=16))
def test_a_look_at_an_archive_is_bounded(name: str, tmp_path: Path) -> None:
    bombs.ARCHIVES[name](tmp_path)
    looked_into(tmp_path)


ODD: dict[tuple[str, ...], str] = {
    ("adapter_model.safetensors",): "adapter_config.json",
    ("model.safetensors",): "config.json",
    ("config.json", "model.safetensors"): "modules.json",
    ("config.json",): "model.safetensors.index.json",
    ("adapter_config.json", "adapter_model.safetensors"): "trainer_state.json",
    ("adapter_config.json", "adapter_model.safetensors", "global_step4/"): "latest",
    ("adapter_config.json",): "adapter_model.bin",
    ("a.ckpt",): "../adapter_config.json",
}
"""What lies in a directory → beside it, the file that is no plain one."""


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "endless device", "long file"])
def test_no_file_that_is_no_plain_one_holds_up_a_look(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    folders = [tmp_path / str(number) / "run" / "checkpoint-4" for number in range(len(ODD))]
    for folder, (names, odd) in zip(folders, ODD.items(), strict=True):
        folder.mkdir(parents=True)
        for name in names:
            if name.endswith("/"):
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(b"{}" if name.endswith(".json") else bytes([2, 0, 0, 0, 0, 0, 0, 0]) + b"{}")
        place = folder / odd
        if kind == "pipe":
            os.mkfifo(place)
        elif kind != "long file":
            place.symlink_to(tmp_path / "pipe" if kind == "link to a pipe" else "/dev/zero")
        elif odd.endswith(".bin"):
            bombs._claimed_contents(place)
        else:
            place.touch()
            os.truncate(place, 50 << 30)
    looked_into(*folders)


def test_pieces_that_have_not_changed_are_not_read_again_with_every_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "step-4"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"")
    (folder / ".metadata").write_bytes(b"no pickle")
    reads: list[Path] = []
    read: Callable[[Path], object] = pieces.read_tensors
    monkeypatch.setattr(pieces, "read_tensors", lambda path: (reads.append(path), read(path))[1])
    first, again = inspect(folder), inspect(folder)
    assert first == again and len(reads) == 1
    time.sleep(0.01)
    (folder / ".metadata").write_bytes(b"no pickl!")
    inspect(folder)
    assert len(reads) == 2, json.dumps([str(path) for path in reads])
