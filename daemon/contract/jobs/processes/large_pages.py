"""Memory of the stages in large pages: a variable of glibc, which reads it when a program starts.

Called by `daemon.running.workers.worker`, which gives it to the stages, and by `handlers.child.process`, which takes it away from what a
stage starts itself: the speed of an artifact is measured with the memory that its users have. A model's weights and answers are
many megabytes that are allocated, written once and freed; with pages of 4 KiB an export meets millions of page faults. Where the kernel's
/sys/kernel/mm/transparent_hugepage/enabled says `never`, or the C library has no such variable, it changes nothing.
"""

from __future__ import annotations

NAME = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.hugetlb"
_OURS = f"{_TUNABLE}=0x1"
"""1 asks for large pages by madvise(2). Written in this way nobody else writes it, so that it can be told from what the box's owner set."""


def added(tunables: str) -> str:
    """What NAME holds, and ours; unless it says already how memory is allocated."""
    return tunables if _TUNABLE in tunables else ":".join(filter(None, [tunables, _OURS]))


def removed(tunables: str) -> str:
    """What NAME held before `added`."""
    return ":".join(setting for setting in tunables.split(":") if setting != _OURS)
