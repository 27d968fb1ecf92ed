"""transformers 4.57 in an environment of its own, and folders as they are published."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINNED = ("transformers==4.57.6", "huggingface_hub==0.36.2", "tokenizers==0.22.2", "requests==2.34.2")
"""What transformers 4.57 wants otherwise than ours; torch and the rest come from the environment that the tests run in."""


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of that environment, installed with pip's own index; OLDER_TEST_ENVIRONMENT names a folder in which it is kept."""
    folder = Path(os.environ.get("OLDER_TEST_ENVIRONMENT") or tmp_path_factory.mktemp("older") / "environment")
    python = folder / "bin" / "python"
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    if not (packages / "ours.pth").is_file():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *PINNED], check=True)
        (packages / "ours.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return python


def read(python: Path, models: Path, tokenizers: Path, answer: Path) -> str:
    """Have a Python read the folders into `answer`; gives what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [python, "-W", "ignore", "-m", "tests.older.reader", models, tokenizers, answer]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr
