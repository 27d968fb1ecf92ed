"""A format inside the tree is one folder and one entry point: nothing else of the tree is touched, and everything knows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.layers.test_law import copied, lint

ROOT = Path(__file__).parents[2]
ENTRY = "handlers.npz.format:FORMAT"
TOOLCHAIN = 'about = "numpy alone"\ndisk = "1MiB"\ndownload = "1MiB"\nseconds = 1\nprobe = "handlers.npz.probe"\n'


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with the format npz in a folder of its own, and what an installation makes of its line in pyproject.toml."""
    folder = copied(tmp_path_factory.mktemp("tree"))
    home = folder / "handlers" / "npz"
    shutil.copytree(ROOT / "tests" / "formats" / "npz" / "npz_format", home, ignore=shutil.ignore_patterns("__pycache__"))
    for path in home.glob("*.py"):
        path.write_text(path.read_text("utf-8").replace("npz_format", "handlers.npz"), "utf-8")
    (home / "npz.toml").write_text(TOOLCHAIN)
    (home / "npz.txt").write_text("numpy==2.0.0\n")
    installed = folder / "toy-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"[ckptd.formats]\nnpz = {ENTRY}\n")
    return folder


def run(tree: Path, *words: str) -> str:
    """What a module of the tree prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "XDG_STATE_HOME": str(tree / "state")}
    done = subprocess.run([sys.executable, "-m", *words], cwd=tree, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_has_its_place_in_the_law_without_a_line_there(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout
    (tree / "handlers" / "litert" / "wrong.py").write_text("from handlers.npz import engine\n")
    done = lint(tree)
    (tree / "handlers" / "litert" / "wrong.py").unlink()
    assert done.returncode != 0 and "handlers.litert is not allowed to import handlers.npz" in done.stdout


def test_its_variants_its_toolchain_its_keys_and_its_page_are_there(tree: Path) -> None:
    formats: dict[str, Any] = json.loads(run(tree, "daemon", "formats", "--json"))
    assert "npz-coarse" in formats["variants"]
    assert "npz" in json.loads(run(tree, "daemon", "toolchain", "list", "--json"))["toolchains"]
    assert "[npz]\n" in run(tree, "daemon.config.template")
    assert "## npz\n" in run(tree, "handlers.report.formats_page")
    (tree / "config.toml").write_text((ROOT / "config.toml").read_text("utf-8"), "utf-8")
    assert "| `npz` | 0.97 | 0.001 | 0.25 |" in run(tree, "daemon.config.reference", "config.toml")
