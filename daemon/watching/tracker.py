"""Follows checkpoint directories from the first hint to the journal: the watcher without threads and clocks.

Every method gets the time of a monotonic clock, so that tests can run years in seconds. Scans and events both call `hint`; what was decided
is remembered in the journal by the state it was seen in.
"""

from __future__ import annotations

import errno
import functools
import os
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from daemon.checkpoints.files import Fingerprint, digest_of_fingerprint, fingerprint
from daemon.checkpoints.inspection import Inspection, is_run_alone, refusal_of
from daemon.checkpoints.pinning.pins import Moved
from daemon.checkpoints.readable import closed
from daemon.config.settings import WatchSettings
from daemon.contract.faults.errors import CkptdError, Fault, Retryable, from_oserror
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import is_text
from daemon.journal.file.sqlite_errors import OF_ALL
from daemon.system.filesystems.births import identity_of
from daemon.system.logger import Logger
from daemon.watching.apart import Apart, AtOnce, Pending, is_large
from daemon.watching.decisions import Decisions
from daemon.watching.listing import Listing
from daemon.watching.resting import Incomplete, State
from daemon.watching.scan import Scanner, rules_of
from daemon.watching.taking.examining import Closed, Examined, Examiner, Taken
from daemon.watching.taking.intake import Intake
from daemon.watching.undecided import Undecided

log = Logger("watch")


_path = functools.lru_cache(4096)(Path)
"""A directory that moves is looked at many times."""


