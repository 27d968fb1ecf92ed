"""A copy of onnxruntime that takes its processor's word from us, and runs of graphs in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from daemon.contract import cpu
from tests.onnx.conftest import export, qwen3, qwen3_int8, trained
from tests.portability import masking
from tests.sharing import shared

__all__ = ["export", "qwen3", "qwen3_int8", "trained"]

ROOT = Path(__file__).resolve().parents[2]
Answers = dict[str, dict[str, np.ndarray]]
"""Name of a graph and number of a call → outputs by name."""


def read(target: Path) -> Answers:
    """What `answers.py` left in a folder."""
    found: Answers = {}
    for path in sorted(target.glob("*.npz")):
        with np.load(path) as arrays:
            found[path.name.removesuffix(".npz")] = dict(arrays)
    return found


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for sys.path with the patched onnxruntime."""
    if cpu.here().architecture != "x86_64":
        pytest.skip("the kernels of other processors can be called up on x86-64 alone; tests/portability/test_emulated.py has the others")
    return shared(tmp_path_factory, "site", masking.patched_copy)


@pytest.fixture
def run_as(site: Path, tmp_path: Path) -> Callable[[str, Path], Answers]:
    """Runs the graphs of a folder with the kernels of a level; skips where this processor hasn't got them."""

    def run(level: str, folder: Path) -> Answers:
        feature = masking.LEVELS[level]
        if feature and feature not in cpu.here().features:
            pytest.skip(f"this processor has no {feature}, so that it can't play one that has")
        target = tmp_path / f"answers-{level}-{folder.name}"
        target.mkdir()
        script = Path(__file__).with_name("answers.py")
        argv = [sys.executable, "-m", "tests.portability.masking", level, str(site), str(script), str(folder), str(target)]
        ended = subprocess.run(
            argv, cwd=ROOT, env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"}, capture_output=True, text=True, timeout=200
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        return read(target)

    return run
