"""Start of the console command: says which other package hides `daemon` or `handlers`, whose names other distributions use too.

It lies beside the two packages and imports nothing of them before it has looked, so that it can speak where they are hidden.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

EXIT_USAGE = 2
HOME = Path(__file__).resolve().parent
OWN_ENVIRONMENT = "give ckptd an environment of its own: `pipx install ckptd`, `uv tool install ckptd`, or pip in a new venv"


def main() -> int:
    """Entry of the console script; gives the exit code."""
    for name in ("daemon", "handlers"):
        found = _place(name)
        if found is not None and found != HOME / name:
            return _say(
                f"Could not start: Python finds another package {name!r} in {found}{_whose(name, found.parent)}, before ckptd's own in"
                f" {HOME / name}. Fix: take {found.parent} out of PYTHONPATH, or {OWN_ENVIRONMENT}."
            )
    try:
        from daemon.cli.main import main as run
    except ImportError as error:
        others = [other for name in ("daemon", "handlers") for other in _others(name)]
        if not others:
            raise
        return _say(
            f"Could not start: {' and '.join(others)} brings a package of the same name, whose files were installed over those of ckptd in"
            f" {HOME} ({error}). Fix: {OWN_ENVIRONMENT}."
        )
    return run()


def _say(sentence: str) -> int:
    print(f"ckptd: {sentence}", file=sys.stderr)
    return EXIT_USAGE


def _place(name: str) -> Path | None:
    """The folder, or file, that `import name` would take; None where there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        folders = [Path(os.path.realpath(folder)) for folder in spec.submodule_search_locations]
        return HOME / name if HOME / name in folders and spec.origin is None else folders[0]
    return Path(os.path.realpath(spec.origin)) if spec.origin else None


def _whose(name: str, folder: Path) -> str:
    found = next(_others(name, [str(folder)]), None)
    return f" (of {found})" if found else ""


def _others(name: str, path: list[str] | None = None) -> Iterator[str]:
    """Distributions but ours with a top-level package of that name, as `name version`; in the folders `path`, by default in all."""
    for one in importlib.metadata.distributions(path=path or sys.path):
        if one.name == "ckptd":
            continue
        if any(file.parts[:1] in ((name,), (f"{name}.py",)) for file in one.files or ()):
            yield f"{one.name} {one.version}"


if __name__ == "__main__":
    sys.exit(main())
