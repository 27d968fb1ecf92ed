"""Files that one process of this machine holds alone; one that is killed lets go of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, mode: int = 0o666) -> Iterator[int]:
    """Hold a file, made if it is not there, until the end of the block. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def has_name(handle: int, path: Path) -> bool:
    """Whether a file that is held still has that name: who held it before may have renamed or removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
