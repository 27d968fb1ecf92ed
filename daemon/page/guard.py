"""Stands before every route: who may ask, by which name, and what a browser may do with the answer. Pure ASGI.

In this order: the name in the header Host, which keeps out web pages that reach this one through a name of their own; the token; what
changes something comes from this page alone (`daemon.page.controls`). No answer leaves without the headers of `SECURITY`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daemon.page.answers import refusal
from daemon.page.context import Context
from daemon.page.health import OPEN

SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
WRITE_SECONDS = 30.0
"""For a client to read a part of an answer."""


class Guard:
    """The application behind it, for those who may ask."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context
        self._hosts = _names(context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = Headers(scope=scope)
        closes = "content-length" in headers or "transfer-encoding" in headers

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    given.setdefault(name, value)
                given.setdefault("Cache-Control", "no-store")
                if closes:
                    given["Connection"] = "close"
            await asyncio.wait_for(send(message), WRITE_SECONDS)

        refused = self._refuses(scope, headers)
        await (refused or self._app)(scope, receive, answered)

    def _refuses(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["path"] in OPEN:
            return None
        if not self._knows(headers.get("host", "")):
            return refusal(421, "this page is not reached by that name", "add the name to page.hosts in the daemon's configuration")
        return None

    def _knows(self, host: str) -> bool:
        """Whether a request may name this host: an address can't be another page's name."""
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        return name.lower() in self._hosts or _is_address(name)


def _names(context: Context) -> frozenset[str]:
    address = context.page.address
    given: Iterable[str] = (*context.page.hosts, "localhost", address.host if address else "", socket.gethostname())
    return frozenset(name.lower() for name in given if name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
