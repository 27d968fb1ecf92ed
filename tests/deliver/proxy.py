"""A real local HTTP proxy before a far end, which can misbehave in each way that networks and services do.

    with Proxy(port) as proxy:                 # the far end listens on 127.0.0.1:port
        proxy.plan(status(503, retry_after="2"), when=writes, first=2, times=1)
        …                                      # what is tested talks to proxy.url
        proxy.seen, proxy.sent                 # requests, and bytes of bodies that went through

`Host` is handed on as it was sent, so signed requests stay valid. Plans are asked in their order, and the first
that fits a request decides.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

BLOCK = 1 << 14
HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: int = 0
    """Bytes of its body that went on to the far end."""

    @property
    def length(self) -> int:
        return int(self.headers.get("content-length", 0))


@dataclass(frozen=True)
class Answer:
    """Of the proxy itself, in the far end's place."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"refused by a test"


@dataclass(frozen=True)
class Fault:
    """What happens to a request. All are None: nothing."""

    answer: Answer | None = None
    cut_request: int | None = None
    """Bytes of the body after which both connections are closed."""
    cut_response: int | None = None
    wait: float = 0.0
    corrupt: Callable[[bytes], bytes] | None = None
    """What the client gets in place of the answer's body, of the same length."""
    before: Callable[[Request], None] | None = None
    """Called before the request goes on."""
    after: Callable[[Request], None] | None = None
    """Called when the far end has answered, before the client gets it."""


def status(code: int, retry_after: str | None = None, body: bytes = b"refused by a test") -> Fault:
    """The proxy answers so; the far end sees nothing of it."""
    return Fault(answer=Answer(code, {"Retry-After": retry_after} if retry_after else {}, body))


def flipped(body: bytes) -> bytes:
    """A body of the same length with a byte in its middle changed."""
    return body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :] if body else body


def always(request: Request) -> bool:
    return True


def writes(request: Request) -> bool:
    return request.method not in ("GET", "HEAD", "OPTIONS")


def reads(request: Request) -> bool:
    return request.method == "GET"


@dataclass
class _Plan:
    fault: Fault
    when: Callable[[Request], bool]
    first: int
    times: int | None
    matched: int = 0

    def fits(self, request: Request) -> bool:
        if not self.when(request):
            return False
        self.matched += 1
        return self.matched >= self.first and (self.times is None or self.matched < self.first + self.times)


class Proxy:
    """Listens on a port of its own; in a `with`."""

    def __init__(self, far_end: int) -> None:
        self.far_end = far_end
        self.seen: list[Request] = []
        self.closed_at_connect = False
        """Whether connections are closed as they are made."""
        self._plans: list[_Plan] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def sent(self) -> int:
        """Bytes of request bodies that went on to the far end."""
        return sum(request.body for request in self.seen)

    def plan(self, fault: Fault, when: Callable[[Request], bool] = always, first: int = 1, times: int | None = 1) -> None:
        """From the request number `first` of those that fit on, `times` requests (None: all) have that fault."""
        self._plans.append(_Plan(fault, when, first, times))

    def clear(self) -> None:
        """Forget plans and what was seen: from now on the proxy is honest."""
        self._plans.clear()
        self.seen.clear()
        self.closed_at_connect = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault_of(self, request: Request) -> Fault:
        with self._lock:
            self.seen.append(request)
            return next((plan.fault for plan in self._plans if plan.fits(request)), Fault())


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    proxy: Proxy

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return not self.proxy.closed_at_connect

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that a test cut are no news."""


class _Cut(Exception):
    """Both sides are left as if the network went away."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and a body are two pieces, and the second would wait for the first
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Tests say themselves what they saw."""

    def _handle(self) -> None:
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        fault = self.server.proxy.fault_of(request)
        try:
            time.sleep(fault.wait)
            if fault.before is not None:
                fault.before(request)
            if fault.answer is not None:
                return self._answer(fault.answer)
            self._forward(request, fault)
        except (_Cut, OSError, http.client.HTTPException):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_OPTIONS = _handle  # noqa: N815

    def _answer(self, answer: Answer) -> None:
        for _ in self._body():
            pass
        self.send_response_only(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _body(self) -> Iterator[bytes]:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length", 0))
        while left:
            if not (block := self.rfile.read1(min(left, BLOCK))):
                raise _Cut
            left -= len(block)
            yield block

    def _forward(self, request: Request, fault: Fault) -> None:
        far = http.client.HTTPConnection("127.0.0.1", self.server.proxy.far_end, timeout=120)
        try:
            chunked = "chunked" in request.headers.get("transfer-encoding", "")
            far.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP - ({"transfer-encoding"} if chunked else set()):
                    far.putheader(name, value)
            far.endheaders()
            for block in self._body():
                if fault.cut_request is not None and request.body + len(block) >= fault.cut_request:
                    block = block[: fault.cut_request - request.body]
                    far.send(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
                    request.body += len(block)
                    raise _Cut
                far.send(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
                request.body += len(block)
            if fault.cut_request is not None:
                raise _Cut
            if chunked:
                far.send(b"0\r\n\r\n")
            answer = far.getresponse()
            if fault.after is not None:
                fault.after(request)
            self._hand_back(answer, fault)
        finally:
            far.close()

    def _hand_back(self, answer: http.client.HTTPResponse, fault: Fault) -> None:
        length = answer.getheader("Content-Length")
        body = answer.read() if fault.corrupt is not None else None
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        bare = self.command == "HEAD" or answer.status in (204, 304) or answer.status < 200
        if length is None and not bare:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        gone = 0
        if fault.cut_response == 0:
            raise _Cut
        for block in (fault.corrupt(body),) if fault.corrupt is not None and body else iter(lambda: answer.read1(BLOCK), b""):
            if fault.cut_response is not None and gone + len(block) >= fault.cut_response:
                self.wfile.write(block[: fault.cut_response - gone])
                self.wfile.flush()
                raise _Cut
            self.wfile.write(block)
            self.wfile.flush()
            gone += len(block)
