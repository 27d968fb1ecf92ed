"""Watches the roots: observers give hints, rescans are reliable, and both are handled by the same code.

One thread owns the tracker, the observers, and everything that is decided about a directory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from daemon.config.settings import Settings
from daemon.system.rounds import Complaints
from daemon.watching.inotify import Hint, Hints, Kind
from daemon.watching.intake import Intake
from daemon.watching.observers import Observers, innermost_first
from daemon.watching.tracker import Tracker

log = structlog.get_logger("watch")

CHECK_SECONDS = 1.5
"""Pause between two checks whether the watches can still be trusted: a few stats."""
POLL_SECONDS = 2.0
"""Pause between scans of a root that gives no events, longer where a scan takes long: it may cost a twentieth of the time."""
POLL_SHARE = 20
BATCH = 10_000
"""Hints taken in one round, so that a storm of events can't keep due looks and rescans waiting."""


class Watcher:
    """Finds complete checkpoints below the roots and hands them to the intake."""

    def __init__(self, settings: Settings, intake: Intake, taken: Callable[[], None]) -> None:
        # A checkpoint below two roots belongs to the inner one, and the tracker takes the first that fits.
        self._settings = settings.watch.model_copy(update={"roots": tuple(innermost_first(settings.watch.roots))})
        self._hints: Hints = queue.SimpleQueue()
        self.tracker = Tracker(self._settings, intake, taken)
        self._observers = Observers(self._settings, self._hints, self.tracker.say_once)
        self._rescan_at = self._poll_at = self._check_at = 0.0
        self._stopping = threading.Event()
        self.last_scan = time.monotonic()
        """When a scan last ended; the first one has as long as any other before it is missed."""
        self.thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Register the watches, then scan: what appears in between is seen by both."""
        self._observers.renew()
        self.thread.start()

    def stop(self) -> None:
        """End the thread and the observers."""
        self._stopping.set()
        self._hints.put(Hint(Kind.LOOK))
        self.thread.join(10)
        self._observers.stop()

    def backend_of(self, root: Path) -> str:
        """"inotify" or "poll": how this root is watched."""  # fmt: skip
        return self._observers.backend_of(root)

    def _run(self) -> None:
        complaints = Complaints(log, "the watcher")
        while not self._stopping.is_set():
            if not complaints.during(self._round):
                self._stopping.wait(1)

    def _round(self) -> None:
        now = time.monotonic()
        if now >= self._check_at:
            self._check(now)
        if now >= self._rescan_at:
            self._rescan(now)
        elif now >= self._poll_at:
            self._poll(now)
        times = (self._check_at, self._rescan_at, self._poll_at, self.tracker.next_due() or self._rescan_at)
        self._take_hints(max(0.0, min(times) - time.monotonic()))
        if not self._stopping.is_set():
            self.tracker.look_at_due(time.monotonic())

    def _take_hints(self, patience: float) -> None:
        """Wait for a hint and take it with those that came at the same time; the same directory said twice is said once."""
        changed: set[str] = set()
        try:
            hint = self._hints.get(timeout=patience)
            for _ in range(BATCH):
                if hint.kind is not Kind.CHANGED:
                    self._take_hint(hint)
                elif hint.path not in changed:
                    changed.add(hint.path)
                    self.tracker.hint(hint.path, time.monotonic())
                hint = self._hints.get_nowait()
        except queue.Empty:
            pass

    def _take_hint(self, hint: Hint) -> None:
        if hint.kind is Kind.LOOK:
            self._rescan_at = self._check_at = time.monotonic()
            return
        # What is there now may not be what the event was about, so the order of events does not matter.
        self._observers.uncover(hint.path)
        for path in self._observers.cover(hint.path):
            self.tracker.hint(path, time.monotonic())
        if self._observers.polled():  # a limit may just have been hit
            self._poll_at = min(self._poll_at, time.monotonic() + POLL_SECONDS)

    def _check(self, now: float) -> None:
        """Watch everything afresh, and look at everything, when the watches can't be trusted any more."""
        reason = self._observers.why_unsound()
        self._check_at = now + CHECK_SECONDS
        if reason is not None:
            log.warning("everything is watched afresh and looked at", because=reason)
            self._observers.renew()
            self._rescan_at = now

    def _rescan(self, now: float) -> None:
        """See to it that everything is watched, then hint at every checkpoint directory."""
        for root in self._observers.roots:
            self._observers.cover(str(root))
        self._scan(self._observers.roots, now)
        self.last_scan = time.monotonic()
        self._rescan_at = self.last_scan + self._settings.rescan_seconds
        self._plan_poll(self.last_scan - now)

    def _poll(self, now: float) -> None:
        """Scan the roots that give no events."""
        self._scan(self._observers.polled(), now)
        self._plan_poll(time.monotonic() - now)

    def _plan_poll(self, took: float) -> None:
        pause = max(POLL_SECONDS, POLL_SHARE * took) if self._observers.polled() else self._settings.rescan_seconds
        self._poll_at = time.monotonic() + min(pause, self._settings.rescan_seconds)

    def _scan(self, roots: Iterable[Path], now: float) -> None:
        for root in roots:
            if self._observers.roots[root] is None and self.tracker.is_closed(root):
                continue
            if self._observers.roots[root] is None:
                self.tracker.say_once(f"root:{root}", f"The watched root {root} does not exist yet; it is taken up as soon as it does. "
                                      "If the path is wrong, correct watch.roots.")  # fmt: skip
                continue
            self.tracker.unsay(f"root:{root}")
            self.tracker.scan(root, now)
