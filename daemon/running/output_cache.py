"""Finished outputs that outlive their job, under their resume key: what a retry or a changed configuration need not repeat.

Filled by the runner when a job has ended, asked before a stage starts. It is a cache beside the exports: what a
published export shares by hard link costs nothing, the rest is bounded, and all of it goes first when the disk gets short.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from daemon.contract.files import FileEntry, fsync_directory, remove_tree, sha256_file, walk, write_atomic
from daemon.contract.jobs.messages import StageResult

RESULT = "result.json"
FILES = "files"
MOST = 256
"""Outputs that are kept at most: all of them are looked at whenever an export ends, and an export has a few."""


@dataclass(frozen=True)
class CachedOutput:
    """One kept output. `size`: bytes that it alone holds on the disk; `used`: when it was last of use, epoch seconds."""

    key: str
    folder: Path
    size: int
    used: float


class OutputCache:
    """The kept outputs in `folder`, on the file system of the output."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> tuple[Path, StageResult] | None:
        """Folder and result of the output with this key; what is in it is still to be verified."""
        entry = self._folder / key
        try:
            result = StageResult.model_validate_json((entry / RESULT).read_bytes())
            os.utime(entry)
        except (OSError, ValidationError):
            return None
        return entry / FILES, result

    def keep(self, key: str, folder: Path, result: StageResult) -> None:
        """Take over the finished output in `folder`; a crash leaves it there, or here whole, or to be removed by `trim`.

        OSError where it can't be taken over; then nothing of it is here.
        """
        entry = self._folder / key
        if folder.parent == entry:
            return  # it came from here
        remove_tree(entry)
        try:
            entry.mkdir(parents=True)
            os.rename(folder, entry / FILES)
            write_atomic(entry / RESULT, result.model_dump_json())
            fsync_directory(self._folder)
        except OSError:
            with contextlib.suppress(OSError):
                remove_tree(entry)
            raise

    def drop(self, key: str) -> None:
        """Remove an output that is not what its result says."""
        remove_tree(self._folder / key)

    def entries(self) -> list[CachedOutput]:
        """All outputs, those longest unused first."""
        folders = [path for path in self._folder.iterdir() if path.is_dir()] if self._folder.is_dir() else []
        found = [CachedOutput(path.name, path, _own_bytes(path), path.stat().st_mtime) for path in folders]
        return sorted(found, key=lambda entry: entry.used)

    def trim(self, budget: int, in_use: Collection[Path]) -> list[str]:
        """Remove the longest unused outputs, till at most MOST are left that hold at most `budget` bytes of their own; gives the keys."""
        entries = self.entries()
        beyond = len(entries) - MOST
        held, gone = sum(entry.size for entry in entries), []
        for entry in entries:
            whole = (entry.folder / RESULT).is_file()
            if any(entry.folder in folder.parents for folder in in_use):
                continue
            if not whole or beyond > 0 or (held > budget and entry.size):
                remove_tree(entry.folder)
                beyond -= 1
                held -= entry.size
                gone.append(entry.key)
        return gone


def _own_bytes(folder: Path) -> int:
    """Bytes below `folder` that no other name holds."""
    total = 0
    for directory, _, names in walk(folder):
        for name in names:
            status = os.lstat(os.path.join(directory, name))
            total += status.st_size if status.st_nlink == 1 else 0
    return total


def is_whole(folder: Path, files: Iterable[FileEntry]) -> bool:
    """Whether an output still has exactly the bytes that were sealed: every file is read."""
    try:
        return all((folder / one.path).stat().st_size == one.size and sha256_file(folder / one.path) == one.sha256 for one in files)
    except OSError:
        return False
