"""Whether this process's user may read a checkpoint; where not, who lacks which right on which path, and the command that mends it.

Called by the watcher before it looks into a quiet directory, by `ckptd export`, `explain` and `check`.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from daemon.checkpoints.files import look_at
from daemon.checkpoints.names import run_of
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.system.filesystems import access
from daemon.system.filesystems.access import Denial

_OPERATION = "read the checkpoint"


def closed(path: Path) -> Fault | None:
    """Why the daemon's user can't read the checkpoint in the directory `path`, with the command that mends it; None where it can."""
    denial = _denial(path)
    return None if denial is None else _fault(path, denial, access.remedy(denial, run_of(path)))


def closed_directory(path: Path) -> Fault | None:
    """The same for a directory in which checkpoints are looked for; None for what is no directory, since no right would change that."""
    if os.path.exists(path) and not os.path.isdir(path):
        return None
    denial = access.denial(path, "list")
    return None if denial is None else _fault(path, denial, access.remedy(denial, path))


def closed_to_me(path: Path) -> Fault | None:
    """The same for a checkpoint, or a file in one, that the user who types a command names."""
    denial = _denial(path)
    if denial is None:
        return None
    give = " && ".join(f"sudo {command}" for command in access.commands(denial, path))
    owner = f"do it as {denial.owner} (`sudo -u {shlex.quote(denial.owner)} …`), or " if denial.owner else ""
    return _fault(path, denial, f"{owner}give {denial.user} access" + (f": `{give}`" if give else ""))


def _fault(path: Path, denial: Denial, remedy: str) -> Fault:
    return Fault(code=FaultCode.NO_PERMISSION, operation=_OPERATION, cause=denial.cause, remedy=remedy, path=str(path))


def _denial(path: Path) -> Denial | None:
    is_folder = os.path.isdir(path)
    denial = access.denial(path, "list" if is_folder else "read")  # what lies above it comes first
    if denial is not None or not is_folder:
        return denial
    try:
        look = look_at(path)
        return access.denial_below(path, sorted(look.names | look.beside))
    except OSError:
        return None  # gone meanwhile: whoever reads it says so
