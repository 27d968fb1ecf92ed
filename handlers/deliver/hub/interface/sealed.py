"""Notes that hold a right to write: the addresses of an upload's parts, sealed with the token, so that the journal tells nobody of them.

Whoever has the token could ask for such addresses anyway. A note that can't be opened, as after the token was renewed, is none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from typing import Any

NONCE, MARK = 16, 32


def sealed(value: Any, token: str) -> str:
    """The JSON value, readable with the token alone."""
    nonce = os.urandom(NONCE)
    body = _mixed(json.dumps(value).encode(), token, nonce)
    return base64.b85encode(nonce + _mark(nonce + body, token) + body).decode()


def opened(text: str, token: str) -> Any:
    """What was sealed; None where that was not by this token."""
    try:
        data = base64.b85decode(text)
    except ValueError:
        return None
    nonce, mark, body = data[:NONCE], data[NONCE : NONCE + MARK], data[NONCE + MARK :]
    if not hmac.compare_digest(mark, _mark(nonce + body, token)):
        return None
    return json.loads(_mixed(body, token, nonce))


def _mixed(data: bytes, token: str, nonce: bytes) -> bytes:
    """The data and SHAKE-256's stream, bit by bit."""
    stream = hashlib.shake_256(b"ckptd note\0" + nonce + token.encode()).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


def _mark(data: bytes, token: str) -> bytes:
    return hmac.digest(b"ckptd mark\0" + token.encode(), data, "sha256")
