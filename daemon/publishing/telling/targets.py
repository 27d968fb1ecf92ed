"""Who is told, as the journal knows it: the receivers of a configuration by digests, and the ids of messages to them. Pure."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import replace

from daemon.config.receivers import Receiver
from daemon.journal.outbox import Target
from daemon.journal.rows import Message

ROUNDS = 100_000
"""Of the digest of a URL: its secrets may be short, and each guess should cost something."""


def targets_of(receivers: Sequence[Receiver], salt: bytes) -> dict[str, tuple[Target, Receiver]]:
    """Digest → target and receiver. One with a name stays the same target whatever address it gets, unless that is of
    heartbeats: those take no messages, so that none may wait for them."""
    targets: dict[str, tuple[Target, Receiver]] = {}
    for receiver in receivers:
        if receiver.name:
            kind = "heartbeat" if receiver.kind == "heartbeat" else "target"
            digest = hashlib.sha256(f"{kind} {receiver.name}".encode()).hexdigest()
        else:
            digest = hashlib.pbkdf2_hmac("sha256", receiver.url.get_secret_value().encode(), salt, ROUNDS).hex()
        wants = json.dumps({"on": sorted(receiver.on), "runs": list(receiver.runs)})
        targets.setdefault(digest, (Target(digest, receiver.place, wants), receiver))
    return targets


def keyed(message: Message, target: str, salt: bytes) -> Message:
    """The message with what names it to one target, at each attempt the same. A journal that was rebuilt may count from an earlier number:
    a message after that has another time, or another title."""
    text = f"{target} {message.id} {message.created} {message.title}"
    return replace(message, key=f"msg_{hmac.digest(salt, text.encode(), 'sha256').hex()[:32]}")
