"""Names and versions of the files of a published export. Both wings and whoever reads an export rely on them."""

from __future__ import annotations

import itertools
import json
import os
import stat
from pathlib import Path

MANIFEST = "MANIFEST.json"
MANIFEST_VERSION = 1
MANIFEST_LIMIT = 64 << 20
"""Bytes of a manifest that is read."""
README = "README.md"
"""At the top of an export, and in the folder of each artifact: written when the export ends, unless the artifact brings its own."""


ANSWERS = "answers"
"""Folder of an export that holds the live model's answers, by which its artifacts can be checked again; no variant's."""
ANSWERS_FILE = "answers.zip"
"""The file in it."""
MOST_ENTRIES = 20_000
"""Entries that a look for exports below a folder takes in."""


def holds_exports(folder: Path, *, itself: bool = True) -> bool:
    """Whether an export lies below a folder, or (`itself`) the folder is one; links are not followed. Looks at a bounded number of
    entries."""
    folders, left = [folder], MOST_ENTRIES
    while folders and left > 0:
        try:
            with os.scandir(inner := folders.pop()) as entries:
                for entry in itertools.islice(entries, left):
                    left -= 1
                    if entry.name == MANIFEST and (itself or inner != folder):
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
        except OSError:
            continue
    return False


def read_manifest(target: Path) -> object:
    """What the manifest of a folder holds. Raises OSError; ValueError for what is none: others may write in an output, a pipe too."""
    handle = os.open(target / MANIFEST, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MANIFEST_LIMIT:
            raise ValueError("is not a regular file, or is too large")
        try:
            return json.loads(stream.read(MANIFEST_LIMIT))
        except RecursionError as error:
            raise ValueError("is nested too deeply") from error


def manifest_of(target: Path) -> dict[str, object]:
    """The manifest of a published export, {} where there is none."""
    try:
        value = read_manifest(target)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
