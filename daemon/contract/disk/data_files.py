"""The files that a setting like `validate.data` names: one file, or those of a folder that hold texts. Found, opened and stamped.

Read by both wings: stages read the texts, and the daemon makes the stamp a part of the stages' keys. In a path with `/./`, what follows
that mark was named by the run itself and is not trusted: it is opened name by name, and no link in it is followed. Only regular files
are opened, and a folder is listed within bounds.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from daemon.contract.disk.answers import ask

MARK = "/./"
"""Between the folder that is trusted and what a run named in it."""
SUFFIXES = (".txt", ".jsonl", ".ndjson", ".json", ".arrow", ".feather", ".parquet", ".csv", ".tsv")
"""How the names of files with texts end."""
NO_TEXTS = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "README.txt"})
"""What lies beside the files of a data set and describes it."""
MOST_FILES = 1024
MOST_ENTRIES = 1 << 14
DEPTH = 3
"""Folders below the named one that are looked into: a data set has one for each split, and a hub's has one more."""
_OTHER = {
    b"\x1f\x8b": "packed by gzip", b"\x28\xb5\x2f\xfd": "packed by zstd", b"PK\x03\x04": "packed by zip", b"\xfd7zXZ": "packed by xz",
    b"BZh": "packed by bzip2", b"SQLite f": "an SQLite database", b"\xff\xfe": "UTF-16 text", b"\xfe\xff": "UTF-16 text",
}  # fmt: skip
"""First bytes of files that hold no rows as they are → what they are."""
EXPECTED = (
    'expected "text", "prompt" and "completion", "messages", "conversations", "instruction" and "output", "question" and "answer",'
    ' "source" and "target", "translation", or a text with "label"'
)
"""Which fields of a row are understood, for people."""
BY_CONTENT = 1 << 20
"""Bytes of all files up to which their contents are the stamp; beyond, sizes and times, as for a base model."""


@dataclass(frozen=True)
class DataFile:
    """One file."""

    place: DataPlace
    parts: tuple[str, ...]
    """Its path below the place's folder."""
    size: int
    modified: int
    """In ns."""

    @property
    def name(self) -> str:
        """For people: the path as it was named."""
        return str(Path(self.place.shown, *self.parts))

    @property
    def suffix(self) -> str:
        """How its name ends, in lower case."""
        return Path(self.name).suffix.lower()

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file for reading. OSError where it can't be opened, or is no regular file by now."""
        with self.place.opened(self.parts) as handle, os.fdopen(os.dup(handle), "rb") as stream:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(None, "it is not a regular file", self.name)
            yield stream


@dataclass(frozen=True)
class DataPlace:
    """Where texts lie: `top` is trusted, and `inner` was named by a run; None where the configuration named all of it."""

    top: Path
    inner: tuple[str, ...] | None = None

    @classmethod
    def of(cls, value: str) -> DataPlace:
        """The place in a setting's value. Raises ValueError where the part that a run named would lead out of its folder."""
        top, mark, rest = value.partition(MARK)
        if not mark:
            return cls(Path(value).expanduser())
        inner = tuple(part for part in rest.split("/") if part not in ("", "."))
        if ".." in inner:
            raise ValueError(f"the path {rest} leads out of the run's folder")
        return cls(Path(top), inner)

    @property
    def shown(self) -> str:
        """The path for people."""
        return str(Path(self.top, *(self.inner or ())))

    @contextmanager
    def opened(self, parts: tuple[str, ...] = ()) -> Iterator[int]:
        """A handle of what lies at `parts` below the place. OSError where the file system, or a link that is not followed, refuses."""
        # Without O_NONBLOCK a named pipe that nobody writes to would stop the reader for good.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        if self.inner is None:
            handle = os.open(Path(self.top, *parts), flags)
        else:
            handle = os.open(self.top, flags | os.O_DIRECTORY)
            for part in (*self.inner, *parts):
                try:
                    inside = os.open(part, flags | os.O_NOFOLLOW, dir_fd=handle)
                finally:
                    os.close(handle)
                handle = inside
        try:
            yield handle
        finally:
            os.close(handle)

    def files(self) -> tuple[DataFile, ...]:
        """The file itself, or those below the folder whose names end as `SUFFIXES`, by name, MOST_FILES at most. OSError where it can't
        be looked at."""
        with self.opened() as handle:
            status = os.fstat(handle)
            if stat.S_ISREG(status.st_mode):
                return (DataFile(self, (), status.st_size, status.st_mtime_ns),)
            if not stat.S_ISDIR(status.st_mode):
                raise OSError(None, "it is neither a regular file nor a folder", self.shown)
        files: list[DataFile] = []
        folders: list[tuple[str, ...]] = [()]
        seen = 0
        while folders:
            folder = folders.pop(0)
            with self.opened(folder) as handle, os.scandir(handle) as entries:
                for entry in entries:
                    seen += 1
                    if seen > MOST_ENTRIES:
                        raise OSError(None, f"the folder holds more than {MOST_ENTRIES:,} files and folders", self.shown)
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if len(folder) < DEPTH:
                            folders.append((*folder, entry.name))
                    elif holds_texts(entry.name) and entry.is_file(follow_symlinks=self.inner is None):
                        state = entry.stat(follow_symlinks=self.inner is None)
                        files.append(DataFile(self, (*folder, entry.name), state.st_size, state.st_mtime_ns))
        return tuple(sorted(files, key=lambda file: file.parts)[:MOST_FILES])


def holds_texts(name: str) -> bool:
    """Whether a file of this name in a data set's folder holds rows: descriptions do not, nor do the caches of the library datasets."""
    return Path(name).suffix.lower() in SUFFIXES and name not in NO_TEXTS and not name.startswith("cache-")


def other_kind(beginning: bytes) -> str | None:
    """Why a file that begins so, with 8 bytes or more, can hold no rows, as a clause; None where it can."""
    kind = next((name for magic, name in _OTHER.items() if beginning.startswith(magic)), None)
    return kind and f"it is {kind}; write its rows as UTF-8 text, for example as .jsonl"


def stamp(value: str) -> list[list[str | int]]:
    """What changes when the files of a setting change: path, size and digest of each, of large ones its time instead; [] without a
    setting. What can't be looked at has a row that says so. Raises TimeoutError, an OSError, where the file system does not answer."""
    return ask(f"texts {value}", partial(_stamp, value)) if value else []


def _stamp(value: str) -> list[list[str | int]]:
    try:
        return stamp_now(value)
    except (OSError, ValueError) as error:
        return [["", type(error).__name__]]


def stamp_now(value: str) -> list[list[str | int]]:
    """The same in the caller's own thread, which waits as long as the file system does. Raises OSError, ValueError."""
    rows: list[list[str | int]] = []
    files = DataPlace.of(value).files()
    small = sum(file.size for file in files) <= BY_CONTENT
    for file in files:
        row: list[str | int] = [os.fsencode("/".join(file.parts)).decode("utf-8", "backslashreplace"), file.size]
        rows.append([*row, _digest(file) if small else file.modified])
    return rows


def _digest(file: DataFile) -> str:
    with file.open() as stream:
        return hashlib.sha256(stream.read(BY_CONTENT + 1)).hexdigest()
