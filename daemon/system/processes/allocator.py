"""How the C library's allocator gives memory back: for a process that runs for months and now and then needs much for a moment.

glibc keeps what a thread has freed in that thread's own arena, and after the first free of a large block it takes blocks up to that size
from there too: the daemon kept some twenty MB after the first checkpoint of a real size. Called once, before the first thread begins.
"""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""
LARGE = 128 << 10
"""Bytes from which a block is mapped for itself and given back when it is freed; setting it keeps glibc from raising it."""
ARENAS = 2


def give_back_early() -> bool:
    """Have freed memory given back to the system; says whether this C library can be told so."""
    if platform.libc_ver()[0] != "glibc":
        return False
    tell = ctypes.CDLL(None).mallopt
    return all(tell(name, value) == 1 for name, value in ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, LARGE), (M_ARENA_MAX, ARENAS)))
