"""Files that nobody but this user may read: what the daemon and its children write, until something of it is published on purpose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PRIVATE = 0o077
_inherited: int | None = None


@contextmanager
def private_files() -> Iterator[None]:
    """Inside, what this process and its children make is readable by this user alone. For the one thread that starts a program."""
    global _inherited
    before, _inherited = _inherited, inherited_umask()
    old = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(old)
        _inherited = before


def inherited_umask() -> int:
    """The umask that this process was started with, whatever it is now."""
    if _inherited is not None:
        return _inherited
    umask = os.umask(PRIVATE)
    os.umask(umask)
    return umask
