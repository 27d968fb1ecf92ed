"""What the kernel itself says about a process: its inotify watches, and how often a thread was woken."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

_WATCH = re.compile(r"^inotify wd:\S+ ino:([0-9a-f]+) sdev:", re.MULTILINE)


def instances(pid: int | str = "self") -> list[str]:
    """The descriptors of a process that are inotify instances."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(descriptor) == "anon_inode:inotify":
                found.append(descriptor.name)
        except FileNotFoundError:
            continue
    return found


def watched_below(folder: Path, pid: int | str = "self") -> list[str]:
    """The directories at and below `folder` that the kernel watches for a process, relative to it."""
    inodes = {int(number, 16) for one in instances(pid) for number in _WATCH.findall(Path(f"/proc/{pid}/fdinfo/{one}").read_text())}
    directories = [Path(root) for root, _, _ in os.walk(folder)]
    return sorted(str(one.relative_to(folder)) for one in directories if one.stat().st_ino in inodes)


def wakeups(thread: threading.Thread) -> int:
    """How often a thread of this process has gone to sleep, and so been woken."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)[0])
