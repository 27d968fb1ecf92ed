"""Delivers the outbox through Apprise, at least once, with retries that survive restarts.

One thread; the journal holds the queue. Apprise itself neither retries nor bounds its time, so each message is
tried with a growing pause for about a day, and a slow service delays only later messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

import structlog

from daemon.config.settings import NotifySettings
from daemon.journal.journal import Journal
from daemon.journal.rows import Message
from daemon.system.rounds import Complaints
from daemon.system.threads import Supervised

log = structlog.get_logger("notify")

FIRST_PAUSE = 5.0
LONGEST_PAUSE = 3600.0
MAX_ATTEMPTS = 30
TELL_PAUSE = 30.0
MOST_UNTOLD = 20
"""Messages that are held in memory while the journal can't be written."""


def pause_after(attempts: int) -> float | None:
    """Seconds until the next attempt after `attempts` failed ones; None: give up."""
    return None if attempts >= MAX_ATTEMPTS else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (attempts - 1))


class Notifier:
    """Empties the outbox."""

    def __init__(self, settings: NotifySettings, journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        self._wake = threading.Event()
        self._stopping = False
        self._tell_at = 0.0
        self._untold: deque[Message] = deque(maxlen=MOST_UNTOLD)
        self.complaints = Complaints(log, "the notifier")
        self.thread = Supervised("notify", self._run, log, stop=self._end)

    def start(self) -> None:
        """Begin delivering, first what an earlier daemon left."""
        self.thread.start()

    def stop(self) -> None:
        """End after the message that is being sent."""
        self._end()
        self.thread.join(15)

    def _end(self) -> None:
        self._stopping = True
        self._wake.set()

    def wake(self) -> None:
        """There may be something to deliver; may be called from any thread."""
        self._wake.set()

    def tell(self, kind: str, title: str, body: str) -> None:
        """Send this without the journal, which can't be written now; it is tried until it arrives or the daemon ends. From any thread."""
        self._untold.append(Message(0, "", kind, title, body, 0))
        self._wake.set()

    def _tell(self) -> None:
        """Send what could not be put into the journal, in order."""
        while self._untold and time.monotonic() >= self._tell_at and not self._stopping:
            error = self._send(self._untold[0])
            if error is not None:
                self._tell_at = time.monotonic() + TELL_PAUSE
                log.warning("a notification did not arrive", error=error, retry_in=TELL_PAUSE, remedy="check notify.urls and the service")
                return
            log.info("notified", title=self._untold.popleft().title)

    def _run(self) -> None:
        while not self._stopping:
            self.complaints.during(self.deliver_due)
            self._wake.wait(60)
            self._wake.clear()

    def adopt(self, settings: NotifySettings) -> None:
        """Use other addresses from now on; may be called from any thread."""
        self._settings = settings
        self._wake.set()

    def clock_jumped(self) -> None:
        """The wall clock was set: whatever waits for a time is tried now."""
        self._journal.outbox.hasten()
        self._wake.set()

    def deliver_due(self) -> None:
        """Try every message whose time has come."""
        if not self._settings.urls:
            return
        self._tell()
        for message in self._journal.outbox.due(time.time()):
            if self._stopping:
                return
            error = self._send(message)
            if error is None:
                self._journal.outbox.delivered(message.id)
                log.info("notified", job=message.job, title=message.title)
                continue
            pause = pause_after(message.attempts + 1)
            self._journal.outbox.undelivered(message.id, error, None if pause is None else time.time() + pause)
            log.warning("a notification did not arrive", job=message.job, error=error, attempt=message.attempts + 1,
                        retry_in=pause, remedy="check notify.urls and the service")  # fmt: skip

    def _send(self, message: Message) -> str | None:
        """None when every service took it, else what went wrong."""
        import apprise  # a heavy import, not needed if nobody is to be notified

        said: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        apprise.logger.addHandler(handler)
        apprise.logger.propagate = False  # it names whole URLs, which hold secrets
        try:
            services = apprise.Apprise()
            bad = [url for url in self._settings.urls if not services.add(url)]
            if bad:
                scheme, found, _ = bad[0].partition("://")
                return f"{len(bad)} of notify.urls is no service that Apprise knows: {scheme if found else ''}{'://' if found else ''}…"
            kind = {"succeeded": apprise.NotifyType.SUCCESS, "failed": apprise.NotifyType.FAILURE}.get(
                message.kind, apprise.NotifyType.WARNING
            )
            if services.notify(title=message.title, body=message.body, notify_type=kind):
                return None
            return "; ".join(said)[:500] or "the service did not take it"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            apprise.logger.propagate = True
            apprise.logger.removeHandler(handler)
