"""What makes a file or directory itself, under whatever name: its inode and when that was made. A deleted one's number is given out again.

Called by the watcher, to tell a directory that was renamed from one that was deleted. Python's `os.stat` does not give the time.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable
from typing import Any

_BIRTH = 0x800
"""STATX_BTIME, in the request as in the answer."""
_NOT_FOLLOWED, _HERE = 0x100, -100
_SIZE, _TIME_AT = 256, 80
"""Bytes of the kernel's `struct statx`, and where in it the time is: seconds in 8 bytes, nanoseconds in 4."""

Identity = tuple[int, int, int]
"""File system, inode, time of its making in ns."""


def identity_of(path: str | os.PathLike[str]) -> Identity | None:
    """The identity of a file or directory; None where it is gone, or its file system or libc does not tell the time."""
    call, answer = _statx(), ctypes.create_string_buffer(_SIZE)
    if call is None:
        return None
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if call(_HERE, os.fsencode(path), _NOT_FOLLOWED, _BIRTH, answer) != 0 or not struct.unpack_from("I", answer)[0] & _BIRTH:
        return None
    seconds, nanoseconds = struct.unpack_from("qI", answer, _TIME_AT)
    return status.st_dev, status.st_ino, seconds * 10**9 + nanoseconds


@functools.cache
def _statx() -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), "statx", None)
