"""The machine that an export ran on, for the report. Called by `handlers.report.build`; Linux only."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import psutil

from handlers.report.model import Machine

CPU_INFO = Path("/proc/cpuinfo")


def describe() -> Machine:
    """This machine, as the kernel describes it; reads nothing that identifies it beyond its hardware."""
    return Machine(
        cpu=_cpu_model(),
        logical_cores=psutil.cpu_count(logical=True),
        physical_cores=psutil.cpu_count(logical=False),
        memory_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        python=platform.python_version(),
    )


def _cpu_model() -> str | None:
    try:
        found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", CPU_INFO.read_text(), re.MULTILINE)
    except OSError:
        return None
    return found[1].strip() if found else None
