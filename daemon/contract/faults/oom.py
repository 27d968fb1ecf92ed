"""What the kernel says of processes that it killed for want of memory."""

from __future__ import annotations

from pathlib import Path


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since boot, on this machine or in any control group of it; 0 where it
    doesn't tell. The row `oom_kill` of proc_vmstat(5)."""
    try:
        rows = Path("/proc/vmstat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)
