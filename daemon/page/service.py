"""The page as the daemon has it: one thread, begun again when it dies, and no part of what keeps the daemon running.

Light: the server and its libraries are imported by the thread, where the page is on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from daemon.config.page import Address, PageSettings
from daemon.config.settings import Settings
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.operating.monitoring.live import PageState
from daemon.operating.outward import Serving
from daemon.system.logger import Logger
from daemon.system.processes.threads import Death, Supervised

if TYPE_CHECKING:
    from daemon.page.peers import LastAnswer
    from daemon.page.server import Server

log = Logger("page")

AGAIN_SECONDS = 10.0
"""Between two tries to listen on an address that another program has."""
REST_SECONDS = 300.0
"""After which a thread that died too often is begun again."""
STOP_SECONDS = 3.0


class PageService:
    """The page's thread."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._thread: Supervised | None = None
        self._end = threading.Event()
        self._server: Server | None = None
        self._at: str | None = None
        self._problem: str | None = None
        self._resting: float | None = None
        self._answers: dict[str, LastAnswer] = {}
        """What other daemons said, which outlives a server."""

    def adopt(self, settings: Settings) -> None:
        """Go on by another configuration, or begin: it listens anew only where something of the page has changed."""
        before, self._serving = self._serving, replace(self._serving, settings=settings)
        if self._thread is not None and _same(before.settings.page, settings.page):
            if self._server is not None:
                self._server.adopt(settings)
            return
        self.stop()
        if settings.page.listen:
            self._begin()

    def look(self) -> None:
        """Begin again where the thread is gone; one that dies again and again has a rest before."""
        if self._thread is None:
            return
        self._thread.revive()
        if self._thread.given_up is None:
            return
        if self._resting is None:
            self._resting = time.monotonic()
            log.error(self._lost(), event_id=Event.PAGE_FAILED, code=FaultCode.PAGE_UNAVAILABLE)
        elif time.monotonic() - self._resting > REST_SECONDS:
            self._begin()

    def stop(self) -> None:
        """End, also where connections are open."""
        self._end.set()
        if self._server is not None:
            self._server.close()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        self._thread = None

    def state(self) -> PageState | None:
        """How it is; None while it is off."""
        listen = self._serving.settings.page.listen
        return PageState(self._at or listen, self._lost() or self._problem) if listen else None

    def _lost(self) -> str | None:
        """The sentence that the thread died too often; None where it did not."""
        if self._thread is None or (death := self._thread.given_up) is None:
            return None
        remedy = f"look for its traceback in the log, and report it; it begins anew within {REST_SECONDS / 60:.0f} min, and exports go on"
        return Retryable(
            FaultCode.PAGE_UNAVAILABLE, "keep up the page", f"its thread died again and again: {death.why}", remedy
        ).fault.sentence()

    def death(self) -> Death | None:
        """The last time that its thread died of an error."""
        return self._thread.deaths[-1] if self._thread is not None and self._thread.deaths else None

    def _begin(self) -> None:
        self._end, self._resting, self._problem = threading.Event(), None, None
        end = self._end
        self._thread = Supervised("page", lambda: self._serve(end), log, stop=end.set)
        self._thread.start()

    def _serve(self, end: threading.Event) -> None:
        """Listen and serve until the end; an address that is taken is tried again."""
        while not end.is_set():
            address = self._serving.settings.page.address
            assert address is not None
            try:
                listener = _listener(address)
            except OSError as error:
                self._say_unusable(error)
                end.wait(AGAIN_SECONDS)
                continue
            with contextlib.closing(listener):
                self._at, self._problem = _shown(address, listener), None
                self._answer(listener, end)

    def _answer(self, listener: socket.socket, end: threading.Event) -> None:
        from daemon.page.server import Server

        server = self._server = Server(self._serving, listener, self._answers)
        if end.is_set():
            return
        log.info("the page answers", event_id=Event.PAGE_SERVES, address=self._at)
        try:
            server.run()
        finally:
            self._server = self._at = None

    def _say_unusable(self, error: OSError) -> None:
        listen = self._serving.settings.page.listen
        causes = {
            errno.EADDRINUSE: "another program listens there", errno.EACCES: "this user may not listen there",
            errno.EADDRNOTAVAIL: "this machine has no such address",
            errno.ENOTSOCK: "a file that is no socket is there", errno.EAFNOSUPPORT: "the service may use no network",
        }  # fmt: skip
        cause = causes.get(error.errno or 0, error.strerror or str(error))
        remedy = f"change page.listen, or what keeps it from there; it is tried again every {AGAIN_SECONDS:.0f} s, and exports go on"
        fault = Retryable(FaultCode.PAGE_UNAVAILABLE, f"listen on {listen} for the page", cause, remedy).fault
        if fault.sentence() != self._problem:
            log.error(fault.sentence(), event_id=Event.PAGE_FAILED, code=fault.code)
        self._problem = fault.sentence()


def _same(before: PageSettings, after: PageSettings) -> bool:
    return before == after and before.has_tokens_of(after)


def _listener(address: Address) -> socket.socket:
    """A socket that is bound. Raises OSError."""
    if address.path:
        _make_way(address.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        # With the protocol: without it asyncio leaves Nagle's algorithm on, and an answer waits 40 ms for an acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if address.path:
            listener.bind(address.path)
            os.chmod(address.path, 0o660)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
    except BaseException:
        listener.close()
        raise
    return listener


def _make_way(path: str) -> None:
    """Remove the socket that an earlier daemon left there, and nothing else. Raises OSError where another file has the name."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK), path)
        if not _answers(path):
            os.unlink(path)


def _answers(path: str) -> bool:
    """Whether a program listens on this socket, be it one that is too busy to take a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.setblocking(False)  # where the queue is full, the answer comes at once
        try:
            trial.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True
    return True


def _shown(address: Address, listener: socket.socket) -> str:
    if address.path:
        return f"unix:{address.path}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
