"""`ckptd export` of one checkpoint over another base than before: what is there already is of the old one, and is made again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.disk.files import sha256_file
from tests.sampling import some
from tests.verbs import run_verb

ROOT = Path(__file__).parents[2]


@dataclass
class Exports:
    """One state directory and one output."""

    home: Path
    checkpoint: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ, "XDG_STATE_HOME": str(self.home / "state"), "CKPTD_EXPORT__VARIANTS": "pytorch", "CKPTD_VALIDATE__SAMPLES": "2",
            "CKPTD_VALIDATE__NEW_TOKENS": "4", "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_LIMITS__DISK_RESERVE": "0",
            "CKPTD_LIMITS__THREADS": "1",
        }  # fmt: skip

    def words(self, base: Path) -> list[str]:
        return ["export", str(self.checkpoint), "--base", str(base), "--output", str(self.home / "out")]

    def run(self, base: Path) -> str:
        """What is said of an export that ends well."""
        answer = run_verb(self.words(base), ROOT, self.environment, timeout=240)
        assert answer.returncode == 0, answer.stderr
        return answer.stderr

    @property
    def report(self) -> dict[str, Any]:
        (path,) = (self.home / "out").glob("*/step-*/report.json")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    @property
    def weights(self) -> str:
        (path,) = (self.home / "out").glob("*/step-*/pytorch/model.safetensors")
        return sha256_file(path)


@pytest.fixture
def exports(tmp_path: Path, pico_checkpoint: Path) -> Exports:
    return Exports(tmp_path, pico_checkpoint)


@pytest.fixture
def bases(tmp_path: Path, pico_base: Path) -> tuple[Path, Path]:
    """The base, and one of the same architecture with other numbers in it."""
    first, second = (Path(shutil.copytree(pico_base, tmp_path / name)) for name in ("one", "two"))
    weights = second / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4000:] = content[-8000:-4000]
    weights.write_bytes(content)
    return first, second


def named(bases: tuple[Path, Path], folder: Path) -> Callable[[int], Path]:
    return lambda number: bases[number]


def linked(bases: tuple[Path, Path], folder: Path) -> Callable[[int], Path]:
    def at(number: int) -> Path:
        link = folder / "base"
        link.unlink(missing_ok=True)
        link.symlink_to(bases[number])
        return link

    return at


@pytest.mark.parametrize("way", some([linked, named], 2))
def test_an_export_over_another_base_is_made_of_that(
    exports: Exports, bases: tuple[Path, Path], tmp_path: Path, way: Callable[..., Callable[[int], Path]]
) -> None:
    at = way(bases, tmp_path)
    exports.run(at(0))
    first, identity = exports.weights, exports.report["export_id"]
    assert "already exported" in exports.run(at(0)) and exports.weights == first
    assert "already exported" not in exports.run(at(1))
    assert exports.weights != first and exports.report["export_id"] == identity


@pytest.mark.slow
def test_an_export_over_the_base_of_before_is_what_it_was(exports: Exports, bases: tuple[Path, Path]) -> None:
    seen = []
    for number in (0, 1, 0):
        exports.run(bases[number])
        seen.append(exports.weights)
    assert seen[0] == seen[2] != seen[1]


@pytest.mark.slow
def test_an_interrupted_export_begins_again_over_another_base(exports: Exports, bases: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "daemon", *exports.words(bases[0])]
    process = subprocess.Popen(command, env=exports.environment, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("merge: succeeded"):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    exports.run(bases[1])
    interrupted = exports.weights
    shutil.rmtree(exports.home / "out")
    shutil.rmtree(exports.home / "state")
    exports.run(bases[1])
    assert exports.weights == interrupted
