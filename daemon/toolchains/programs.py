"""Programs of this box that a toolchain needs and can't bring: which are missing, and how they come. Looks along PATH and runs nothing.

Called by `registry` and `build`. What is needed is a table: the package that brings a program on Debian and Ubuntu → the names that it may
have, of which one is enough.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode

if TYPE_CHECKING:
    from daemon.toolchains.registry import Definition

Needed = Mapping[str, tuple[str, ...]]


def missing(needed: Needed) -> tuple[str, ...]:
    """The packages none of whose programs are found."""
    return tuple(package for package, names in needed.items() if not any(map(shutil.which, names)))


def remedy(needed: Needed) -> str:
    """How what is missing is installed."""
    lost = missing(needed)
    return f"install {listed(lost)} (on Debian and Ubuntu: `apt-get install {' '.join(lost)}`)"


def listed(packages: Iterable[str]) -> str:
    """Their names as words of a sentence."""
    *first, last = packages
    return f"{', '.join(first)} and {last}" if first else last


def check(definition: Definition, operation: str) -> None:
    """Raises Permanent where installing the toolchain would fail for want of a program, or it would not work: nothing is fetched for it."""
    needed = definition.programs | definition.installers
    if lost := missing(needed):
        raise Permanent(FaultCode.INSTALL_FAILED, operation, f"this box has no {listed(lost)}, which it needs", remedy(needed))
