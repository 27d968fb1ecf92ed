"""Watches the roots: observers give hints, rescans give the truth, and both go through the same door.

One thread owns the tracker, the observers, and everything that is decided about a directory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from daemon.intake import Intake
from daemon.observe import Observers
from daemon.settings import Settings
from daemon.tracker import Tracker

log = structlog.get_logger("watch")

RESCAN = ""
"""The hint that asks for a look at everything."""
SOON = 0.2
"""A directory that appears is scanned this many seconds later, so that a moved tree costs one scan."""
POLL_SECONDS = 2.0
"""Pause between scans of a root that gives no events."""


class Watcher:
    """Finds complete checkpoints below the roots and hands them to the intake."""

    def __init__(self, settings: Settings, intake: Intake, taken: Callable[[], None]) -> None:
        self._settings = settings.watch
        self._hints: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.tracker = Tracker(settings.watch, intake, taken)
        self._observers = Observers(settings.watch, self._hints, self.tracker.say_once)
        self._rescan_at = 0.0
        self._stopping = False
        self.last_scan = 0.0
        self.thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Register the watches, then scan: what appears in between is seen by both."""
        self._observers.renew()
        self.thread.start()

    def stop(self) -> None:
        """End the thread and the observers."""
        self._stopping = True
        self._hints.put(RESCAN)
        self.thread.join(10)
        self._observers.stop()

    def request_rescan(self) -> None:
        """Look at everything soon; may be called from any thread."""
        self._hints.put(RESCAN)

    def backend_of(self, root: Path) -> str:
        """"inotify" or "poll": how this root is watched."""  # fmt: skip
        return self._observers.backend_of(root)

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
        wake_at = min(self._rescan_at, self.tracker.next_due() or self._rescan_at)
        try:
            self._take_hint(self._hints.get(timeout=max(0.0, wake_at - time.monotonic())))
            while True:
                self._take_hint(self._hints.get_nowait())
        except queue.Empty:
            pass
        self.tracker.look_at_due(time.monotonic())

    def _take_hint(self, hint: str) -> None:
        now = time.monotonic()
        if hint == RESCAN:
            self._rescan_at = now
        elif not self.tracker.hint(hint, now) and hint.endswith("/"):
            self._rescan_at = min(self._rescan_at, now + SOON)

    def _rescan(self, now: float) -> None:
        """Check the observers, then hint at every checkpoint directory."""
        if not self._observers.are_sound():
            if self.last_scan:
                log.warning("the observer is made again: a root was replaced, or its thread ended")
            self._observers.renew()
        for root, identity in self._observers.roots.items():
            if identity is None:
                self.tracker.say_once(f"root:{root}", f"The watched root {root} does not exist yet; it is taken up as soon as it does. "
                                      "If the path is wrong, correct watch.roots.")  # fmt: skip
                continue
            self.tracker.unsay(f"root:{root}")
            self.tracker.scan(root, now)
        self.last_scan = time.monotonic()
        pause = self._settings.rescan_seconds
        self._rescan_at = self.last_scan + (min(POLL_SECONDS, pause) if self._observers.any_polled() else pause)
