"""Imports flow down only, and the daemon stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch", "transformers", "peft", "onnx", "onnxruntime", "onnxscript", "safetensors", "sentencepiece", "tokenizers", "accelerate",
    "bitsandbytes", "numpy", "jinja2",
)  # fmt: skip


@pytest.mark.parametrize(
    "module",
    [
        "daemon.cli",
        "daemon.operating.service",
        "daemon.cli.export",
        "daemon.cli.tables",
        "daemon.operating.doctor",
        "daemon.publishing.notifier",
    ],
)
def test_the_daemons_modules_load_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*(name for name in {HEAVY!r} + ('handlers.merge', 'handlers.onnx') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_contract_and_the_plan_load_nothing_of_the_daemons_inside() -> None:
    program = (
        "import sys, daemon.contract.messages, daemon.contract.plan;"
        " print(*sorted(n for n in sys.modules if n.startswith(('daemon', 'handlers'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = ("errors", "fault_codes", "messages", "options", "plan", "stages", "values", "variants")
    assert done.stdout.split() == ["daemon", "daemon.contract", *(f"daemon.contract.{name}" for name in loaded)]
