"""Notifications that the journal can't take, since its disk is full: held in memory, sent to each service until it has them.

What is left of them when the daemon ends is lost: there was nowhere to keep it.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from daemon.config.receivers import Receiver
from daemon.contract.faults.events import Event
from daemon.journal.rows import Message, Notice
from daemon.publishing.telling.outcome import Attempt, Outcome
from daemon.system.logger import Logger

log = Logger("notify")

PAUSE = 30.0
"""Seconds until a service that did not take a message is asked again."""
MOST = 20
"""Messages that are held; of more the oldest go."""


@dataclass
class _Untold:
    message: Message
    left: dict[str, Receiver]
    """Place → the receivers that do not have it yet."""
    sending: dict[str, Attempt] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)
    """Place → when it is tried again, by the monotonic clock."""


class Untold:
    """The messages, in order. `begin`: starts to send a message, raises OSError where it can't."""

    def __init__(self, begin: Callable[[Receiver, Message], Attempt]) -> None:
        self._begin = begin
        self._held: deque[_Untold] = deque(maxlen=MOST)

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, notice: Notice, receivers: Iterable[Receiver]) -> None:
        """Hold one for those of the receivers that are told of such. From any thread."""
        message = Message(0, "", notice.kind, notice.title, notice.body, int(time.time()), notice.about, f"msg_{secrets.token_hex(16)}")
        self._held.append(_Untold(message, {it.place: it for it in receivers if not it.on.isdisjoint(notice.events)}))

    def tick(self) -> None:
        """One round: take in what ended, begin what is due. The first message goes before the others."""
        while self._held and not self._held[0].left:
            self._held.popleft()
        if self._held:
            for place, receiver in list(self._held[0].left.items()):
                self._go_on(self._held[0], place, receiver)

    def end(self) -> None:
        """End what is being sent."""
        for held in self._held:
            for attempt in held.sending.values():
                attempt.end()

    def _go_on(self, held: _Untold, place: str, receiver: Receiver) -> None:
        if place in held.sending:
            outcome = held.sending[place].poll()
            if outcome is not None:
                del held.sending[place]
                self._note(held, place, outcome)
        elif time.monotonic() >= held.at.get(place, 0.0):
            try:
                held.sending[place] = self._begin(receiver, held.message)
            except OSError as error:
                self._note(held, place, Outcome(f"no process could be started to send it: {error.strerror}"))

    def _note(self, held: _Untold, place: str, outcome: Outcome) -> None:
        about: dict[str, Any] = {"title": held.message.title, "target": place}
        remedy = f"check {place.split()[0]} and the service"
        if outcome.error is None:
            log.info("notified", event_id=Event.NOTIFY_SENT, **about)
        elif outcome.unknown or outcome.rejected:
            log.error("notifications are given up", event_id=Event.NOTIFY_GIVEN_UP, error=outcome.error, remedy=remedy, **about)
        else:
            held.at[place] = time.monotonic() + PAUSE
            log.warning(
                "a notification did not arrive", event_id=Event.NOTIFY_FAILED, error=outcome.error, retry_in=PAUSE, remedy=remedy, **about
            )
            return
        del held.left[place]
