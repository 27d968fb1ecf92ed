"""Moving bytes between files without passing through Python objects: whole reads and writes, copies in the kernel.

Called by the streaming merge. No mmap: mapped pages count as resident memory of a process that should stay small.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from daemon.errors import Permanent

CHUNK = 1 << 24
"""Bytes that one copy moves before progress is told."""
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EBADF)


def read_into(descriptor: int, view: memoryview, offset: int, path: Path) -> None:
    """Fill `view` from `offset`; Permanent when the file ends before that."""
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise Permanent(
                "truncated-weights",
                "read the base's weights",
                f"the file ends at byte {offset + done:,} while {len(view) - done:,} more were expected; "
                "it has changed since its header was read",
                "leave the base alone while it is merged, or restore it",
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


class Copier:
    """Copies byte ranges between two files at the same offsets, in the kernel as long as the file system lets it."""

    def __init__(self, moved: Callable[[int], None]) -> None:
        self._moved = moved
        self._kernel = True

    def copy(self, source: int, target: int, start: int, end: int, path: Path) -> None:
        """Copy [start, end); `moved` is called with the bytes of each step."""
        while start < end:
            length = min(CHUNK, end - start)
            count = self._in_kernel(source, target, start, length) if self._kernel else 0
            if count == 0:
                buffer = memoryview(bytearray(length))
                read_into(source, buffer, start, path)
                write_from(target, buffer, start)
                count = length
            self._moved(count)
            start += count

    def _in_kernel(self, source: int, target: int, start: int, length: int) -> int:
        """Bytes copied; 0 when this pair of files needs another way."""
        try:
            return os.copy_file_range(source, target, length, start, start)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            self._kernel = False
            return 0
