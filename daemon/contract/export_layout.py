"""Names and versions of the files of a published export. Both wings and whoever reads an export rely on them."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

MANIFEST = "MANIFEST.json"
MANIFEST_VERSION = 1


MOST_ENTRIES = 20_000
"""Entries that a look for exports below a folder takes in."""


def holds_exports(folder: Path) -> bool:
    """Whether an export lies below a folder, which is none itself; links are not followed. Looks at a bounded number of entries."""
    folders, left = [folder], MOST_ENTRIES
    while folders and left > 0:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in itertools.islice(entries, left):
                    left -= 1
                    if entry.name == MANIFEST:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
        except OSError:
            continue
    return False


def manifest_of(target: Path) -> dict[str, object]:
    """The manifest of a published export, {} where there is none."""
    try:
        value = json.loads((target / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
