"""Real HTTP receivers on the loopback, with the manners that receivers have."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WAIT = 60.0


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    """By the wall clock."""


@dataclass
class HttpReceiver:
    """Answers with the statuses of `answers` one after the other, then with 200. A status may have headers: (503, {"Retry-After": "7"}).

    `hangs`: no answer at all; `drips`: one that never ends, byte by byte.
    """

    answers: list[int | tuple[int, dict[str, str]]] = field(default_factory=list)
    hangs: bool = False
    drips: bool = False
    certificate: Path | None = None
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        receiver, self._over = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.asked.append(Asked(self.command, self.path, headers, body, time.time()))
                if receiver.hangs:
                    receiver._over.wait(WAIT)
                    return
                if receiver.drips:
                    self._drip()
                    return
                answer = receiver.answers.pop(0) if receiver.answers else 200
                status, given = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in {"Content-Length": "0", **given}.items():
                    self.send_header(name, value)
                self.end_headers()

            def _drip(self) -> None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
                try:
                    while not receiver._over.wait(0.1):
                        self.wfile.write(b".")
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"{'https' if self.certificate else 'http'}://{self.address}/hook"

    def close(self) -> None:
        """End it, and what hangs in it."""
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def http_receivers() -> Iterator[Callable[..., HttpReceiver]]:
    """Makes receivers, which end with the context."""
    made: list[HttpReceiver] = []

    def make(**manners: Any) -> HttpReceiver:
        made.append(HttpReceiver(**manners))
        return made[-1]

    try:
        yield make
    finally:
        for receiver in made:
            receiver.close()
