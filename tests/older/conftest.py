"""transformers 4.57 in an environment of its own, and folders as they are published."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.environments import ROOT, of_clients


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of that environment; it has optimum-onnx too, which wants that release."""
    return of_clients(tmp_path_factory).python("older")


def read(python: Path, models: Path, tokenizers: Path, answer: Path) -> str:
    """Have a Python read the folders into `answer`; gives what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [python, "-W", "ignore", "-m", "tests.older.reader", models, tokenizers, answer]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr
