"""How the Hub of the tests takes a request and gives an answer: who asks, bodies, pages."""

from __future__ import annotations

import http.server
import json
import re
import urllib.parse
from typing import TYPE_CHECKING, Any, ClassVar

from tests.deliver.hub.far_end.store import Refused, Store

if TYPE_CHECKING:
    from tests.deliver.hub.service import Service

BLOCK = 1 << 18


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    service: Service

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed are no news."""


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    routes: ClassVar[list[tuple[str, str, str]]] = []

    def log_message(self, format: str, *args: Any) -> None:
        """Tests say themselves what they saw."""

    def _handle(self) -> None:
        self._left = int(self.headers.get("Content-Length", 0))
        try:
            self._route()
        except Refused as error:
            self._drain()
            headers = {
                "X-Error-Message": error.message.encode("ascii", "replace").decode(),
                **({"X-Error-Code": error.code} if error.code else {}),
            }
            self._say(error.status, {"error": error.message}, headers)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def _route(self) -> None:
        split = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(split.query))
        path = split.path
        for pattern, method, name in self.routes:
            if self.command in method.split("|") and (match := re.fullmatch(pattern, path)):
                if not name.startswith("store_") and name not in ("whoami", "yaml"):
                    self._may(writes=self.command not in ("GET", "HEAD"))
                return getattr(self, name)(*(urllib.parse.unquote(group) for group in match.groups()))  # type: ignore[no-any-return]
        raise Refused(404, f"no such address {self.command} {path}")

    def _may(self, writes: bool) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if given and given not in self.server.service.tokens:
            raise Refused(401, "Invalid credentials in Authorization header")
        if writes and not given:
            raise Refused(401, "Invalid username or password.")

    def whoami(self) -> None:
        self._may(writes=True)
        self._say(200, {"type": "user", "name": "me", "auth": {"type": "access_token"}})

    def _signed(self) -> None:
        if self.headers.get("Authorization"):
            raise Refused(400, "Only one auth mechanism allowed")
        if self.query.get("X-Amz-Signature") != self.server.service.signature:
            raise Refused(403, "Request has expired")

    def _blocks(self) -> Any:
        while self._left:
            block = self.rfile.read1(min(self._left, BLOCK))  # type: ignore[attr-defined]
            if not block:
                self.close_connection = True
                raise ConnectionAbortedError
            self._left -= len(block)
            yield block

    def _drain(self) -> None:
        for _ in self._blocks():
            pass

    def _json(self) -> Any:
        return json.loads(b"".join(self._blocks()) or b"{}")

    def _form(self) -> dict[str, list[str]]:
        """Of a body that is a form, or JSON: clients know both."""
        body = b"".join(self._blocks()).decode()
        return json.loads(body) if body.startswith("{") else urllib.parse.parse_qs(body)

    def _say(self, status: int, value: Any, headers: dict[str, str] | None = None, kind: str = "application/json") -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _host(self, store: bool = False) -> str:
        host = self.headers.get("Host", "")
        return f"http://{host.replace('127.0.0.1', 'localhost') if store else host}"

    def _signature(self) -> str:
        return f"X-Amz-Signature={self.server.service.signature}"

    @property
    def _store(self) -> Store:
        return self.server.service.store

    def _page(self, rows: list[Any]) -> None:
        size = min(int(self.query.get("limit", self.server.service.page)), 1000)
        start = int(self.query.get("cursor", 0))
        headers = {}
        if start + size < len(rows):
            query = urllib.parse.urlencode({**self.query, "cursor": start + size})
            headers["Link"] = f'<{self._host()}{urllib.parse.urlsplit(self.path).path}?{query}>; rel="next"'
        self._say(200, rows[start : start + size], headers)
