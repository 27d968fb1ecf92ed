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

_INODE, _BIRTH = 0x100, 0x800
"""STATX_INO and STATX_BTIME, in the request as in the answer."""
_NOT_FOLLOWED, _HERE = 0x100, -100
_SIZE, _ANSWER = 256, struct.Struct("I28xQ40xqI44xII")
"""Bytes of the kernel's `struct statx`, and what of it is read: what is known, inode, seconds and nanoseconds, major and minor number."""

Identity = tuple[int, int, int]
"""File system, inode, time of its making in ns."""


def identity_of(path: str | os.PathLike[str]) -> Identity | None:
    """The identity of a file or directory; None where it is gone, or its file system or libc does not tell the time."""
    call, answer = _statx(), ctypes.create_string_buffer(_SIZE)
    if call is None:
        return None
    if call(_HERE, os.fsencode(path), _NOT_FOLLOWED, _INODE | _BIRTH, answer) != 0:
        return None
    known, inode, seconds, nanoseconds, major, minor = _ANSWER.unpack_from(answer)
    if not known & _BIRTH:
        return None
    return os.makedev(major, minor), inode, seconds * 10**9 + nanoseconds


@functools.cache
def _statx() -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), "statx", None)
