"""Folders of this machine in a report's texts. Pure.

Pages name none: an export is copied to people who have other machines, and a home folder names its user. `report.json` keeps them, in
fields that say so, for programs on this machine; `ckptd show` prints them for people.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from handlers.report.model import Report

_PATH = re.compile(r"""(?<![\w.:/~…])~?/(?:[^\s/:;,'"`()\[\]<>|]+/)+[^\s/:;,'"`()\[\]<>|]*""")
KEPT = frozenset({"samples", "sample", "worst", "install", "run"})
"""What models read and write, and commands that run as they stand: shown letter by letter."""


def local_paths(report: Report) -> tuple[str, ...]:
    """Folders of this box that a report names, longest first: they mean nothing to whoever reads a model card."""
    checkpoint, base = report.checkpoint, report.base
    named = {
        checkpoint.root, checkpoint.path, base.folder, base.name, *(addition.path for addition in checkpoint.additions),
        *(failure.log for failure in report.failures), *(fault.path for stage in report.stages if (fault := stage.fault)),
    }  # fmt: skip
    return tuple(sorted((path for path in named if path and path.startswith("/") and len(path) > 1), key=len, reverse=True))


def without_paths(text: str, places: tuple[str, ...] = ()) -> str:
    """`text` with each absolute path cut to its last name; `places` are paths that may hold spaces."""
    for place in places:
        text = text.replace(place, f"…/{PurePosixPath(place).name}")
    return _PATH.sub(lambda match: f"…/{PurePosixPath(match[0]).name}", text)


def without_folders(report: Report) -> Report:
    """The report as pages show it: each path of this machine is cut to its last name."""
    return Report.model_validate(_cut(report.model_dump(), local_paths(report)))


def _cut(value: Any, places: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return without_paths(value, places)
    if isinstance(value, dict):
        return {_cut(key, places): item if key in KEPT else _cut(item, places) for key, item in value.items()}
    return [_cut(item, places) for item in value] if isinstance(value, list | tuple) else value
