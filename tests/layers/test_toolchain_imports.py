"""What runs in the Python of a toolchain imports what that toolchain holds, and nothing else that happens to be in ckptd's own."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.plan import all_specs
from daemon.toolchains.registry import definitions

ROOT = Path(__file__).parents[2]
IMPORT = """
import importlib, sys

class Gate:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in barred:
            raise ModuleNotFoundError(f"barred: {name}", name=name)

barred = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Gate())
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # what the toolchain alone has, nobody can import here
        if str(error).startswith("barred"):
            sys.exit(f"{name}: {error}")
"""


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(toolchain: str) -> set[str]:
    """The distributions of a toolchain."""
    rows = definitions()[toolchain].requirements.read_text().splitlines()
    return {normal(found[0]) for row in rows if (found := re.match(r"^[A-Za-z0-9][\w.-]*(?=\[|==)", row))}


def barred(toolchain: str) -> set[str]:
    """Modules that ckptd's own Python has and the toolchain does not."""
    held = locked(toolchain)
    return {
        module for module, distributions in importlib.metadata.packages_distributions().items()
        if module not in ("daemon", "handlers", "tests", "ckptd") and not any(normal(one) in held for one in distributions)
    }  # fmt: skip


def entries() -> dict[str, list[str]]:
    """Toolchain → the modules of every stage and every engine that runs in it."""
    modules: dict[str, set[str]] = {}
    for spec in all_specs():
        if spec.toolchain and not spec.checks:
            modules.setdefault(spec.toolchain, set()).add(spec.entry.partition(":")[0])
    engines = {name: classes.values() for declared in catalog().formats for name, classes in declared.engines.items()}
    for variant in catalog().variants.values():
        if variant.limits.toolchain:
            modules.setdefault(variant.limits.toolchain, set()).update(entry.partition(":")[0] for entry in engines[variant.limits.engine])
    return {toolchain: sorted(names) for toolchain, names in modules.items()}


def test_there_are_such_entries_and_their_locks_are_read() -> None:
    assert {"openvino", "gguf", "executorch"} <= entries().keys()
    assert "onnxruntime" in locked("openvino") and "onnx_ir" in barred("openvino")


@pytest.mark.parametrize("toolchain", entries())
def test_it_imports_nothing_that_its_toolchain_lacks(toolchain: str) -> None:
    command = [sys.executable, "-c", IMPORT, ",".join(sorted(barred(toolchain))), *entries()[toolchain]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
