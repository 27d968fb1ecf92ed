"""Who could read the files of a checkpoint when it was pinned: kept in the pin, since the checkpoint may be gone when it is published."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.files import write_atomic

ACCESS = ".access"
"""File of a pin that says it: [path, mode, group] of the files, one for each mode and group. No name that an export reads."""


@dataclass(frozen=True)
class SourceMode:
    """The mode of a file, without the read bits of those who can't reach it through its folders, and the id of its group."""

    path: str
    mode: int
    group: int


def mode_of(file: Path, top: Path) -> SourceMode | None:
    """The mode of a file as far as it can be reached from `top`, a folder above it; None where it is gone."""
    try:
        status = os.stat(file)
        mode = status.st_mode & 0o777
        for folder in file.parents:
            through = os.stat(folder).st_mode
            mode &= ~0o070 if not through & 0o010 else ~0
            mode &= ~0o007 if not through & 0o001 else ~0
            if folder == top:
                break
            if top not in folder.parents:
                break
    except OSError:
        return None
    return SourceMode(str(file), mode, status.st_gid)


def remember(pin: Path, files: Iterable[Path], top: Path) -> None:
    """Write the modes of the files that were pinned into the pin."""
    modes: dict[tuple[int, int], SourceMode] = {}
    for file in files:
        if (mode := mode_of(file, top)) is not None:
            modes.setdefault((mode.mode, mode.group), mode)
    write_atomic(pin / ACCESS, json.dumps([[mode.path, mode.mode, mode.group] for mode in modes.values()]))


def read_modes(pin: Path) -> list[SourceMode]:
    """What `remember` wrote; [] where there is none."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return [SourceMode(str(path), int(mode), int(group)) for path, mode, group in json.loads((pin / ACCESS).read_bytes())]
    return []
