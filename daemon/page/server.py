"""The server of the page: uvicorn in the thread that calls `Server.run`. Imported only where the page is on, as all that it needs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
import time
from typing import Any

import uvicorn

from daemon.config.settings import Settings
from daemon.contract.faults.events import Event
from daemon.operating.outward import Serving
from daemon.page.access.connections import ACCEPTED, BACKLOG, HEAD_BYTES, Connection
from daemon.page.app import make_app
from daemon.page.context import Context
from daemon.page.peers import LastAnswer, Peers
from daemon.system.logger import Logger

log = Logger("page")

KEEP_ALIVE_SECONDS = 20
GRACE_SECONDS = 1
"""For answers that are being given when the server ends."""
DATE_SECONDS = 1.0
SAY_SECONDS = 60.0
"""Between two lines in the log that say the same."""
_NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Uvicorn(uvicorn.Server):
    """Waits for its end instead of looking for it ten times a second."""

    def __init__(self, config: uvicorn.Config, end: asyncio.Event) -> None:
        super().__init__(config)
        self._end = end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; what asyncio takes for the kernel's queue is also how many connections it accepts at a time."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    async def main_loop(self) -> None:
        """Serve until the end, with the right time in the header Date."""
        while not self._end.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), DATE_SECONDS)


class Unaccepted:
    """What the loop says of errors that nobody awaits: that no connection could be accepted, once a minute; all else as ever."""

    def __init__(self) -> None:
        self._said: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Say it."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _NOTHING_LEFT):
            loop.default_exception_handler(context)
        elif self._said is None or time.monotonic() - self._said >= SAY_SECONDS:
            self._said = time.monotonic()
            log.error("the page could accept no connection, and goes on trying", event_id=Event.PAGE_FAILED, why=error.strerror)


class Server:
    """One server on a socket that is bound already; ends once."""

    def __init__(self, serving: Serving, listener: socket.socket, answers: dict[str, LastAnswer] | None = None) -> None:
        """`answers`: what other daemons said, which the next server is given too."""
        self._answers = {} if answers is None else answers
        self._serving, self._listener = serving, listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: Context | None = None
        self._closed = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Serve until `close` is called."""
        for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):  # what anybody can make them say does not belong into the log
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        asyncio.run(self._run())

    def close(self) -> None:
        """End it, from any thread; open streams end at once."""
        with self._lock:
            self._closed = True
            if self._loop is not None and self._context is not None:
                with contextlib.suppress(RuntimeError):  # it has ended already
                    self._loop.call_soon_threadsafe(self._context.closing.set)

    def adopt(self, settings: Settings) -> None:
        """Answer by other settings from now on; those of the page itself are the same."""
        if self._context is not None:
            self._context.settings = settings

    async def _run(self) -> None:
        context = Context(self._serving)
        asyncio.get_running_loop().set_exception_handler(Unaccepted())
        with self._lock:
            self._loop, self._context = asyncio.get_running_loop(), context
            if self._closed:
                return
        peers = Peers(context, self._answers)
        config = uvicorn.Config(
            make_app(context, peers), http=Connection, loop="asyncio", ws="none", lifespan="off", log_config=None, access_log=False,
            proxy_headers=False, server_header=False, backlog=ACCEPTED, timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS, h11_max_incomplete_event_size=HEAD_BYTES,
        )  # fmt: skip
        asking, server = asyncio.create_task(peers.run()), _Uvicorn(config, context.closing)
        try:
            await server.serve(sockets=[self._listener])
        except Exception:
            context.closing.set()  # else a client waits on a connection that nobody serves
            if server.started:
                await server.shutdown(sockets=[self._listener])
            raise
        finally:
            asking.cancel()
