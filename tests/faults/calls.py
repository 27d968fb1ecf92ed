"""The system calls that can be made to fail, by kind, for the two processors that ckptd is tested on.

Read by `tests.faults.layer`. Each call says where it names what it works on: `fdN` a descriptor in argument N, `pathN`
a path in argument N, `atN` a folder's descriptor in argument N with a path after it.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One system call: its kind, its numbers (None: that processor has none), where it names its objects."""

    kind: str
    x86_64: int | None
    aarch64: int | None
    names: tuple[str, ...]
    flags: str = ""
    """Where an opening says how: `argN`, or `structN` behind a pointer."""


CALLS = (
    Call("write", 1, 64, ("fd0",)),
    Call("write", 18, 68, ("fd0",)),  # pwrite64
    Call("write", 20, 66, ("fd0",)),  # writev
    Call("write", 296, 70, ("fd0",)),  # pwritev
    Call("write", 328, 287, ("fd0",)),  # pwritev2
    Call("write", 326, 285, ("fd2",)),  # copy_file_range
    Call("write", 40, 71, ("fd0",)),  # sendfile
    Call("fsync", 74, 82, ("fd0",)),
    Call("fsync", 75, 83, ("fd0",)),  # fdatasync
    Call("rename", 82, None, ("path0", "path1")),
    Call("rename", 264, 38, ("at0", "at2")),  # renameat
    Call("rename", 316, 276, ("at0", "at2")),  # renameat2
    Call("link", 86, None, ("path1",)),
    Call("link", 265, 37, ("at2",)),  # linkat
    Call("symlink", 88, None, ("path1",)),
    Call("symlink", 266, 36, ("at1",)),  # symlinkat
    Call("mkdir", 83, None, ("path0",)),
    Call("mkdir", 258, 34, ("at0",)),  # mkdirat
    Call("open", 2, None, ("path0",), "arg1"),
    Call("open", 257, 56, ("at0",), "arg2"),  # openat
    Call("open", 437, 437, ("at0",), "struct2"),  # openat2
    Call("unlink", 87, None, ("path0",)),
    Call("unlink", 84, None, ("path0",)),  # rmdir
    Call("unlink", 263, 35, ("at0",)),  # unlinkat
    Call("truncate", 77, 46, ("fd0",)),  # ftruncate
    Call("truncate", 76, 45, ("path0",)),
    Call("truncate", 285, 47, ("fd0",)),  # fallocate
)
KINDS = (*dict.fromkeys(call.kind for call in CALLS), "open-to-write")
"""`open-to-write` is every `open` that may write or create."""

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}


@dataclass(frozen=True)
class Processor:
    """What the filter must know about this machine."""

    audit: int
    seccomp: int
    calls: dict[int, Call]


def this_processor() -> Processor:
    """Raises RuntimeError where the table has no numbers."""
    name = platform.machine()
    if name not in _AUDIT:
        raise RuntimeError(f"System calls can be made to fail on {' and '.join(_AUDIT)} only; this machine is {name}.")
    numbered = {number: call for call in CALLS if (number := getattr(call, name)) is not None}
    return Processor(_AUDIT[name], _SECCOMP[name], numbered)
