"""Imports flow down only, and the daemon stays light."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch", "transformers", "peft", "onnx", "onnxruntime", "onnxscript", "safetensors", "sentencepiece", "tokenizers", "accelerate",
    "bitsandbytes", "numpy", "jinja2",
)  # fmt: skip


MODULES = (
    "daemon.cli", "daemon.operating.service", "daemon.cli.export", "daemon.cli.views.tables", "daemon.operating.diagnosis.doctor",
    "daemon.publishing.telling.notifier",
)  # fmt: skip


def test_the_daemons_modules_load_nothing_heavy() -> None:
    program = f"import sys, {', '.join(MODULES)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)
    # Of the other wing the declarations of the formats alone, with the packages that they lie in.
    handlers = [name for name in loaded if name.startswith("handlers.")]
    declarations = [name for name in handlers if name.endswith((".format", ".options"))]
    assert set(handlers) == {".".join(name.split(".")[:end]) for name in declarations for end in range(2, name.count(".") + 2)}


def test_every_declaration_that_an_entry_point_names_is_light() -> None:
    """Beside the contract it loads modules of the standard library, and of formats the declarations and options alone."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["ckptd.formats"]
    program = "import sys, pkgutil, daemon.contract.formats.catalog\n"
    program += "for entry in sys.argv[1:]:\n    before = set(sys.modules)\n    pkgutil.resolve_name(entry)\n"
    program += "    print(entry, *sorted(set(sys.modules) - before))"
    command = [sys.executable, "-c", program, *entries.values()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = {entry: [name for name in names if not _light(name)] for entry, *names in map(str.split, done.stdout.splitlines())}
    assert found == {entry: [] for entry in entries.values()}


def _light(module: str) -> bool:
    """Whether a declaration may load it: the contract, the standard library, a declaration, its options, and the folders they lie in."""
    top, _, rest = module.partition(".")
    folder = ROOT.joinpath(*module.split("."))
    ours = top == "daemon" or not rest or rest.endswith((".format", ".options")) or any(folder.rglob("format.py"))
    return ours if top in ("daemon", "handlers") else top in sys.stdlib_module_names


def test_every_module_of_ours_that_is_imported_exists() -> None:
    """mypy does not tell a library that is not installed from a name of ours that is misspelt."""
    imported = re.compile(r"^\s*(?:from|import) ((?:daemon|handlers)(?:\.\w+)*)", re.MULTILINE)
    files = [path for wing in ("daemon", "handlers") for path in (ROOT / wing).rglob("*.py")]
    named = {name for path in files for name in imported.findall(path.read_text("utf-8"))}
    places = {name: ROOT.joinpath(*name.split(".")) for name in named}
    assert [name for name, place in places.items() if not (place.is_dir() or place.with_suffix(".py").is_file())] == []


def test_the_contract_loads_nothing_of_the_daemons_inside() -> None:
    program = "import sys, pkgutil, importlib, daemon.contract as c\n"
    program += "for one in pkgutil.walk_packages(c.__path__, c.__name__ + '.'): importlib.import_module(one.name)\n"
    program += "print(*(name for name in sys.modules if name.startswith(('daemon', 'handlers'))))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if not name.startswith("daemon.contract.")] == ["daemon", "daemon.contract"]
