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
        "daemon.cli.views.tables",
        "daemon.operating.diagnosis.doctor",
        "daemon.publishing.notifier",
    ],
)
def test_the_daemons_modules_load_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)
    # Of the other wing the declarations of the formats alone, with the packages that they lie in.
    handlers = [name for name in loaded if name.startswith("handlers.")]
    declarations = [name for name in handlers if name.endswith((".format", ".options"))]
    assert set(handlers) == {".".join(name.split(".")[:end]) for name in declarations for end in range(2, name.count(".") + 2)}


def test_the_contract_loads_nothing_of_the_daemons_inside() -> None:
    program = "import sys, pkgutil, importlib, daemon.contract as c\n"
    program += "for one in pkgutil.walk_packages(c.__path__, c.__name__ + '.'): importlib.import_module(one.name)\n"
    program += "print(*(name for name in sys.modules if name.startswith(('daemon', 'handlers'))))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if not name.startswith("daemon.contract.")] == ["daemon", "daemon.contract"]
