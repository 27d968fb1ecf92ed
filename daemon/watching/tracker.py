"""Follows checkpoint directories from the first hint to the journal: the watcher without threads and clocks.

Every method gets the time of a monotonic clock, so that tests can run years in seconds. Scans and events both call `hint`; what was decided
is remembered in the journal by the state it was seen in.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from daemon.checkpoints.inspection import Fingerprint, Inspection, fingerprint, inspect, is_run_alone, refusal_of, weights_follow_state
from daemon.checkpoints.layouts import PATIENCE_SECONDS
from daemon.checkpoints.names import run_of
from daemon.checkpoints.pins import Moved
from daemon.checkpoints.readable import closed, closed_directory
from daemon.config.settings import WatchSettings
from daemon.contract.away import problem_of_whole
from daemon.contract.errors import CkptdError, Fault, Retryable, from_oserror
from daemon.contract.events import Event
from daemon.contract.fault_codes import FaultCode
from daemon.contract.sharded.dcp import METADATA
from daemon.contract.text import is_text
from daemon.journal.rows import now as wall_clock
from daemon.journal.sqlite_errors import OF_ALL
from daemon.system.births import Identity, identity_of
from daemon.watching.apart import Apart, AtOnce, Pending
from daemon.watching.intake import Intake, digest_of_fingerprint
from daemon.watching.resting import Incomplete, State, state_of
from daemon.watching.scan import Scanner, rules_of
from daemon.watching.settle import Quiet, Settler

log = structlog.get_logger("watch")

_INSPECT, _TAKE = "inspect", "take"
MANY_FILES, MUCH_PARSED, MUCH_READ = 300, 8 << 20, 1 << 30
"""Files of a directory, bytes of its JSON, and bytes of all its files, above which it takes a second and more."""


@dataclass
class Sighting:
    """A checkpoint that has content and is not decided upon: when it was looked at, by the wall clock for people."""

    first: str
    last: str
    since: float
    marks: frozenset[Identity] = frozenset()
    """By what it is known again where it was renamed."""


@dataclass(frozen=True)
class _Taken:
    """What became of the try to take a complete checkpoint."""

    skipped: Path | None
    """A sibling to look at again."""
    error: Moved | OSError | Retryable | MemoryError | None = None
    """Why it was not taken; None where it was, or where `[select]` does not want it."""


class Tracker:
    """Decides when a directory is looked at and what becomes of it."""

    def __init__(
        self, settings: WatchSettings, intake: Intake, taken: Callable[[], None], elsewhere: Collection[str] = (),
        apart: Apart | None = None,
    ) -> None:  # fmt: skip
        """`taken` is called, in any thread, when a job was entered. `apart` reads and pins; by default that is done at once."""
        self._apart = apart or AtOnce()
        self._settings = settings
        self._intake = intake
        self._taken = taken
        self._settler = Settler(settings.settle_seconds)
        self._said: set[str] = set()
        self._undecided: set[str] = set()
        """Directories of which a scan knows that the journal does not: asking it again for each would cost the most."""
        self._sighted: dict[Path, Sighting] = {}
        self._scanner = Scanner(replace(rules_of(settings, intake.paths.state), elsewhere=frozenset(elsewhere)))
        self.incomplete: dict[Path, Incomplete] = {}
        self.unreadable: dict[Path, Fault] = {}
        """Directory that can't be read → why: mostly who lacks which right, and the command. Replaced as a whole, as `_refused`."""
        self._runs: set[Path] = set()
        """Directories of runs with an adapter's configuration and no weights: no checkpoints yet, and none is lost when they go."""
        self._refused: dict[Path, str] = {}
        """Directory in a layout that is not exported → why, and the command. Replaced as a whole, as the next: other threads read them."""
        self._scanned: set[Path] = set()
        """Roots of which a scan has ended since the start: the journal says what was passed over before, not why."""
        self._passed: dict[Path, dict[Path, str]] = {}
        """Root → what its last scan saw and did not take, and what it could not come to."""
        self._taken_in: set[Path] = set()
        """Directories that were taken apart from this thread, which has not noted it yet: one that is gone meanwhile is not lost."""
        self._unpinned: dict[Path, str] = {}
        """Directory that could not be pinned at the last try → why. Replaced as a whole."""
        self.refused: Callable[[Fault | None], object] = lambda fault: None
        """Called with what kept a checkpoint from being pinned."""

    @property
    def passed_over(self) -> dict[Path, str]:
        """Directory that holds a checkpoint → why it is not taken, and what to set. May be read from any thread."""
        return {path: why for group in (self._refused, self._unpinned, *self._passed.values()) for path, why in group.items()}

    def next_due(self) -> float | None:
        """When the next look is due; None while nothing moves."""
        return self._settler.next_due()

    def hint(self, changed: str, now: float) -> bool:
        """Something may have changed at the path `changed`; False where it lies in no checkpoint directory."""
        for root in self._settings.roots:
            checkpoint = self._scanner.checkpoint_of(root, changed)
            if checkpoint is not None:
                if self._scanner.would_find(root, checkpoint):
                    self._settler.hint(str(checkpoint), now)
                return True
        return False

    def scan(self, root: Path, now: float) -> None:
        """Hint at every checkpoint directory below `root` that is not as the journal knows it."""
        found, passed, errors, told = set(), {}, list[OSError](), wall_clock()
        known = self._intake.journal.sightings.fingerprints_below(str(root))
        skipped = self._intake.journal.sightings.skipped_below(str(root)) if root not in self._scanned else frozenset()
        for checkpoint, passed_over in self._scanner.find(root, errors.append):
            if passed_over:
                passed[checkpoint] = passed_over
                continue
            found.add(checkpoint)
            before = known.get(str(checkpoint))
            if before is None:
                self._undecided.add(str(checkpoint))
            if not (self._is_as_it_was(checkpoint, now, told) or _is_as_known(checkpoint, before)):
                self._settler.hint(str(checkpoint), now)
            elif str(checkpoint) in skipped:
                self._list_refused(checkpoint)
        self._scanned.add(root)
        self._note_passed_over(root, found, passed)
        self._note_closed(root, found, errors)
        for path in {*self._sighted, *self.incomplete} - found:
            if root in path.parents:
                self._settler.hint(str(path), now)  # it may have gone without an event

    def _is_as_it_was(self, path: Path, now: float, told: str) -> bool:
        """Whether a scan may pass over a directory that is known to be incomplete: no file in it has changed in any way since.

        What changed lately is looked at all the same, since writes through a mapping show late, and so is everything now and then.
        """
        entry = self.incomplete.get(path)
        if entry is None or (not entry.reported and now - entry.since >= self._settings.stale_seconds):
            return False
        if not entry.is_at_rest(path, now):
            return False
        if path in self._sighted:
            self._sighted[path].last = told
        return True

    def _list_refused(self, path: Path) -> None:
        """List a directory whose layout was refused before the start and that has not changed; it has been said already."""
        try:
            refusal = refusal_of(path)
        except Exception:
            return  # a look says what can't be read
        if refusal is not None:
            self._refused = {**self._refused, path: _why(refusal)}

    def due(self, now: float) -> list[Path]:
        """The directories whose time to be looked at has come."""
        return [Path(path) for path in self._settler.due(now)]

    def look_at_due(self, now: float) -> None:
        """Look at every directory whose time has come."""
        for path in self.due(now):
            self.look(path, now)

    def _note_passed_over(self, root: Path, found: set[Path], passed: dict[Path, str]) -> None:
        """Remember, and say once, what a scan saw and does not take, and what it could not come to. What has gone is no longer listed."""
        for path, why in passed.items():
            self.say_once(f"passed:{path}", Event.CHECKPOINT_NOT_WATCHED, f"Seen, not watched: {path}: {why}")
        if self._scanner.left_out:
            passed = {**passed, root: self._scanner.left_out}
            self.say_once(f"left-out:{root}", Event.WATCH_BOUNDED, f"Not everything is watched: {self._scanner.left_out}")
        else:
            self.unsay(f"left-out:{root}")
        self._refused = {path: why for path, why in self._refused.items() if path in found or root not in path.parents}
        self._passed = {**self._passed, root: passed}

    def look(self, path: Path, now: float) -> None:
        """Look at one directory: has it come to rest, is it whole, and is it to be taken."""
        if not is_text(str(path)):
            self.say_once(f"name:{path!r}", Event.CHECKPOINT_NAME, f"The name {str(path)!r} is not UTF-8; rename it to have it exported")
            self._settler.forget(str(path))
            return
        try:
            itself = identity_of(path)  # before its files: it may be renamed meanwhile
            seen = fingerprint(path)
            known = None if str(path) in self._undecided else self._intake.journal.sightings.fingerprint(str(path))
            if known is None and seen:
                self._note_sighting(path, _marks(path, itself, seen), now)
            if known is not None and known == digest_of_fingerprint(seen):
                self._forget(path)
            elif self._settler.looked(str(path), seen, now) is Quiet.QUIET:
                self._decide(path, seen, now)
        except Pending:
            pass  # looked at again when that has ended
        except (FileNotFoundError, NotADirectoryError):
            if self._apart.is_busy(path):
                return  # it may have been pinned in time
            if path in self._taken_in:
                self._taken_in.discard(path)
            else:
                self._note_gone(path, now)
            self._forget(path)
        except OSError as error:
            self._say_unreadable(path, closed(path), error)
            self._settler.forget(str(path))
        except MemoryError:
            self._say_unreadable(path, None, _no_memory())
            self._settler.forget(str(path))
        except CkptdError as error:
            if error.fault.code in OF_ALL:
                raise
            self._not_taken(path, error.fault)
        except Exception as error:
            self._not_understood(path, error)

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
        if self._refused.get(path) != _why(fault):
            log.error(fault.sentence(), event_id=Event.CHECKPOINT_NOT_UNDERSTOOD, path=str(path), code=fault.code, **more)
            self._refused = {**self._refused, path: _why(fault)}
        self._forget(path)

    def _decide(self, path: Path, seen: Fingerprint, now: float) -> None:
        """A directory is quiet: take it if it is complete, else remember why not."""
        root = next(root for root in self._settings.roots if root in path.parents)
        if (fault := closed(path)) is not None:
            self._say_unreadable(path, fault)
            return  # the next rescan tries again
        if (answer := self._apart.answer(path, _TAKE, seen)) is not None:
            self._note_taken(path, answer[0], now)
            return
        self._taken_in.discard(path)
        state, found = self._apart.do(root, path, _INSPECT, seen, lambda number: _inspect(path), large=_is_large(seen))
        self._open(path)
        if not found.complete:
            self._unlist(path)
        if not found.complete and is_run_alone(found):
            self._runs.add(path)
            self.incomplete.pop(path, None)
            return
        self._runs.discard(path)
        if not found.complete:
            self._note_incomplete(root, found, seen, state, now)
            return
        if found.refusal is not None:
            log.warning(
                found.refusal.sentence(), event_id=Event.CHECKPOINT_REFUSED, path=str(path), layout=found.layout, code=found.refusal.code
            )
            self._refused = {**self._refused, path: _why(found.refusal)}
            self._intake.journal.sightings.remember(str(path), digest_of_fingerprint(seen), "skipped")
            self._forget(path)
            return
        patience = found.patience_seconds
        if weights_follow_state(seen) and self._intake.journal.sightings.fingerprint(str(path)) is not None:
            patience = max(patience, PATIENCE_SECONDS)  # written again: the old state is there, the new one comes last
        if not self._settler.rested(str(path), patience, now):
            return
        taken = self._apart.do(root, path, _TAKE, seen, lambda number: self._take(root, found, seen, number), large=_is_large(seen))
        self._note_taken(path, taken, now)

    def _take(self, root: Path, found: Inspection, seen: Fingerprint, number: int) -> _Taken:
        """Pin a complete checkpoint and enter its job; in any thread, whose `number` gives it a place of its own for that."""
        intake = self._intake.of_thread(number)
        skipped = intake.reconsider(found)
        try:
            job = intake.take(root, found, seen)
        except (Moved, OSError, Retryable, MemoryError) as error:
            return _Taken(skipped, error)
        self._taken_in.add(found.path)
        if job:
            self._taken()
        return _Taken(skipped)

    def _note_taken(self, path: Path, taken: _Taken, now: float) -> None:
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
            where = f"{fault.path}: " if fault.path and fault.path != str(path) else ""
            self._unpinned = {**self._unpinned, path: f"{where}{_why(fault)}"}
            self.refused(fault)
            self.say_once(f"pin:{path}:{fault.code}", Event.CHECKPOINT_NOT_PINNED, fault.sentence())
            return  # the next rescan tries again
        self._taken_in.discard(path)
        self._unlist(path)
        self._forget(path)

    def _unlist(self, path: Path) -> None:
        """What kept a directory from being taken does so no longer."""
        self._refused = {other: why for other, why in self._refused.items() if other != path}

    def _note_incomplete(self, root: Path, found: Inspection, seen: Fingerprint, state: State | None, now: float) -> None:
        path = found.path
        entry = self.incomplete.get(path)
        if entry is None or entry.missing != found.missing:
            entry = self.incomplete[path] = Incomplete(found.missing, entry.since if entry else now)
            log.debug("quiet, but not complete", event_id=Event.CHECKPOINT_QUIET, path=str(path), missing=list(found.missing))
        entry.note(path, state, now)
        if entry.reported or now - entry.since < self._settings.stale_seconds:
            return
        entry.reported = True
        if found.claims_done:
            self._forget(path)
            if self._intake.take_damaged(root, found, seen):
                self._taken()
        else:
            log.warning(
                "a checkpoint has been incomplete for long",
                event_id=Event.CHECKPOINT_INCOMPLETE,
                path=str(path),
                missing=list(found.missing),
                since_seconds=round(now - entry.since),
            )

    def _note_sighting(self, path: Path, marks: frozenset[Identity], now: float) -> None:
        told = wall_clock()
        sighting = self._sighted.setdefault(path, Sighting(told, told, now))
        sighting.last, sighting.marks = told, marks

    def _note_gone(self, path: Path, now: float) -> None:
        """A directory is gone: say so where it was never decided upon. A root that went as a whole, and perhaps left its empty mount
        point, is no loss of one."""
        entry = self._sighted.get(path)
        if entry is None or path in self._runs or all(root not in path.parents or problem_of_whole(root) for root in self._settings.roots):
            return
        if (elsewhere := self._renamed(path, entry.marks)) is not None:
            known = self._sighted.setdefault(elsewhere, entry)
            known.first, known.since = min((known.first, known.since), (entry.first, entry.since), key=lambda one: one[1])
            self._settler.hint(str(elsewhere), now)  # what was decided upon there is forgotten again
            return
        lived = round(now - entry.since, 3)
        log.warning(
            f"The checkpoint {path} was deleted before it could be pinned: first seen {entry.first}, last seen {entry.last}, "
            f"lived {lived:.1f} s; raise save_total_limit or lower watch.settle_seconds", event_id=Event.CHECKPOINT_LOST,
            path=str(path), code=FaultCode.CHECKPOINT_LOST,
        )  # fmt: skip
        self._intake.journal.sightings.add_lost(str(path), entry.first, entry.last, lived)

    def _renamed(self, path: Path, marks: Collection[Identity]) -> Path | None:
        """Where a directory that is gone lives on under another name that is watched, as one that is renamed when it is finished does.

        Looked for beside it, and among what moves: a renaming is followed by a hint at the new name.
        """
        beside: list[str] = []
        with suppress(OSError), os.scandir(path.parent) as entries:
            beside = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for other in map(Path, dict.fromkeys([*beside, *self._settler.moving(), *map(str, self._sighted)])):
            with suppress(OSError):
                if (
                    other != path
                    and not _marks(other, identity_of(other), fingerprint(other)).isdisjoint(marks)
                    and self._is_watched(other)
                ):
                    return other
        return None

    def _is_watched(self, path: Path) -> bool:
        root = next((root for root in self._settings.roots if root in path.parents), None)
        return root is not None and is_text(str(path)) and self._scanner.why_not(root, path) is None

    def _forget(self, path: Path) -> None:
        if path in self._unpinned:
            self._unpinned = {other: why for other, why in self._unpinned.items() if other != path}
        self._open(path)
        self._settler.forget(str(path))
        self._apart.forget(path)
        self._undecided.discard(str(path))
        self._sighted.pop(path, None)
        self.incomplete.pop(path, None)
        self._runs.discard(path)

    def _note_closed(self, root: Path, found: Collection[Path], errors: Sequence[OSError]) -> None:
        """Remember which directories a scan could not list; what can be read again, or is gone, is listed no longer."""
        said = set[Path]()
        for error in errors:
            path = Path(os.fsdecode(error.filename or root))
            fault = closed_directory(path)
            self._say_unreadable(path, fault, error)
            said.add(path)
        for path in [path for path in self.unreadable if path not in said and path not in found and (path == root or root in path.parents)]:
            self._open(path)

    def is_closed(self, root: Path) -> bool:
        """Whether a root can't be come to for want of a right, which is listed then."""
        fault = closed_directory(root)
        if fault is None:
            self._open(root)
        else:
            self._say_unreadable(root, fault)
        return fault is not None

    def _say_unreadable(self, path: Path, fault: Fault | None, error: OSError | None = None) -> None:
        """List a directory that can't be read, and say it once; what no right is lacking for is an error of the disk."""
        if fault is None:
            why = error.strerror if error else ""
            self.say_once(f"read:{path}", Event.CHECKPOINT_UNREADABLE, f"Cannot read {path} ({why}); it is passed over until that changes")
            if error is not None and not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                self.unreadable = {**self.unreadable, path: from_oserror(error, "read the checkpoint", str(path)).fault}
            return
        if self.unreadable.get(path) != fault:
            # One sentence a run: a training that ends with fifty such checkpoints has one cause.
            known = any(run_of(other) == run_of(path) and other != path for other in self.unreadable)
            (log.debug if known else log.warning)(fault.sentence(), event_id=Event.CHECKPOINT_UNREADABLE, path=str(path), code=fault.code)
        self.unreadable = {**self.unreadable, path: fault}

    def _open(self, path: Path) -> None:
        """A directory can be read: whatever was said of it no longer holds."""
        self.unsay(f"read:{path}")
        if path in self.unreadable:
            self.unreadable = {other: why for other, why in self.unreadable.items() if other != path}

    def say_once(self, key: str, event_id: Event, message: str) -> None:
        """Log a warning unless the same `key` has been said already."""
        if key not in self._said:
            self._said.add(key)
            log.warning(message, event_id=event_id)

    def unsay(self, key: str) -> None:
        """The cause of a warning is gone: say it again when it comes back."""
        self._said.discard(key)


