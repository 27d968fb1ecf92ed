"""Watches the roots: observers give hints, rescans give the truth, and both go through the same door.

One thread owns the settler and everything that is decided about a directory. The observer's handler only puts
names into a queue: an exception there would end watchdog's thread without a word.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from daemon.checkpoint import Fingerprint, Inspection, fingerprint, inspect
from daemon.errors import from_oserror
from daemon.intake import Intake, digest_of_fingerprint
from daemon.pin import Moved
from daemon.scan import checkpoint_of, file_system_type, find_checkpoints, is_remote
from daemon.settings import Settings
from daemon.settle import Quiet, Settler

log = structlog.get_logger("watch")

RESCAN = ""
"""The hint that asks for a look at everything."""
SOON = 0.2
"""A directory that appears is scanned this many seconds later, so that a moved tree costs one scan."""
POLL_SECONDS = 2.0
"""Pause between scans of a root that gives no events."""
_OWN_READS = ("opened", "closed_no_write")


class _Hints(FileSystemEventHandler):
    """Turns events into names in a queue; our own reading is no event."""

    def __init__(self, hints: queue.SimpleQueue[str]) -> None:
        self._hints = hints

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in _OWN_READS:
            return
        for path in (event.src_path, event.dest_path):
            if path:
                text = path.decode(errors="surrogateescape") if isinstance(path, bytes) else path
                self._hints.put(text + ("/" if event.is_directory else ""))


@dataclass
class Incomplete:
    """A quiet directory that is not whole."""

    missing: tuple[str, ...]
    since: float
    reported: bool = False


class Watcher:
    """Finds complete checkpoints below the roots and hands them to the intake."""

    def __init__(self, settings: Settings, intake: Intake, taken: Callable[[], None]) -> None:
        self.settings = settings
        self.intake = intake
        self._taken = taken
        self._hints: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._settler = Settler(settings.watch.settle_seconds)
        self._observer: BaseObserver | None = None
        self._roots: dict[Path, tuple[int, int] | None] = dict.fromkeys(settings.watch.roots)
        self._polled = {root: self._must_poll(root) for root in settings.watch.roots}
        self._rescan_at = 0.0
        self._stopping = False
        self._said: set[str] = set()
        self.incomplete: dict[Path, Incomplete] = {}
        self.last_scan = 0.0
        self.thread = threading.Thread(target=self._run, name="watch", daemon=True)

    # Life

    def start(self) -> None:
        """Register the watches, then scan: what appears in between is seen by both."""
        self._observe()
        self.thread.start()

    def stop(self) -> None:
        """End the thread and the observer."""
        self._stopping = True
        self._hints.put(RESCAN)
        self.thread.join(10)
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(5)

    def request_rescan(self) -> None:
        """Look at everything soon; may be called from any thread."""
        self._hints.put(RESCAN)

    def _must_poll(self, root: Path) -> bool:
        backend = self.settings.watch.backend
        return backend == "poll" or (backend == "auto" and is_remote(file_system_type(root)))

    def backend_of(self, root: Path) -> str:
        """"inotify" or "poll": how this root is watched."""  # fmt: skip
        return "poll" if self._polled[root] else "inotify"

    def _observe(self) -> None:
        """Make a fresh observer for all roots that give events. Roots may come later; the rescan sees to that."""
        old, self._observer = self._observer, None
        if old is not None:
            old.stop()
        observer = Observer()
        observer.start()
        handler = _Hints(self._hints)
        for root in self._roots:
            self._roots[root] = _device_and_inode(root)
            if self._polled[root] or self._roots[root] is None:
                continue
            try:
                observer.schedule(handler, str(root), recursive=True)
            except OSError as error:
                self._say_once(f"watch:{root}", f"Cannot watch {root} by events ({error.strerror}); scanning instead. If a limit was hit, "
                               "raise it: sysctl fs.inotify.max_user_watches, fs.inotify.max_user_instances")  # fmt: skip
                self._polled[root] = True
        self._observer = observer

    def _observer_is_sound(self) -> bool:
        """Alive, every emitter alive, and every root still the directory that was registered."""
        if self._observer is None or not self._observer.is_alive() or not all(emitter.is_alive() for emitter in self._observer.emitters):
            return False
        return all(_device_and_inode(root) == known for root, known in self._roots.items())

    # The loop

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._round()
            except Exception:
                log.exception("the watcher met an error and goes on")
                time.sleep(1)

    def _round(self) -> None:
        now = time.monotonic()
        if now >= self._rescan_at:
            self._rescan(now)
        wake_at = min(self._rescan_at, self._settler.next_due() or self._rescan_at)
        try:
            self._take_hint(self._hints.get(timeout=max(0.0, wake_at - time.monotonic())))
            while True:
                self._take_hint(self._hints.get_nowait())
        except queue.Empty:
            pass
        for path in self._settler.due(time.monotonic()):
            self._look(Path(path))

    def _take_hint(self, hint: str) -> None:
        now = time.monotonic()
        if hint == RESCAN:
            self._rescan_at = now
            return
        for root in self._roots:
            checkpoint = checkpoint_of(root, hint)
            if checkpoint is not None:
                if self._would_be_scanned(root, checkpoint):
                    self._settler.hint(str(checkpoint), now)
                return
        if hint.endswith("/"):
            self._rescan_at = min(self._rescan_at, now + SOON)

    def _would_be_scanned(self, root: Path, checkpoint: Path) -> bool:
        """An event must find no more than a scan does: not below the depth, not through links."""
        parts = checkpoint.relative_to(root).parts
        return len(parts) <= self.settings.watch.depth and os.path.realpath(checkpoint) == os.path.join(os.path.realpath(root), *parts)

    def _rescan(self, now: float) -> None:
        """Check the observer, then hint at every checkpoint directory whose state the journal has not decided upon."""
        if not self._observer_is_sound():
            if self.last_scan:
                log.warning("the observer is made again: a root was replaced, or its thread ended")
            self._observe()
        for root in self._roots:
            if self._roots[root] is None:
                self._say_once(f"root:{root}", f"The watched root {root} does not exist yet; it is taken up as soon as it does. "
                               "If the path is wrong, correct watch.roots.")  # fmt: skip
                continue
            self._said.discard(f"root:{root}")
            for checkpoint in find_checkpoints(root, self.settings.watch.depth, self._unreadable):
                self._settler.hint(str(checkpoint), now)
        self.last_scan = time.monotonic()
        pause = min(POLL_SECONDS, self.settings.watch.rescan_seconds) if any(self._polled.values()) else self.settings.watch.rescan_seconds
        self._rescan_at = self.last_scan + pause

    def _look(self, path: Path) -> None:
        if not _is_text(str(path)):
            self._say_once(f"name:{path!r}", f"The name {str(path)!r} is not UTF-8; rename it to have it exported")
            self._settler.forget(str(path))
            return
        try:
            seen = fingerprint(path)
            known = self.intake.journal.seen(str(path))
            if known is not None and known == digest_of_fingerprint(seen):
                self._forget(path)
            elif self._settler.looked(str(path), seen, time.monotonic()) is Quiet.QUIET:
                self._decide(path, seen)
        except (FileNotFoundError, NotADirectoryError):
            self._forget(path)
        except OSError as error:
            self._unreadable(error)
            self._settler.forget(str(path))

    def _decide(self, path: Path, seen: Fingerprint) -> None:
        """A directory is quiet: take it if it is complete, else remember why not."""
        root = next(root for root in self._roots if root in path.parents)
        found = inspect(path)
        if not found.complete:
            self._note_incomplete(root, found, seen)
            return
        try:
            job = self.intake.take(root, found, seen)
        except Moved:
            self._settler.hint(str(path), time.monotonic())
            return
        except OSError as error:
            problem = from_oserror(error, "pin the checkpoint")
            self._say_once(f"pin:{path}:{error.errno}", problem.fault.sentence())
            return  # the next rescan tries again
        self._forget(path)
        if job:
            self._taken()

    def _note_incomplete(self, root: Path, found: Inspection, seen: Fingerprint) -> None:
        now, path = time.monotonic(), found.path
        entry = self.incomplete.get(path)
        if entry is None or entry.missing != found.missing:
            entry = self.incomplete[path] = Incomplete(found.missing, entry.since if entry else now)
            log.debug("quiet, but not complete", path=str(path), missing=list(found.missing))
        if entry.reported or now - entry.since < self.settings.watch.stale_seconds:
            return
        entry.reported = True
        if found.claims_done:
            self._forget(path)
            if self.intake.take_damaged(root, found, seen):
                self._taken()
        else:
            log.warning("a checkpoint has been incomplete for long", path=str(path), missing=list(found.missing),
                        since_seconds=round(now - entry.since))  # fmt: skip

    def _forget(self, path: Path) -> None:
        self._settler.forget(str(path))
        self.incomplete.pop(path, None)

    def _unreadable(self, error: OSError) -> None:
        self._say_once(f"read:{error.filename}", f"Cannot read {error.filename} ({error.strerror}); it is passed over until that changes")

    def _say_once(self, key: str, message: str) -> None:
        if key not in self._said:
            self._said.add(key)
            log.warning(message)


def _is_text(name: str) -> bool:
    """Whether a path can be written into a journal and a report: Python marks bytes that are no UTF-8 as surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _device_and_inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino)
