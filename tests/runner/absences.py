"""Ways in which a path goes away, and comes back."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_VERSION_3, _OVERRIDE, _SEARCH = 0x20080522, 1, 2
"""Of capabilities(7): the version of the call, and the bits of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
WAYS = ("away", "unreadable", "dangling")


@contextlib.contextmanager
def without_override() -> Iterator[None]:
    """In this thread, and in those that it begins meanwhile, modes count for root as for everybody else."""
    library = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert library.capget(header, data) == 0
    effective = data[0]
    data[0] = effective & ~(1 << _OVERRIDE | 1 << _SEARCH)
    assert library.capset(header, data) == 0
    try:
        yield
    finally:
        data[0] = effective
        assert library.capset(header, data) == 0


def leave(path: Path, way: str) -> None:
    """Let a path go away."""
    if way == "unreadable":
        path.chmod(0)
        return
    path.rename(_aside(path))
    if way == "dangling":
        path.symlink_to(path.with_name("nowhere"))


def come_back(path: Path, way: str) -> None:
    """Let it come back as it was."""
    if way == "unreadable":
        path.chmod(0o755)
        return
    if way == "dangling":
        path.unlink()
    os.rename(_aside(path), path)


def _aside(path: Path) -> Path:
    return path.parents[1] / f"aside-{path.name}"