def _inspect(path: Path) -> tuple[State | None, Inspection]:
    """What a look into a directory finds, and the state of the directory before it."""
    return state_of(path), inspect(path)


def _marks(path: Path, itself: Identity | None, seen: Fingerprint) -> frozenset[Identity]:
    """What a directory keeps when it is renamed: itself; where its file system does not tell that, its files and when they last changed.

    No inode alone: that of a deleted file is given out again at once. Nobody can set either time.
    """
    if itself is not None:
        return frozenset({itself})
    found = set()
    for name, *_ in seen:
        if name.startswith("../"):
            continue  # the run's, which all its checkpoints have
        with suppress(OSError):
            status = os.lstat(path / name)
            found.add((status.st_dev, status.st_ino, status.st_ctime_ns))
    return frozenset(found)


def _is_large(seen: Fingerprint) -> bool:
    """Whether a directory takes long to read or to pin: many files, much to parse, or much to copy and hash."""
    parsed = sum(size for name, _, size, _ in seen if name.endswith((".json", METADATA)))
    return len(seen) > MANY_FILES or parsed > MUCH_PARSED or sum(size for _, _, size, _ in seen) > MUCH_READ


def _no_memory() -> OSError:
    return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def _why(refusal: Fault) -> str:
    return f"{refusal.cause}; {refusal.remedy}"


def _is_as_known(path: Path, known: str | None) -> bool:
    """Whether a directory is in the state in which it was decided upon; what can't be read is for the look to say."""
    try:
        return known is not None and digest_of_fingerprint(fingerprint(path)) == known
    except OSError:
        return False
