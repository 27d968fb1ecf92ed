"""The import law notices a file in a wrong room, and a room that has no place in the order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
WRONG = {
    "daemon/contract/wrong.py": "from daemon.config import settings",
    "daemon/contract/formats/wrong.py": "from daemon.contract.jobs import plan",
    "daemon/journal/wrong.py": "from daemon.running import runner",
    "daemon/checkpoints/wrong.py": "import torch",
    "daemon/running/rules/wrong.py": "from daemon.running import runner",
    "daemon/running/wrong.py": "import handlers",
    "daemon/operating/monitoring/wrong.py": "from daemon.operating.diagnosis import doctor",
    "daemon/operating/diagnosis/wrong.py": "from daemon.operating import service",
    "daemon/operating/new_room/__init__.py": "",
    "daemon/cli/views/wrong.py": "from daemon.cli import common",
    "daemon/cli/new_room/__init__.py": "",
    "daemon/new_room/__init__.py": "",
    "handlers/new_room/__init__.py": "",
    "handlers/pytorch/wrong.py": "from daemon.journal import rows",
    "handlers/litert/wrong.py": "from handlers.coreml import options",
    "handlers/static_programs/wrong.py": "from handlers.litert import options",
    "handlers/models/wrong.py": "from handlers.graphs import graphset",
    "handlers/graphs/wrong.py": "from handlers.folder import playback",
    "handlers/onnx/new_room/__init__.py": "",
    "handlers/merge/weights/wrong.py": "from handlers.merge.plan import operations",
    "handlers/validate/checks/wrong.py": "from handlers.onnx.export import stage",
    "handlers/validate/engines/wrong.py": "from handlers.merge.adapters import patterns",
    "handlers/layerwise/wrong.py": "from handlers.merge.weights import nf4_round_trip",
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of the tree in `folder`."""
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", PROGRAM, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the two packages and of the law."""
    return copied(tmp_path_factory.mktemp("tree"))


def copied(folder: Path) -> Path:
    """Copy the two packages and the law into `folder`; give it back."""
    for name in ("daemon", "handlers"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests" / "layers").mkdir(parents=True)
    for path in ("pyproject.toml", "tests/__init__.py", "tests/layers/__init__.py", "tests/layers/contract.py"):
        shutil.copyfile(ROOT / path, folder / path)
    return folder


def test_the_tree_as_it_is_keeps_the_law(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout and "Contracts: 0 kept" not in done.stdout


@pytest.mark.parametrize("place", WRONG)
def test_a_file_in_a_wrong_room_breaks_it(tree: Path, place: str) -> None:
    wrong = tree / place
    made = wrong.parent if not wrong.parent.exists() else wrong
    wrong.parent.mkdir(exist_ok=True)
    wrong.write_text(WRONG[place] + "\n")
    try:
        done = lint(tree)
    finally:
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    assert done.returncode != 0, done.stdout


@pytest.mark.parametrize("declared", ["litert/format.py", "onnx/genai/format.py", "tensorrt/options.py"])
def test_a_declaration_that_imports_a_heavy_library_breaks_it(tree: Path, declared: str) -> None:
    path = tree / "handlers" / declared
    text = path.read_text()
    path.write_text(f"{text}\nimport torch\n")
    try:
        done = lint(tree)
    finally:
        path.write_text(text)
    assert done.returncode != 0 and f"handlers.{declared[:-3].replace('/', '.')} -> torch" in done.stdout, done.stdout


def test_the_list_of_what_stages_may_not_import_names_every_room_of_the_daemon() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(one["forbidden_modules"] for one in contracts if one.get("source_modules") == ["handlers"])
    rooms = {path.parent.name for path in (ROOT / "daemon").glob("*/__init__.py")}
    assert set(listed) == {f"daemon.{room}" for room in rooms - {"contract"}}
