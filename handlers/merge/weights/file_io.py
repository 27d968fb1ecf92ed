"""Moving bytes between files without passing through Python objects: whole reads and writes, copies in the operation.

Called by the streaming merge. No mmap: mapped pages count as resident memory of a process that should stay small.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode

CHUNK = 1 << 24
"""Bytes that one copy moves before progress is told."""


def read_into(descriptor: int, view: memoryview, offset: int, path: Path) -> None:
    """Fill `view` from `offset`; Permanent when the file ends before that."""
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise Permanent(
                FaultCode.TRUNCATED_WEIGHTS,
                "read the weights",
                f"the file ends at byte {offset + done:,} while {len(view) - done:,} more were expected; "
                "it has changed since its header was read",
                "leave the model alone while it is read, or restore it",
                path=path,
            )
        done += count


def write_from(descriptor: int, view: memoryview, offset: int) -> None:
    """Write all of `view` at `offset`."""
    done = 0
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


def copy_range(source: int, target: int, start: int, to: int, size: int, path: Path, moved: Callable[[int], None]) -> None:
    """Copy `size` bytes from `start` of `source` to `to` of `target`, in the operation where the file system lets it.

    `moved` is told the bytes of each step. Permanent when the source ends before that.
    """
    done, operation = 0, True
    while done < size:
        length, count = min(CHUNK, size - done), 0
        if operation:
            try:
                count = os.copy_file_range(source, target, length, start + done, to + done)
            except OSError:
                operation = False  # whatever the reason: if it is a real one, the plain way meets it too
        if not count:
            buffer = memoryview(bytearray(length))
            read_into(source, buffer, start + done, path)
            write_from(target, buffer, to + done)
            count = length
        moved(count)
        done += count
