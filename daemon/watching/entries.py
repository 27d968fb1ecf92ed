"""What lies in a directory, which names a walk passes by, and which root is the nearest."""

from __future__ import annotations

import os
import time
from pathlib import Path

from daemon.checkpoints.names import is_checkpoint_name, is_unfinished_name, may_make_checkpoint

_PINS = "ckptd-pins-"
_IGNORED = (".", "tmp-", _PINS)
TEMPORARY = "its name is one of directories that are not finished, as with tmp- before it or -tmp after it; rename it"
LEFT_SECONDS = 900.0
"""A directory with a temporary name that has not changed for so long will not be renamed any more."""


def innermost_first(roots: tuple[Path, ...]) -> list[Path]:
    """Roots so ordered that the first one above a path is the nearest; each named once."""
    return sorted(dict.fromkeys(roots), key=lambda root: -len(root.parts))


def is_ignored(name: str) -> bool:
    """Hidden and temporary names, among them those that older trainers and loops of one's own stage under."""
    return name.startswith(_IGNORED) or name.endswith("-tmp") or is_unfinished_name(name)


def is_temporary(name: str) -> bool:
    """A temporary name that is not hidden, and none of ours."""
    return is_ignored(name) and not name.startswith((".", _PINS))


def list_entries(folder: str | Path) -> tuple[dict[str, bool], list[str]]:
    """What lies in a directory: name → whether it is a directory, and the links. No export reads these, as in a hub's cache."""
    entries, links = {}, []
    with os.scandir(folder) as listing:
        for entry in listing:
            if not entry.is_symlink():
                entries[entry.name] = entry.is_dir(follow_symlinks=False)
            elif not is_ignored(entry.name):
                links.append(entry.name)
    return entries, links


def names_in(folder: str | Path) -> dict[str, bool]:
    """The same without the links; nothing where it is gone, no directory, or not readable: the next scan says which."""
    try:
        return list_entries(folder)[0]
    except OSError:
        return {}


def holds_checkpoints(folder: str) -> bool:
    """Whether a run lies in a directory, or weights that have not been renamed for long."""
    names = names_in(folder)
    if any(is_folder and is_checkpoint_name(name) for name, is_folder in names.items()):
        return True
    try:
        return any(map(may_make_checkpoint, names)) and time.time() - os.stat(folder).st_mtime > LEFT_SECONDS
    except OSError:
        return False  # it has been renamed meanwhile
