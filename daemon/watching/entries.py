"""What lies in a directory, and which names a walk passes by."""

from __future__ import annotations

import os
from pathlib import Path

from daemon.checkpoints.names import is_unfinished_name

_PINS = "ckptd-pins-"
_IGNORED = (".", "tmp-", _PINS)
TEMPORARY = "its name is one of directories that are not finished, as with tmp- before it or -tmp after it; rename it"


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
