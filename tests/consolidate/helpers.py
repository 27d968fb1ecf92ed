"""The stage `consolidate` in this process, on a pin made as the daemon makes one."""

from __future__ import annotations

from pathlib import Path

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.inspection import inspect
from daemon.checkpoints.pinning.pins import make_pin
from handlers.child.progress import StageOutput
from handlers.consolidate import stage
from tests.merge import helpers


def pinned(checkpoint: Path, pin: Path) -> Path:
    """The checkpoint's pin, made the way of the intake."""
    make_pin(checkpoint, pin, fingerprint(checkpoint), borrowed=inspect(checkpoint).borrowed)
    return pin


def consolidate(pin: Path, base: Path | None, work: Path) -> tuple[Path, StageOutput]:
    """The folder that the stage writes below the new folder `work`, and what it says."""
    context = helpers.context(work, pin, base)
    Path(context.temporary).mkdir(parents=True, exist_ok=True)
    return Path(context.staging), stage.run(context, helpers.reporter())
