"""Entry points, as `importlib.metadata` finds them, which takes as long to import and to ask as the rest of a command's start.

What is read are the folders NAME-VERSION.dist-info and .egg-info on the module search path, as the specifications of PyPA have them
("Recording installed projects", "Entry points specification"). Where a package may lie elsewhere, in an archive or behind a finder of its
own, `importlib.metadata` is asked.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

FILE = "entry_points.txt"


def values_of(group: str) -> set[str]:
    """`module:attribute` of each entry point of a group."""
    folders = [folder or os.curdir for folder in sys.path]
    others = (finder for finder in sys.meta_path if finder is not PathFinder and hasattr(finder, "find_distributions"))
    if any(others) or any(folder.endswith(".egg") or os.path.isfile(folder) for folder in folders):
        return _asked(group)
    projects = dict[str, str]()
    for name, infos in (project for folder in folders for project in _projects_in(folder)):
        projects.setdefault(name, infos)
    return {value for infos in projects.values() for value in _read(infos, group)}


def _asked(group: str) -> set[str]:
    from importlib.metadata import entry_points

    return {entry.value for entry in entry_points(group=group)}


def _projects_in(folder: str) -> Iterator[tuple[str, str]]:
    """The normalized name of each project in a folder, and where it is described."""
    with contextlib.suppress(OSError):
        for file in os.listdir(folder):
            if file.lower().endswith((".dist-info", ".egg-info")):
                name = re.sub(r"[-_.]+", "_", file.rpartition(".")[0].partition("-")[0]).lower()
                yield name, os.path.join(folder, file)


def _read(infos: str, group: str) -> set[str]:
    try:
        text = Path(infos, FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return set()
    values, section = set[str](), ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif section == group and not line.startswith("#"):
            values.add(line.partition("=")[2].strip())
    return values
