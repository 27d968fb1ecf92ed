"""`python -m tests.changed [REVISION]` (`make test-changed`): prints the test files that an edit since a revision can touch.

The revision is HEAD unless another is named. A test file is printed if it was changed, or if it imports a changed module: itself, by a
conftest.py around it, or by a module of tests. Most tests of the daemon start processes and import little, so that the rooms of
changed modules count too: `ROOMS` says which folder of tests is whose. The law of the imports is always there. It is a choice for
an editor's pause; `make test` runs everything.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = {
    "daemon/watching": ("detection",), "daemon/checkpoints": ("detection", "selection"), "daemon/publishing": ("publish", "notify"),
    "daemon/delivering": ("deliver",),
    "daemon/running": ("runner", "workers"), "daemon/journal": ("journal",), "daemon/cli": ("cli",), "daemon/config": ("config",),
    "daemon/operating": ("monitoring", "fsck"), "daemon/installing": ("install",), "daemon/page": ("page",),
    "daemon/toolchains": ("toolchains",),
    "systemd": ("systemd",),
}  # fmt: skip
ALWAYS = ("tests/layers/test_law.py", "tests/layers/test_layers.py", "tests/layers/test_tour.py")


def changed_since(revision: str) -> set[str]:
    """Names of files that differ from the revision, those that git does not know yet included."""
    words = (["git", "diff", "--name-only", revision], ["git", "ls-files", "--others", "--exclude-standard"])
    return {name for command in words for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines()}


def module_of(name: str) -> str:
    """daemon/journal/__init__.py → daemon.journal."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@functools.cache
def imports_of(file: Path) -> frozenset[str]:
    """Modules that a file names in its imports; of `from a import b` both a and a.b, since b may be one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


@functools.cache
def needed_by(test: Path) -> frozenset[str]:
    """What a test file imports, and what the modules of tests behind it import."""
    around = [folder / "conftest.py" for folder in test.parents if ROOT / "tests" in (folder, *folder.parents)]
    waiting, seen = [test, *(file for file in around if file.is_file() and file.parent != ROOT / "tests")], set[Path]()
    found: set[str] = set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        found |= imports_of(file)
        helpers = [ROOT / f"{name.replace('.', '/')}.py" for name in imports_of(file) if name.startswith("tests.")]
        waiting += [helper for helper in helpers if helper.is_file()]
    return frozenset(found)


def chosen(changed: set[str]) -> list[str]:
    """The test files to run for a set of changed files: first those that were changed, then those that import one, then the rooms'."""
    modules = {module_of(name) for name in changed if name.endswith(".py")}
    folders = {folder for room, tests in ROOMS.items() if any(name.startswith(f"{room}/") for name in changed) for folder in tests}
    folders |= {name.split("/")[1] for name in changed if name.startswith("handlers/")}  # handlers/gguf → tests/gguf
    found: dict[str, int] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        name = str(file.relative_to(ROOT))
        if name in changed:
            found[name] = 0
        elif modules & needed_by(file):
            found[name] = 1
        elif name in ALWAYS or file.relative_to(ROOT).parts[1] in folders:
            found[name] = 2
    return sorted(found, key=found.__getitem__)


if __name__ == "__main__":
    print("\n".join(chosen(changed_since(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))))
