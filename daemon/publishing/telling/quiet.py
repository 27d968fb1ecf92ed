"""Quiet hours: when a target is told of nothing but what is urgent, and the one message that it gets afterwards. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from daemon.journal.rows import Message, Notice

MOST_LISTED = 100
"""Messages that are listed in one."""


def is_quiet(hours: str, moment: float) -> bool:
    """Whether a time (s since the epoch) is in such hours ("22:00-07:00", its end not included), by the clock of the machine.

    Hours that a change of daylight saving leaves out, or has twice, count as the clock on the wall shows them.
    """
    begin, _, end = hours.partition("-")
    if not hours or begin == end:
        return False
    now = f"{datetime.fromtimestamp(moment).astimezone():%H:%M}"
    return begin <= now < end if begin < end else now >= begin or now < end


def together(messages: Sequence[Message]) -> Notice:
    """What is told of messages that were held."""
    kinds = Counter(message.kind for message in messages)
    lines = [f"{datetime.fromtimestamp(message.created).astimezone():%H:%M} {message.title}" for message in messages[:MOST_LISTED]]
    more = [f"and {len(messages) - MOST_LISTED} more"] if len(messages) > MOST_LISTED else []
    listed = [
        {
            "event": message.kind, "at": datetime.fromtimestamp(message.created, UTC).isoformat(), "title": message.title,
            "job": message.job or None, **{key: message.about.get(key) for key in ("run", "step", "link")},
        }
        for message in messages[:MOST_LISTED]
    ]  # fmt: skip
    title = f"{len(messages)} messages of the quiet hours: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}"
    events = sorted({event for message in messages for event in message.about.get("events") or (message.kind,)})
    return Notice("digest", title, "\n".join([*lines, *more]), {"events": ["digest", *events], "messages": listed})
