"""Where things are put on a box that says nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from daemon.system.filesystems.disks import nearest_existing

SYSTEM_OUTPUT = Path("/srv/exports")


def output_beside(roots: Sequence[Path], *, system: bool) -> Path:
    """A folder for exports that lies in no root: of the system's service the usual one, else `exports` beside the first root, by name,
    where this user may make it, else `exports` in the home. The same roots in any order, there or not yet, give the same folder."""
    if system and not _inside(SYSTEM_OUTPUT, roots):
        return SYSTEM_OUTPUT
    for root in sorted(roots):
        beside = root.parent / "exports"
        if os.access(nearest_existing(root.parent), os.W_OK | os.X_OK) and not _inside(beside, roots):
            return beside
    return Path.home() / "exports"


def _inside(folder: Path, roots: Sequence[Path]) -> bool:
    return any(folder.is_relative_to(root) or root.is_relative_to(folder) for root in roots)
