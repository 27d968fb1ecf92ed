"""Moving bytes between files without passing through Python objects: whole reads and writes, and copies inside the operating system.

Called by the stages that write weights, and by `sources`. Files are not memory-mapped: mapped pages count as resident memory of a process
that should stay small.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode

CHUNK = 1 << 24
"""Bytes of one step of a copy, after which progress is reported."""


@dataclass(frozen=True)
class ByteRange:
    """Bytes of an open file."""

    path: Path
    """Named in errors."""
    descriptor: int
    start: int
    size: int

    def part(self, first: int, size: int) -> ByteRange:
        """`size` of these bytes, from byte `first` of the range on."""
        return ByteRange(self.path, self.descriptor, self.start + first, size)

    def read_ahead(self) -> None:
        """Ask the kernel to read the bytes, so that they are in memory when they are needed."""
        os.posix_fadvise(self.descriptor, self.start, self.size, os.POSIX_FADV_WILLNEED)


class OpenFiles:
    """Files that are read many times: each is opened once, when it is first read, and all are closed together. For several threads."""

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()
        self._descriptors: dict[Path, int] = {}
        self._opening = threading.Lock()

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def read(self, path: Path, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of the file; Permanent when the file ends before that."""
        descriptor = self._descriptors.get(path)
        read_into(self._open(path) if descriptor is None else descriptor, view, offset, path)

    def _open(self, path: Path) -> int:
        with self._opening:
            if path not in self._descriptors:
                self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._closing.callback(os.close, self._descriptors[path])
            return self._descriptors[path]


def read_into(descriptor: int, view: memoryview, offset: int, path: Path) -> None:
    """Fill `view` from `offset`; Permanent when the file ends before that."""
    done = os.preadv(descriptor, [view], offset)
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise Permanent(
                FaultCode.TRUNCATED_WEIGHTS,
                "read the weights",
                f"the file ends at byte {offset + done:,}, but {len(view) - done:,} more bytes were expected; "
                "it has changed since its header was read",
                "do not change the model while it is read, or restore it",
                path=path,
            )
        done += count


def write_from(descriptor: int, view: memoryview, offset: int) -> None:
    """Write all of `view` at `offset`."""
    done = os.pwrite(descriptor, view, offset)
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def create(path: Path, size: int) -> int:
    """A new file of `size` bytes whose blocks are reserved, so that a full disk shows now; gives the descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        path.unlink()
        error.filename = str(path)
        raise
    return descriptor


def copy_range(source: ByteRange, target: int, to: int, moved: Callable[[int], None]) -> None:
    """Copy the bytes to `to` of the file `target`, inside the operating system where the file system supports it.

    `moved` is called with the bytes of each step. Permanent when the source ends before its range does.
    """
    done, by_system = 0, True
    while done < source.size:
        length, count = min(CHUNK, source.size - done), 0
        if by_system:
            try:
                count = os.copy_file_range(source.descriptor, target, length, source.start + done, to + done)
            except OSError:
                by_system = False  # whatever the reason: if it is a real one, reading and writing meets it too
        if not count:
            buffer = memoryview(bytearray(length))
            read_into(source.descriptor, buffer, source.start + done, source.path)
            write_from(target, buffer, to + done)
            count = length
        moved(count)
        done += count
