"""The machine that an export ran on, for the report. Called by `handlers.report.content.build`; Linux only."""

from __future__ import annotations

import platform

import psutil

from daemon.contract import cpu
from handlers.report.model import Machine


def describe() -> Machine:
    """This machine, as the kernel describes it; reads nothing that identifies it beyond its hardware."""
    processor = cpu.here()
    return Machine(
        cpu=processor.model,
        cpu_features=processor.features,
        logical_cores=psutil.cpu_count(logical=True),
        physical_cores=psutil.cpu_count(logical=False),
        memory_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        architecture=processor.architecture,
        python=platform.python_version(),
    )
