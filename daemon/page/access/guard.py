"""Stands before every route: who may ask, by which name, and what a browser may do with the answer. Pure ASGI.

In this order: the name in the header Host, which keeps out web pages that reach this one through a name of their own; that what changes
something comes from this page; the token. No answer leaves without the headers of `SECURITY`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daemon.page.access import login
from daemon.page.access.tokens import bearer, client_of, cookie_of, is_right, is_session
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
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
BY_A_BROWSER = ("sec-fetch-site", "origin", "cookie", "authorization")
"""Headers of which a program that knows no token sends none."""
WRITE_SECONDS = 30.0
"""For a client to read a part of an answer."""
MOST_BODY = 16 << 10
"""Bytes of a request's body."""
MOST_TARGET = 8 << 10
"""Bytes of its path and query."""
OPEN_PREFIXES = ("/static/",)
"""Styles and scripts, which the form needs, and which are the same for everybody."""


class Guard:
    """The application behind it, for those who may ask."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app, self._context = app, context
        self._hosts = _names(context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        closes = "content-length" in headers or "transfer-encoding" in headers
        taken = 0

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                _complete(message, closes=closes)
            await asyncio.wait_for(send(message), WRITE_SECONDS)

        async def received() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MOST_BODY:
                raise HTTPException(413, f"a request may have at most {MOST_BODY} bytes")
            return message

        refused = self._refuses(scope, headers)
        with contextlib.suppress(TimeoutError):  # it reads no more; uvicorn closes a connection whose answer is not complete
            await (refused or self._app)(scope, received, answered)

    def _refuses(self, scope: Scope, headers: Headers) -> Response | None:
        path, method = scope["path"], scope["method"]
        if len(scope["raw_path"]) + len(scope["query_string"]) > MOST_TARGET:
            return refusal(414, f"the address of a request may have at most {MOST_TARGET} bytes")
        if path in OPEN:
            return None
        if not self._knows(headers.get("host", "")):
            return refusal(421, "this page is not reached by that name", "add the name to page.hosts in the daemon's configuration")
        if method not in ("GET", "HEAD") and not _is_from_here(headers):
            page, of_session = self._context.page, path in (login.PATH, login.LEAVING)
            if page.token is not None and not of_session and not any(name in headers for name in BY_A_BROWSER):
                return _unknown("this needs a token")  # a program
            if page.token is None and not of_session and not page.control:
                return None  # nothing can be changed, which the answer says
            return refusal(403, "this request comes from another page", "send it from this page, or with a header Origin that names it")
        if path.startswith(OPEN_PREFIXES) or path == login.PATH:
            return None
        return self._without_right(scope, headers)

    def _without_right(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to one who may not ask; who may is noted for the log."""
        client = client_of(scope, headers, self._context.page)
        token = self._context.page.token
        if token is None:
            scope.setdefault("state", {})["who"] = client.address
            return None
        secret, given = token.get_secret_value(), bearer(headers)
        if given is None and is_session(cookie_of(Request(scope).cookies), secret):
            scope.setdefault("state", {})["who"] = f"{client.address} (signed in)"
            return None
        if given is not None:
            if wait := self._context.tries.wait(client):
                return refusal(429, "there were too many wrong tokens", "try again later", headers={"Retry-After": str(int(wait) + 1)})
            if is_right(given, secret):
                scope.setdefault("state", {})["who"] = f"{client.address} (token)"
                return None
            self._context.note_wrong(client)
        if given is None and scope["method"] in ("GET", "HEAD") and "text/html" in headers.get("accept", ""):
            asked = scope["path"] + ("?" + scope["query_string"].decode("latin-1") if scope["query_string"] else "")
            return RedirectResponse(f"{login.PATH}?then={quote(asked, safe='')}", 303)
        return _unknown("the token is wrong" if given is not None else "this needs a token")

    def _knows(self, host: str) -> bool:
        """Whether a request may name this host. An address may: no other page has it as its name."""
        name = _name_of(host)
        return name.lower().rstrip(".") in self._hosts or _is_address(name)


def _unknown(why: str) -> Response:
    remedy = "send the header `Authorization: Bearer TOKEN`, with what is in page.token_file"
    return refusal(401, why, remedy, headers={"WWW-Authenticate": 'Bearer realm="ckptd"'})


def _complete(message: Message, *, closes: bool) -> None:
    """Add the headers that every answer has. `closes`: what is left of a body is not waited for."""
    given = MutableHeaders(scope=message)
    for name, value in SECURITY.items():
        given.setdefault(name, value)
    given.setdefault("Cache-Control", "no-store")
    if closes:
        given["Connection"] = "close"


def _is_from_here(headers: Headers) -> bool:
    """Whether what would change something comes from this very page: browsers say from where, and others send what they like anyway."""
    fetched, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if fetched is not None:
        return fetched == "same-origin"
    if origin is not None:
        try:
            return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
        except ValueError:  # no address
            return False
    return bearer(headers) is not None and "cookie" not in headers


def _name_of(host: str) -> str:
    return host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]


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
