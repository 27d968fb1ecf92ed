"""Signs of life to addresses that raise an alarm when there is none: only while the daemon is well, and whatever messages do.

A part of the notifier, used by its thread. No sign is kept for later: one that did not arrive is followed by the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from daemon.config.receivers import Receiver
from daemon.contract.faults.events import Event
from daemon.publishing.telling.outcome import Attempt
from daemon.system.logger import Logger

log = Logger("notify")

AGAIN_SECONDS = 60.0
"""Until another try where an address did not answer, unless its next sign comes earlier."""


@dataclass
class _Beat:
    due: float
    attempt: Attempt | None = None
    error: str | None = None
    """Why the last one did not arrive."""


@dataclass
class Heartbeats:
    """The addresses by their targets' names. `begin`: sends a sign, raises OSError where it can't."""

    begin: Callable[[Receiver], Attempt]
    well: Callable[[], bool] = lambda: True
    """Whether there is to be a sign."""
    clock: Callable[[], float] = time.monotonic
    news: dict[str, str | None] = field(default_factory=dict)
    """Name → why its address does not answer, None since it does again; for who keeps it."""
    _beats: dict[str, _Beat] = field(default_factory=dict)

    def tick(self, receivers: Sequence[Receiver]) -> None:
        """One round: take in what ended, send what is due."""
        those = {receiver.name: receiver for receiver in receivers if receiver.kind == "heartbeat"}
        for name in self._beats.keys() - those.keys():
            self._end(self._beats.pop(name))
        for name, receiver in those.items():
            beat = self._beats.setdefault(name, _Beat(self.clock()))
            if beat.attempt is not None and (outcome := beat.attempt.poll()) is not None:
                beat.attempt = None
                self._note(receiver, beat, outcome.error)
            if beat.attempt is None and self.clock() >= beat.due and self.well():
                beat.due = self.clock() + 60 * receiver.minutes
                try:
                    beat.attempt = self.begin(receiver)
                except OSError as error:
                    self._note(receiver, beat, f"no process could be started to send it: {error.strerror}")

    def attempts(self) -> Iterator[Attempt]:
        """Those that are on their way."""
        yield from (beat.attempt for beat in self._beats.values() if beat.attempt is not None)

    def pause(self, most: float) -> float:
        """Seconds until the next sign is due, at most so many."""
        return max(0.0, min([most, *(beat.due - self.clock() for beat in self._beats.values() if beat.attempt is None)]))

    def end(self) -> None:
        """End what is being sent."""
        for beat in self._beats.values():
            self._end(beat)

    @staticmethod
    def _end(beat: _Beat) -> None:
        if beat.attempt is not None:
            beat.attempt.end()

    def _note(self, receiver: Receiver, beat: _Beat, error: str | None) -> None:
        """Say once that an address does not answer, and once that it does."""
        if error is not None:
            beat.due = min(beat.due, self.clock() + AGAIN_SECONDS)
        if (error is None) == (beat.error is None):
            return
        beat.error = self.news[receiver.name] = error
        if error is None:
            log.info("heartbeats arrive again", event_id=Event.NOTIFY_SENT, target=receiver.place)
        else:
            log.warning(
                "a heartbeat did not arrive", event_id=Event.NOTIFY_FAILED, target=receiver.place, error=error, retry_in=AGAIN_SECONDS,
                remedy=f"check {receiver.place.split()[0]} and the service",
            )  # fmt: skip
