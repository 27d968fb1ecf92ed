"""A signed request to a webhook, and a heartbeat's request. Used by the sending process.

Signed as Standard Webhooks has it (https://www.standardwebhooks.com), so that its libraries verify it. No redirect is followed: the address
that was configured gets the message, and no other.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import time
from typing import Any

from daemon.config.receivers import SIGNING
from daemon.contract.version import __version__
from daemon.publishing.telling.outcome import Outcome, without_secrets

CONNECT_SECONDS, READ_SECONDS = 10.0, 20.0
"""For a connection, and for each part of an answer; the whole attempt has its own limit."""
TEMPORARY = (408, 425, 429)
"""Of the answers 4xx those that say nothing against the message."""


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """The value of the header `webhook-signature`."""
    key = base64.b64decode(secret.removeprefix(SIGNING))
    return "v1," + base64.b64encode(hmac.digest(key, f"{id}.{timestamp}.".encode() + body, hashlib.sha256)).decode()


def post(url: str, secret: str, id: str, text: str) -> Outcome:
    """Send one message and wait for the answer's status. The id is the same at each attempt, the time is that of this one."""
    body, timestamp = text.encode(), int(time.time())
    return _ask("POST", url, body, {
        "content-type": "application/json", "webhook-id": id, "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(secret, id, timestamp, body),
    })  # fmt: skip


def beat(url: str) -> Outcome:
    """Send a sign of life."""
    return _ask("GET", url, None, {})


def _ask(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> Outcome:
    import requests  # a heavy import, not needed if nobody is to be notified

    try:
        with requests.request(
            method, url, data=body, headers={"user-agent": f"ckptd/{__version__}", **headers}, timeout=(CONNECT_SECONDS, READ_SECONDS),
            allow_redirects=False, stream=True, auth=_as_it_is,
        ) as answer:  # fmt: skip
            return outcome_of(answer.status_code, answer.headers.get("retry-after"))
    except Exception as error:  # also what is no RequestException: an address that urllib3 can't read
        return Outcome(without_secrets(f"{type(error).__name__}: {error}", url))


def _as_it_is(request: Any) -> Any:
    """A request without the credentials that ~/.netrc has for its host."""
    return request


def outcome_of(status: int, retry_after: str | None) -> Outcome:
    """What an answer's status says."""
    if 200 <= status < 300:
        return Outcome(None)
    if 300 <= status < 400:
        return Outcome(f"error={status}: it refers to another address, where nothing is sent; give that address instead")
    rejected = 400 <= status < 500 and status not in TEMPORARY
    return Outcome(f"error={status}", rejected=rejected, retry_after=None if rejected else _seconds(retry_after))


def _seconds(said: str | None) -> float | None:
    """What a header Retry-After says: a number of seconds, or a date."""
    if said is None:
        return None
    try:
        return max(0.0, float(said) if said.strip().isdigit() else email.utils.parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
