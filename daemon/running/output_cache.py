"""Finished outputs that outlive their job, under their resume key: what a retry or a changed configuration need not repeat.

Filled by the runner when a job has ended, asked before a stage starts. It is a cache beside the exports: what an export has published costs
nothing, since the kept output only refers to it (`daemon.publishing.lending`) and is gone when the published file is another one; the
rest is bounded, and all of it goes first when the disk gets short.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from daemon.contract import failpoints
from daemon.contract.files import FileEntry, files_below, fsync_directory, remove_tree, sha256_file, write_atomic
from daemon.contract.jobs.messages import StageResult
from daemon.contract.own_folders import own
from daemon.publishing.lending import FILES, is_as_lent, keep_lent, refer_to_export

RESULT = "result.json"
MOST = 256
"""Outputs that are kept at most: all of them are looked at whenever an export ends, and an export has a few."""


@dataclass(frozen=True)
class KeptFile:
    """A name of a regular file. `size`: bytes; `links`: all names that the file has, wherever they are."""

    inode: tuple[int, int]
    size: int
    links: int


@dataclass(frozen=True)
class CachedOutput:
    """One kept output. `used`: when it was last of use, epoch seconds."""

    key: str
    folder: Path
    files: tuple[KeptFile, ...]
    used: float


class OutputCache:
    """The kept outputs in `folder`, on the file system of the output."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> tuple[Path, StageResult] | None:
        """Folder and result of the output with this key; what is in it is still to be verified."""
        try:
            with self._held() as folder:
                entry = folder / key
                result = StageResult.model_validate_json((entry / RESULT).read_bytes())
                if not is_as_lent(entry / FILES):
                    remove_tree(entry)
                    return None
                refer_to_export(entry)
                os.utime(entry)
        except (OSError, ValidationError):
            return None
        return self._folder / key / FILES, result

    def _held(self, *, make: bool = False) -> AbstractContextManager[Path]:
        """The folder, by a path that leads to it whatever becomes of its name. Raises Permanent where it is not ours, OSError."""
        return own(self._folder.parent.parent, self._folder, make=make)

    def keep(self, key: str, folder: Path, result: StageResult) -> None:
        """Take over the finished output in `folder`; a crash leaves it there, or here whole, or to be removed by `trim`.

        OSError where it can't be taken over; then nothing of it is here.
        """
        if folder.parent == self._folder / key:
            return  # it came from here
        output = self._folder.parent.parent
        top = output if output in folder.parents else folder.parent.parent  # a former configuration's
        with self._held(make=True) as kept, own(top, folder.parent) as around:
            entry, made = kept / key, around / folder.name
            remove_tree(entry)
            try:
                entry.mkdir(parents=True)
                keep_lent(made, entry)
                failpoints.point("kept.lent")
                os.rename(made, entry / FILES)
                failpoints.point("kept.moved")
                refer_to_export(entry)
                write_atomic(entry / RESULT, result.model_dump_json())
                fsync_directory(kept)
            except OSError:
                with contextlib.suppress(OSError):
                    remove_tree(entry)
                raise

    def drop(self, key: str) -> None:
        """Remove an output that is not what its result says."""
        with contextlib.suppress(FileNotFoundError), self._held() as folder:
            remove_tree(folder / key)

    def entries(self) -> list[CachedOutput]:
        """All outputs, those longest unused first."""
        folders = [path for path in self._folder.iterdir() if path.is_dir()] if self._folder.is_dir() else []
        found = [CachedOutput(path.name, path, tuple(_files(path / FILES)), path.stat().st_mtime) for path in folders]
        return sorted(found, key=lambda entry: entry.used)

    def trim(self, budget: int, in_use: Collection[Path]) -> list[str]:
        """Remove the longest unused outputs, till at most MOST are left that hold at most `budget` bytes of their own; gives the keys.

        Of their own is what has no name outside of the kept outputs; a file that several of them share counts once.
        """
        entries = self.entries()
        beyond = len(entries) - MOST
        names = Counter(file.inode for entry in entries for file in entry.files)
        own = {file.inode: file.size for entry in entries for file in entry.files if file.links <= names[file.inode]}
        held, gone = sum(own.values()), []
        for entry in entries:
            whole = (entry.folder / RESULT).is_file() and is_as_lent(entry.folder / FILES)
            if any(entry.folder in folder.parents for folder in in_use):
                continue
            if not whole or beyond > 0 or (held > budget and any(own.get(file.inode) for file in entry.files)):
                self.drop(entry.key)
                beyond -= 1
                names.subtract(file.inode for file in entry.files)
                held = sum(size for inode, size in own.items() if names[inode])
                gone.append(entry.key)
        return gone


def _files(folder: Path) -> Iterator[KeptFile]:
    for path in files_below(folder) if folder.is_dir() and not folder.is_symlink() else ():
        status = os.lstat(path)
        yield KeptFile((status.st_dev, status.st_ino), status.st_size, status.st_nlink)


def is_whole(folder: Path, files: Iterable[FileEntry]) -> bool:
    """Whether an output still has exactly the bytes that were sealed: every file is read."""
    try:
        return all((folder / one.path).stat().st_size == one.size and sha256_file(folder / one.path) == one.sha256 for one in files)
    except OSError:
        return False
