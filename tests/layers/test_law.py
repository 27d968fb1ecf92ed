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
    "daemon/contract/wrong.py": "daemon.config.settings",
    "daemon/contract/formats/wrong.py": "daemon.contract.jobs.plan",
    "daemon/journal/wrong.py": "daemon.running.runner",
    "daemon/checkpoints/wrong.py": "torch",
    "daemon/running/rules/wrong.py": "daemon.running.runner",
    "daemon/running/wrong.py": "handlers",
    "daemon/operating/monitoring/wrong.py": "daemon.operating.diagnosis.doctor",
    "daemon/operating/diagnosis/wrong.py": "daemon.operating.service",
    "daemon/cli/views/wrong.py": "daemon.cli.common",
    "handlers/pytorch/wrong.py": "daemon.journal.rows",
    "handlers/litert/wrong.py": "handlers.coreml.format",
    "handlers/static_programs/wrong.py": "handlers.litert.format",
    "handlers/models/wrong.py": "handlers.graphs.graphset",
    "handlers/graphs/wrong.py": "handlers.folder.playback",
    "handlers/merge/weights/wrong.py": "handlers.merge.plan.operations",
    "handlers/validate/checks/wrong.py": "handlers.onnx.export.stage",
    "handlers/validate/engines/wrong.py": "handlers.merge.adapters.patterns",
    "handlers/layerwise/wrong.py": "handlers.merge.weights.nf4_round_trip",
}
"""File → what it must not import."""
HEAVY = ("handlers/litert/format.py", "handlers/onnx/genai/format.py", "handlers/tensorrt/options.py")
"""Declarations that import a heavy library here."""
NEW = ("daemon", "daemon/operating", "daemon/cli", "handlers", "handlers/onnx")
"""Where a room comes that has no place in the order."""


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of the tree in `folder`."""
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", PROGRAM, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def copied(folder: Path) -> Path:
    """Copy the two packages and the law into `folder`."""
    for name in ("daemon", "handlers"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests" / "layers").mkdir(parents=True)
    for path in ("pyproject.toml", "tests/__init__.py", "tests/layers/__init__.py", "tests/layers/contract.py"):
        shutil.copyfile(ROOT / path, folder / path)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The two packages and the law, to be broken."""
    return copied(tmp_path)


def test_the_tree_as_it_is_keeps_the_law(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout and "Contracts: 0 kept" not in done.stdout


def test_a_file_in_a_wrong_room_and_a_declaration_that_is_heavy_break_it(tree: Path) -> None:
    for place, name in {**WRONG, **dict.fromkeys(HEAVY, "torch")}.items():
        with open(tree / place, "a") as stream:
            stream.write(f"\nimport {name}\n")
    done = lint(tree)
    arrows = {place: f"{place[:-3].replace('/', '.')} -> {name}" for place, name in {**WRONG, **dict.fromkeys(HEAVY, "torch")}.items()}
    assert done.returncode != 0
    assert [place for place, arrow in arrows.items() if f"{arrow} (" not in done.stdout] == [], done.stdout


def test_a_room_without_a_place_in_the_order_breaks_it(tree: Path) -> None:
    for above in NEW:
        (tree / above / "new_room").mkdir()
        (tree / above / "new_room" / "__init__.py").touch()
    done = lint(tree)
    assert done.returncode != 0
    assert [above for above in NEW if f"{above.replace('/', '.')}.new_room" not in done.stdout] == [], done.stdout


def test_the_list_of_what_stages_may_not_import_names_every_room_of_the_daemon() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(one["forbidden_modules"] for one in contracts if one.get("source_modules") == ["handlers"])
    rooms = {path.parent.name for path in (ROOT / "daemon").glob("*/__init__.py")}
    assert set(listed) == {f"daemon.{room}" for room in rooms - {"contract"}}
