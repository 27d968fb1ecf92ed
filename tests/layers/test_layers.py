"""Imports flow down only, and the daemon stays light."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch", "transformers", "peft", "onnx", "onnxruntime", "onnxscript", "safetensors", "sentencepiece", "tokenizers", "accelerate",
    "bitsandbytes", "numpy", "jinja2",
)  # fmt: skip


def test_every_import_contract_of_the_project_holds() -> None:
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
    assert "Contracts: 0 kept" not in done.stdout


@pytest.mark.parametrize("module", ["daemon.cli", "daemon.app", "daemon.foreground", "daemon.view", "daemon.environment", "daemon.notify"])
def test_the_daemons_modules_load_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*(name for name in {HEAVY!r} + ('handlers.merge', 'handlers.onnx') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_contract_and_the_plan_load_nothing_of_the_daemons_inside() -> None:
    program = "import sys, daemon.contract, handlers.plan; print(*sorted(n for n in sys.modules if n.startswith(('daemon', 'handlers'))))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "daemon", "daemon.contract", "daemon.errors", "daemon.values", "daemon.work", "handlers", "handlers.plan",
        "handlers.stage_spec", "handlers.variants",
    ]  # fmt: skip
