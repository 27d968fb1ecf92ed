"""Watches the roots: observers give hints, rescans are reliable, and both are handled by the same code.

One thread owns the tracker, the observers, and everything that is decided about a directory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from daemon.config.settings import Settings
from daemon.contract.faults.events import Event
from daemon.system.logger import Logger
from daemon.system.processes.rounds import Complaints
from daemon.system.processes.threads import Supervised
from daemon.watching.apart import Hands
from daemon.watching.entries import innermost_first
from daemon.watching.events.inotify import Hint, Hints, Kind
from daemon.watching.events.observers import Observers
from daemon.watching.taking.intake import Intake
from daemon.watching.tracker import Tracker

log = Logger("watch")

CHECK_SECONDS = 1.5
"""Pause between two checks whether the watches can still be trusted: a few stats."""
POLL_SECONDS = 2.0
"""Pause between scans of a root that gives no events, longer where a scan takes long: it may cost a twentieth of the time."""
POLL_SHARE = 20
BATCH = 10_000
"""Hints taken in one round, so that a storm of events can't keep due looks and rescans waiting."""


class Watcher:
    """Finds complete checkpoints below the roots and hands them to the intake."""

    def __init__(
        self, settings: Settings, intake: Intake, taken: Callable[[], None], elsewhere: Collection[str] = (), linked: Collection[Path] = ()
    ) -> None:  # fmt: skip
        """`linked`: roots that are links below others."""
        # A checkpoint below two roots belongs to the inner one, and the tracker takes the first that fits.
        self._settings = settings.watch.model_copy(update={"roots": tuple(innermost_first(settings.watch.roots))})
        self._hints: Hints = queue.SimpleQueue()
        self._hands = Hands(lambda path: self._hints.put(Hint(Kind.WORKED, str(path))))
        self.tracker = Tracker(self._settings, intake, taken, elsewhere, self._hands, linked)
        self._observers = Observers(self._settings, self._hints, self.tracker.listing.say_once, elsewhere)
        self._rescan_at = self._poll_at = self._check_at = 0.0
        self._stopping = threading.Event()
        self._working_since: float | None = None
        self.ready = threading.Event()
        """Set once the roots are watched."""
        self.last_scan = time.monotonic()
        """When a scan last ended; the first one has as long as any other before it is missed."""
        self.complaints = Complaints(log, "the watcher")
        self.thread = Supervised("watch", self._run, log, stop=self._stopping.set)

    def start(self) -> None:
        """Register the watches, then scan: what appears in between is seen by both."""
        self.thread.start()

    def end(self) -> None:
        """Tell the thread to end after what it is at."""
        self._stopping.set()
        self._hints.put(Hint(Kind.LOOK))

    def stop(self, patience: float = 10) -> None:
        """End the thread and the observers. A thread that does not end within `patience` seconds is left behind with its observers."""
        self.end()
        self.thread.join(patience)
        self._hands.stop(patience)
        if not self.thread.is_alive():
            self._observers.stop()

    def busy_for(self) -> float:
        """Seconds for which a thread has been at one piece of work: a scan, a look, a pin. 0 while all wait."""
        begun = [since for since in (self._working_since, *self._hands.at().values()) if since is not None]
        return time.monotonic() - min(begun) if begun else 0.0

    def exists(self, root: Path) -> bool:
        """Whether the root was there when it was last looked for; one that leads into another by a link counts as there."""
        return self._observers.roots.get(root, (0, 0)) is not None

    @property
    def roots(self) -> tuple[Path, ...]:
        """What it watches."""
        return self._settings.roots

    def look_again(self) -> None:
        """Look at everything soon, for example since there is room for pins again; may be called from any thread."""
        self._hints.put(Hint(Kind.LOOK))

    def backend_of(self, root: Path) -> str:
        """"inotify" or "poll": how this root is watched."""  # fmt: skip
        return self._observers.backend_of(root)

    def _run(self) -> None:
        while not self._stopping.is_set() and not self.ready.is_set():
            self._working_since = time.monotonic()
            if self.complaints.during(self._observers.renew):
                self.ready.set()
            else:
                self._stopping.wait(1)
        while not self._stopping.is_set():
            if not self.complaints.during(self._round):
                self._stopping.wait(1)

    def _round(self) -> None:
        now = self._working_since = time.monotonic()
        if now >= self._check_at:
            self._check(now)
        if now >= self._rescan_at:
            self._rescan(now)
        elif now >= self._poll_at:
            self._poll(now)
        self._hands.look()
        times = (self._check_at, self._rescan_at, self._poll_at, self.tracker.next_due() or self._rescan_at)
        self._take_hints(max(0.0, min(times) - time.monotonic()))
        if not self._stopping.is_set():
            for path in self.tracker.due(time.monotonic()):
                self._working_since = time.monotonic()
                self.tracker.look(path, time.monotonic())

    def _take_hints(self, patience: float) -> None:
        """Wait for a hint and take it with those that came at the same time; the same directory said twice is said once."""
        changed: set[str] = set()
        try:
            self._working_since = None
            try:
                hint = self._hints.get(timeout=patience)
            finally:
                self._working_since = time.monotonic()
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
        if hint.kind is Kind.WORKED:
            self.tracker.look(Path(hint.path), time.monotonic())
            return
        if hint.kind is Kind.LOOK:
            self._rescan_at = self._check_at = time.monotonic()
            return
        if hint.kind is Kind.LINK:
            self.tracker.note_link(Path(hint.path))
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
            log.warning("everything is watched afresh and looked at", event_id=Event.WATCH_AFRESH, because=reason)
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
            self._working_since = time.monotonic()
            if self._observers.roots[root] is None and self.tracker.listing.is_closed(root):
                continue
            if self._observers.roots[root] is None:
                self.tracker.listing.say_once(
                    f"root:{root}",
                    Event.ROOT_MISSING,
                    f"The watched root {root} does not exist yet; it is taken up as soon as it does. "
                    "If the path is wrong, correct watch.roots.",
                )
                continue
            self.tracker.listing.unsay(f"root:{root}")
            self.tracker.scan(root, now)
