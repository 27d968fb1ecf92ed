"""What the log gets of messages to targets: each entry names the target by its place in the configuration, and what to do."""

from __future__ import annotations

from daemon.contract.faults.events import Event
from daemon.journal.rows import Message
from daemon.system.logger import Logger

log = Logger("notify")


def sent(place: str, message: Message) -> None:
    """Log that a target took a message."""
    log.info("notified", event_id=Event.NOTIFY_SENT, job=message.job, title=message.title, target=place)


def not_arrived(place: str, message: Message, error: str, attempt: int, retry_in: float) -> None:
    """Log that an attempt failed, and that there is another one."""
    log.warning(
        "a notification did not arrive", event_id=Event.NOTIFY_FAILED, job=message.job, target=place, error=error, attempt=attempt,
        retry_in=retry_in, remedy=f"check {place.split()[0]} and the service",
    )  # fmt: skip


def given_up(place: str, error: str, attempts: int, messages: int) -> None:
    """Log that so many messages are tried no more."""
    log.error(
        "notifications are given up", event_id=Event.NOTIFY_GIVEN_UP, target=place, messages=messages, error=error, attempts=attempts,
        remedy=f"check {place.split()[0]} and the service, then `ckptd notify resend`",
    )  # fmt: skip


def no_service(place: str, error: str, messages: int) -> None:
    """Log that a URL is no service."""
    log.error(
        "nobody can be told there; the other services are", event_id=Event.NOTIFY_GIVEN_UP, target=place, messages=messages, error=error,
        remedy=f"correct {place.split()[0]}, then `ckptd check`, then reload the configuration",
    )  # fmt: skip


def dropped(place: str, messages: int) -> None:
    """Log that messages are dropped, since nobody is there any more whom they were for."""
    log.warning(
        "notifications are dropped: those whom they were for are no longer in [notify]", event_id=Event.NOTIFY_DROPPED, target=place,
        messages=messages,
    )  # fmt: skip
