"""What programs are told of a message: the JSON that a webhook and a command get. docs/webhooks.md is made of these classes.

Made by the sender of what the journal has of the message, so that it is the same at each attempt.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from daemon.journal.rows import Message

MOST_TEXT = 8000
"""Characters of a text; a message has to go through a pipe at once."""


@dataclass(frozen=True)
class BestArtifact:
    """What to deploy of an export: what its report recommends, else the smallest that passed its check."""

    variant: str
    """Its name, for example `onnx-int8`."""
    path: str
    """Its folder."""
    bytes: int | None
    """Size of its files."""
    agreement: float | None
    """Share of positions with the same most likely token as the live model; null if it was not measured."""


@dataclass(frozen=True)
class Carried:
    """A delivery of the export to a target of `[[deliver]]`."""

    target: str
    """Name of the target."""
    version: str | None = None
    """The far end's name of what lies there, which never means anything else; null if it was not delivered."""
    place: str | None = None
    """Where it lies."""
    moved: bool = False
    """Whether the name that people follow there stands for it."""
    usage: str | None = None
    """A line of shell or code that fetches or asks it."""
    code: str | None = None
    """Fault code, if it failed."""


@dataclass(frozen=True)
class Contained:
    """A message that another one stands for."""

    event: str
    """The event."""
    at: str
    """Time of the event; ISO 8601 in UTC."""
    title: str
    """One line."""
    job: str | None = None
    """Id of the export."""
    run: str | None = None
    """Name of the run."""
    step: int | None = None
    link: str | None = None
    """Address of the export's page; null if there is none."""


@dataclass(frozen=True)
class Details:
    """What happened. A field of which a message says nothing is null, or an empty list."""

    title: str
    """One line."""
    text: str
    """For people, in several lines."""
    host: str
    """The machine of the daemon."""
    events: tuple[str, ...]
    """All events that the message is about: `type`, and for example `rejected` beside `partial`."""
    job: str | None = None
    """Id of the export."""
    run: str | None = None
    """Name of the run."""
    step: int | None = None
    verdict: str | None = None
    """How the export ended, in one line."""
    artifact: BestArtifact | None = None
    """What to deploy."""
    rejected: tuple[str, ...] = ()
    """Variants that a check kept from being published."""
    target: str | None = None
    """Folder of the export."""
    delivery: Carried | None = None
    """What was delivered, or was not."""
    remedy: str | None = None
    """What to do, if something is to be done."""
    link: str | None = None
    """Address of the export's page; null if there is none."""
    subject: str | None = None
    """What waits, lacks room or is not well: a path, a name. The same in the message that it is over."""
    counts: dict[str, int] | None = None
    """Of a daily digest: state → number of exports that ended so."""
    messages: tuple[Contained, ...] = ()
    """What a message stands for that was held during quiet hours, or what a daily digest lists; the first 100."""


@dataclass(frozen=True)
class Notification:
    """The body of a webhook's request, and the standard input of a command."""

    type: str
    """The event; `digest` also for what was held during quiet hours, and `info` for a test message."""
    timestamp: str
    """Time of the event; ISO 8601 in UTC."""
    data: Details
    """What happened."""


_KNOWN = frozenset(field.name for field in dataclasses.fields(Details)) - {"title", "text", "host", "events", "job"}


def payload(message: Message) -> str:
    """The JSON of a message, the same at each attempt."""
    about: Mapping[str, Any] = {key: value for key, value in message.about.items() if key in _KNOWN}
    details = Details(
        title=message.title, text=message.body[:MOST_TEXT], host=socket.gethostname(),
        events=tuple(message.about.get("events") or (message.kind,)), job=message.job or None, **about,
    )  # fmt: skip
    at = datetime.fromtimestamp(message.created, UTC).isoformat()
    return json.dumps(dataclasses.asdict(Notification(message.kind, at, details)), ensure_ascii=False)