class Tracker:
    """Decides when a directory is looked at and what becomes of it."""

    def __init__(
        self, settings: WatchSettings, intake: Intake, taken: Callable[[], None], elsewhere: Collection[str] = (),
        apart: Apart | None = None, linked: Collection[Path] = (),
    ) -> None:  # fmt: skip
        """`taken` is called, in any thread, when a job was entered. `apart` reads and pins; by default that is done at once."""
        self._apart = apart or AtOnce()
        self._settings = settings
        self._intake = intake
        self._taken = taken
        self._decisions = Decisions(intake.journal)
        self._examiner = Examiner(intake, taken, self._decisions.lost_state)
        self._unknown: set[str] = set()
        """Directories that the journal does not know: asking it again at each look costs the most, and what is decided is known here."""
        rules = rules_of(settings, intake.paths.state)
        self._scanner = Scanner(replace(rules, elsewhere=frozenset(elsewhere), linked=frozenset(linked)))
        self.listing = Listing()
        """What people are told of directories that are not taken."""
        self.undecided = Undecided(settings.roots, settings.settle_seconds, intake.journal.sightings, self._is_watched)
        self._settler = self.undecided.settler
        self._scanned: set[Path] = set()
        """Roots of which a scan has ended since the start: the journal says what was passed over before, not why."""
        self.refused: Callable[[Fault | None], object] = lambda fault: None
        """Called with what kept a checkpoint from being pinned."""

    @property
    def links(self) -> dict[Path, tuple[str, ...]]:
        """Root → the links that its last scan saw. May be asked by any thread."""
        return self._scanner.links

    def note_link(self, link: Path) -> None:
        """A link has come: it is known as if the last scan had seen it."""
        root = next((root for root in self._settings.roots if link.is_relative_to(root)), None)
        if root is not None:
            self._scanner.note_link(root, link)

    def next_due(self) -> float | None:
        """When the next look is due; None while nothing moves."""
        return self._settler.next_due()

    def hint(self, changed: str, now: float) -> bool:
        """Something may have changed at the path `changed`; False where it lies in no checkpoint directory."""
        for root in self._settings.roots:
            checkpoint = self._scanner.checkpoint_of(root, changed)
            if checkpoint is not None:
                if str(checkpoint) in self._settler or self._scanner.would_find(root, checkpoint):
                    self._settler.hint(str(checkpoint), now)
                return True
        return False

    def scan(self, root: Path, now: float) -> None:
        """Hint at every checkpoint directory below `root` that is not as the journal knows it."""
        seen, passed, errors, moment = set(), {}, list[OSError](), time.time()
        known = self._intake.journal.sightings.decisions_below(str(root))
        skipped = self._intake.journal.sightings.skipped_below(str(root)) if root not in self._scanned else frozenset()
        for checkpoint, passed_over in self._scanner.find(root, errors.append):
            if passed_over and str(checkpoint) not in known:
                passed[checkpoint] = passed_over
                continue
            seen.add(checkpoint)
            before = known.get(str(checkpoint))
            if before is None:
                self._unknown.add(str(checkpoint))
            if not (self._is_as_it_was(checkpoint, now, moment) or self._decisions.still_stands(checkpoint, before)):
                self._settler.hint(str(checkpoint), now)
            elif str(checkpoint) in skipped:
                self._list_refused(checkpoint)
        self._scanned.add(root)
        self._decisions.keep(root, seen)
        self.listing.note_scan(root, seen, passed, self._scanner.left_out)
        self.listing.note_closed(root, seen, errors)
        for path in {*self.undecided.sighted, *self.listing.incomplete} - seen:
            if path.is_relative_to(root):
                self._settler.hint(str(path), now)  # it may have gone without an event

    def _is_as_it_was(self, path: Path, now: float, moment: float) -> bool:
        """Whether a scan may pass over a directory that is known to be incomplete: no file in it has changed in any way since.

        What changed lately is looked at all the same, since writes through a mapping show late, and so is everything now and then.
        """
        entry = self.listing.incomplete.get(path)
        if entry is None or (not entry.reported and now - entry.since >= self._settings.stale_seconds):
            return False
        if not entry.is_at_rest(path, now):
            return False
        if path in self.undecided.sighted:
            self.undecided.sighted[path].last = moment
        return True

    def _list_refused(self, path: Path) -> None:
        """List a directory whose layout was refused before the start and that has not changed; it has been said already."""
        try:
            refusal = refusal_of(path)
        except Exception:
            return  # a look says what can't be read
        if refusal is not None:
            self.listing.refuse(path, refusal)

    def due(self, now: float) -> list[Path]:
        """The directories whose time to be looked at has come."""
        return [_path(path) for path in self._settler.due(now)]

    def look_at_due(self, now: float) -> None:
        """Look at every directory whose time has come."""
        for path in self.due(now):
            self.look(path, now)

    def look(self, path: Path, now: float) -> None:
        """Look at one directory: has it come to rest, is it whole, and is it to be taken."""
        if not is_text(str(path)):
            self.listing.say_once(
                f"name:{path!r}", Event.CHECKPOINT_NAME, f"The name {str(path)!r} is not UTF-8; rename it to have it exported"
            )
            self._settler.forget(str(path))
            return
        try:
            self._look(path, now)
        except Pending:
            pass  # looked at again when that has ended
        except (FileNotFoundError, NotADirectoryError):
            if self._apart.is_busy(path):
                return  # it may have been pinned in time
            if self._examiner.decided.pop(path, None) is None:
                self.undecided.note_gone(path, now)
            self._apart.forget(path)
            self._forget(path)
        except OSError as error:
            self.listing.note_unreadable(path, closed(path), error)
            self._settler.forget(str(path))
        except MemoryError:
            self.listing.note_unreadable(path, None, _no_memory())
            self._settler.forget(str(path))
        except CkptdError as error:
            if error.fault.code in OF_ALL:
                raise
            self._not_taken(path, error.fault)
        except Exception as error:
            self._not_understood(path, error)

    def _look(self, path: Path, now: float) -> None:
        """Take a directory that is quiet and complete, else remember why not."""
        itself = identity_of(path)  # before its files: it may be renamed meanwhile
        seen = fingerprint(path)
        known = self._known(path)
        if known is None and seen:
            self.undecided.note(path, itself, seen, now)
        if known is not None and self._decisions.covers(path, seen, known):
            self._apart.forget(path)
            if path in self.listing.passed_over and self._intake.journal.sightings.jobs_at(str(path)):
                self.listing.unlist(path)
            self._forget(path)
            return
        quiet = self._settler.looked(str(path), seen, now)
        if quiet is None:
            return
        root, again = next(root for root in self._settings.roots if path.is_relative_to(root)), known is not None
        if self._examiner.decided.get(path, seen) != seen:  # in that state; what is there now has not been
            del self._examiner.decided[path]
            self._unknown.discard(str(path))
            again = True
        try:
            examined = self._apart.do(
                root, path, seen, lambda number: self._examiner.examine(root, path, seen, quiet, now, number, again=again),
                large=is_large(seen),
            )  # fmt: skip
        except Closed as error:
            self.listing.note_unreadable(path, error.fault)
            return  # the next rescan tries again
        self._note(path, examined, root, seen, now)

    def _known(self, path: Path) -> str | None:
        """The state in which the journal knows that a directory was decided upon."""
        if str(path) in self._unknown:
            return None
        known = self._intake.journal.sightings.fingerprint(str(path))
        if known is None:
            self._unknown.add(str(path))
        return known

    def _note(self, path: Path, examined: Examined, root: Path, seen: Fingerprint, now: float) -> None:
        """What follows of a look through a quiet directory."""
        inspection = examined.inspection
        self.listing.open(path)
        if inspection.missing:
            self._note_missing(root, inspection, seen, examined.state, now)
        elif examined.is_part:
            self._forget(path)
        else:
            self.undecided.runs.discard(path)
            if inspection.refusal is not None:
                self._note_refused(path, inspection.layout, inspection.refusal, seen)
            elif (fault := examined.unconfigured) is not None:
                if self.listing.refuse(path, fault):
                    log.warning(fault.sentence(), event_id=Event.CHECKPOINT_REFUSED, path=str(path), code=fault.code)
                self._forget(path)
            elif examined.taken is None:
                self._settler.look_at(str(path), examined.due)
            else:
                self._note_taken(path, examined.taken, now)

    def _not_understood(self, path: Path, error: Exception) -> None:
        """What is in a directory met an error that nobody foresaw: said once and listed, and no other directory waits for it."""
        cause = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        fault = Fault(
            code=FaultCode.UNEXPECTED, operation="look into the checkpoint", path=str(path), cause=ascii(cause)[1:-1],
            remedy="report it with the checkpoint's small JSON files; ckptd checks it again when it changes",
        )  # fmt: skip
        self._not_taken(path, fault, traceback=traceback.format_exc(limit=-8))

    def _not_taken(self, path: Path, fault: Fault, **more: str) -> None:
        """Something keeps a directory from being taken: said once and listed; the next rescan tries again."""
        if self.listing.refuse(path, fault):
            log.error(fault.sentence(), event_id=Event.CHECKPOINT_NOT_UNDERSTOOD, path=str(path), code=fault.code, **more)
        self._forget(path)

    def _note_taken(self, path: Path, taken: Taken, now: float) -> None:
        """What follows of the try to take a checkpoint."""
        if taken.skipped is not None:
            self._settler.hint(str(taken.skipped), now)
        error = taken.error
        if isinstance(error, Moved):
            self._settler.hint(str(path), now)
            return
        if error is not None:
            if isinstance(error, MemoryError):
                error = _no_memory()
            fault = (error if isinstance(error, Retryable) else from_oserror(error, "pin the checkpoint", str(self._intake.pins))).fault
            self.listing.note_delayed(path, fault)
            self.refused(fault)
            self.listing.say_once(f"pin:{path}:{fault.code}", Event.CHECKPOINT_NOT_PINNED, fault.sentence())
            return  # the next rescan tries again
        self._examiner.decided.pop(path, None)
        self._forget(path)
        self.listing.unlist(path)

    def _note_refused(self, path: Path, layout: str | None, refusal: Fault, seen: Fingerprint) -> None:
        """A complete checkpoint is not exported as it is: said, listed and remembered."""
        log.warning(refusal.sentence(), event_id=Event.CHECKPOINT_REFUSED, path=str(path), layout=layout, code=refusal.code)
        self.listing.refuse(path, refusal)
        self._intake.journal.sightings.remember(str(path), digest_of_fingerprint(seen), "skipped")
        self._forget(path)

    def _note_missing(self, root: Path, inspection: Inspection, seen: Fingerprint, state: State | None, now: float) -> None:
        """A quiet directory is not complete: listed, and said once it has been so for long."""
        path = inspection.path
        self.listing.unlist(path)
        if is_run_alone(inspection):
            self.undecided.runs.add(path)
            self.listing.incomplete.pop(path, None)
            return
        self.undecided.runs.discard(path)
        entry = self.listing.incomplete.get(path)
        if entry is None or entry.missing != inspection.missing:
            entry = self.listing.incomplete[path] = Incomplete(inspection.missing, entry.since if entry else now)
            log.debug("quiet, but not complete", event_id=Event.CHECKPOINT_QUIET, path=str(path), missing=list(inspection.missing))
        entry.note(path, state, now)
        if entry.reported or now - entry.since < self._settings.stale_seconds:
            return
        entry.reported = True
        if inspection.claims_done:
            self._forget(path)
            if self._intake.take_damaged(root, inspection, seen):
                self._taken()
        else:
            log.warning(
                "a checkpoint has been incomplete for long",
                event_id=Event.CHECKPOINT_INCOMPLETE,
                path=str(path),
                missing=list(inspection.missing),
                since_seconds=round(now - entry.since),
            )

    def _is_watched(self, path: Path) -> bool:
        root = next((root for root in self._settings.roots if path.is_relative_to(root)), None)
        return root is not None and is_text(str(path)) and self._scanner.why_not(root, path) is None

    def _forget(self, path: Path) -> None:
        self._unknown.discard(str(path))
        self._decisions.decided(path)
        self.undecided.forget(path)
        self.listing.forget(path)


def _no_memory() -> OSError:
    return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
