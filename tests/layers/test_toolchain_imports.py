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

barred = set(sys.argv[2].split(","))
sys.meta_path.insert(0, Gate())
try:
    importlib.import_module(sys.argv[1])
except ModuleNotFoundError as error:
    sys.exit(str(error) if str(error).startswith("barred") else 0)  # what the toolchain alone has, nobody can import here
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


def entries() -> list[tuple[str, str]]:
    """(toolchain, module) of every stage and every engine that runs in one."""
    found = {(spec.toolchain, spec.entry.partition(":")[0]) for spec in all_specs() if spec.toolchain and not spec.checks}
    engines = {name: classes.values() for one in catalog().formats for name, classes in one.engines.items()}
    for variant in catalog().variants.values():
        if variant.limits.toolchain:
            found |= {(variant.limits.toolchain, entry.partition(":")[0]) for entry in engines[variant.limits.engine]}
    return sorted(found)


def test_there_are_such_entries_and_their_locks_are_read() -> None:
    assert {"openvino", "gguf", "executorch"} <= {toolchain for toolchain, _ in entries()}
    assert "onnxruntime" in locked("openvino") and "onnx_ir" in barred("openvino")


@pytest.mark.parametrize(("toolchain", "module"), entries())
def test_it_imports_nothing_that_its_toolchain_lacks(toolchain: str, module: str) -> None:
    command = [sys.executable, "-c", IMPORT, module, ",".join(sorted(barred(toolchain)))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
