"""How an attempt to send a message ended. Light: the daemon and the sending process both use it."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from typing import Protocol

LIMIT_SECONDS = 60.0
"""Longest time for one attempt; Apprise gives a connection four seconds, some services need several."""
NO_SERVICE = "no Apprise service has such a URL, or the package that the service needs is not installed"
SAID = 400
"""Characters of what a service said that are kept."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    error: str | None
    """Without secrets; None: the service took it."""
    unknown: bool = False
    """The URL names no service: nothing sent to it can arrive."""
    rejected: bool = False
    """The service answers, and does not take this message."""
    retry_after: float | None = None
    """Seconds for which the service asks not to be asked again."""


class Attempt(Protocol):
    """A message on its way to one service."""

    @property
    def wait_handle(self) -> int | None:
        """A file descriptor that becomes readable when there is something to poll for, if there is one."""

    def poll(self) -> Outcome | None:
        """How it ended, the same at every further call; None while it goes on."""

    def end(self) -> None:
        """End it now."""


def without_secrets(text: str, url: str) -> str:
    """`text` without any part of the URL that is longer than three characters, but for its scheme, at most SAID characters."""
    rest = url.partition("://")[2] or url
    parts = {part for form in (rest, urllib.parse.unquote(rest)) for part in (form, *re.split(r"[/:@?&=#,;+\s]+", form)) if len(part) > 3}
    parts |= {urllib.parse.quote(part) for part in parts}
    for part in sorted(parts, key=len, reverse=True):
        text = re.sub(re.escape(part), "…", text, flags=re.IGNORECASE)
    return text[:SAID]
