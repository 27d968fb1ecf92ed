"""Processes that end with the one that started them, however that ends (prctl(2))."""

from __future__ import annotations

import ctypes
import signal

_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the thread that started it ends. May be called between fork and exec."""
    _LIBC.prctl(_PDEATHSIG, number)
