"""Looks through a quiet directory and, where nothing speaks against it, takes it: one piece of work, which any thread can do.

Asked by the tracker, which notes what came of it. Whoever may not read the directory is told before anything in it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.checkpoints.files import Fingerprint, weights_follow_state
from daemon.checkpoints.inspection import Inspection, why_unconfigured
from daemon.checkpoints.layouts import PATIENCE_SECONDS
from daemon.checkpoints.parts import belongs_to
from daemon.checkpoints.pinning.pins import Moved
from daemon.checkpoints.readable import closed
from daemon.contract.faults.errors import Fault, Retryable
from daemon.watching.entries import names_in
from daemon.watching.resting import State, look_through
from daemon.watching.taking.intake import Intake


@dataclass(frozen=True)
class Taken:
    """What became of the try to take a complete checkpoint."""

    skipped: Path | None
    """A sibling to look at again."""
    error: Moved | OSError | Retryable | MemoryError | None = None
    """Why it was not taken; None where it was, or where `[select]` does not want it."""


@dataclass(frozen=True)
class Examined:
    """What a look through a quiet directory gave."""

    state: State | None
    """Of its entries, before it was looked through."""
    inspection: Inspection
    is_part: bool
    """Since it was seen, a better form of the same step was written."""
    unconfigured: Fault | None
    """Why nothing says which model it is of."""
    due: float
    """When it has been quiet for long enough, by the tracker's clock."""
    taken: Taken | None = None
    """None where it was not tried."""


class Closed(Exception):
    """This user may not read a directory."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.sentence())
        self.fault = fault


class Examiner:
    """Examines directories, each of which one thread works on at a time."""

    def __init__(self, intake: Intake, entered: Callable[[], None], remains: Callable[[Inspection, Fingerprint], str]) -> None:
        """`entered` is called when a job was. `remains`: why a directory is what is left of a checkpoint that was taken, "" where it is
        not; called from any thread."""
        self._intake, self._entered, self._remains = intake, entered, remains
        self.decided: dict[Path, Fingerprint] = {}
        """Directories that were decided upon and of which the tracker has not noted it yet, with their states."""

    def examine(self, root: Path, path: Path, seen: Fingerprint, quiet: float, now: float, number: int, *, again: bool) -> Examined:
        """Look through a directory below `root` that has been in the state `seen` until `now`, and quiet since `quiet`.

        `again`: another state of it was decided upon before. `number`: of the thread, which gives it a place of its own to pin.
        Raises Closed, and OSError when it is gone or can't be read.
        """
        if (fault := closed(path)) is not None:
            raise Closed(fault)
        state, inspection = look_through(path)
        if not inspection.missing and (why := self._remains(inspection, seen)):
            inspection = replace(inspection, missing=(why,))
        is_part = not inspection.missing and bool(belongs_to(str(path), path.name, names_in(path)))
        unconfigured = why_unconfigured(inspection, self._intake.settings.base.map)
        patience = inspection.patience_seconds
        if again and weights_follow_state(seen):
            patience = max(patience, PATIENCE_SECONDS)  # the old state is there, the new one comes last
        examined = Examined(state, inspection, is_part, unconfigured, quiet + patience)
        if inspection.missing or is_part or inspection.refusal or unconfigured or now < examined.due:
            return examined
        return replace(examined, taken=self._take(root, inspection, seen, number))

    def _take(self, root: Path, inspection: Inspection, seen: Fingerprint, number: int) -> Taken:
        intake = self._intake.of_thread(number)
        skipped = intake.reconsider(inspection)
        try:
            job = intake.take(root, inspection, seen)
        except (Moved, OSError, Retryable, MemoryError) as error:
            return Taken(skipped, error)
        self.decided[inspection.path] = seen
        if job:
            self._entered()
        return Taken(skipped)
