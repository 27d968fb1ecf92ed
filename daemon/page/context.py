"""What every route of the page has: the settings in use, the reader, and threads for what may wait for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from daemon.config.page import PageSettings
from daemon.config.settings import Settings
from daemon.contract.faults.events import Event
from daemon.operating.outward import Exposition, Serving
from daemon.page.access.tokens import Client, Tries
from daemon.page.reader import Reader
from daemon.system.logger import Logger

if TYPE_CHECKING:
    from starlette.requests import Request

log = Logger("page")

P = ParamSpec("P")
T = TypeVar("T")
READING_THREADS = 4
"""Threads that read for requests; a disk that does not answer holds these, and never the daemon's."""
HEALTH_THREADS = 2


class Threads:
    """Calls what may wait, so many at a time, each in a thread that nobody waits for when the daemon ends; those of a pool would be."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)

    async def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What a function gives, or raises, in the language of this request. A place is free again when the function has ended, even where
        its caller waits no more."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        run = contextvars.copy_context().run

        def end(take: Callable[[Any], None], value: object) -> None:
            self._free.release()
            if not answer.done():
                take(value)

        def work() -> None:
            take: Callable[[Any], None] = answer.set_result
            value: object
            try:
                value = run(function, *arguments, **named)
            except BaseException as error:
                take, value = answer.set_exception, error
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(end, take, value)

        try:
            threading.Thread(target=work, name="page-read", daemon=True).start()
        except BaseException:  # no thread can be had now
            self._free.release()
            raise
        return await answer


class Context:
    """Shared by all routes of one server."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.settings: Settings = serving.settings
        """The configuration in use; replaced as a whole by a reload."""
        self.exposition: Exposition = serving.exposition
        self.reader = Reader(lambda: self.settings, serving.config)
        self.tries = Tries()
        self.closing = asyncio.Event()
        """Set when the server ends: streams end then."""
        self._reading = Threads(READING_THREADS)
        self.health = Threads(HEALTH_THREADS)
        """Of their own: what holds up the others is no reason to restart the daemon."""

    @property
    def page(self) -> PageSettings:
        """The settings of the page."""
        return self.settings.page

    def note_wrong(self, client: Client) -> None:
        """Count a wrong token, and say so once a minute for each client."""
        if self.tries.wrong(client):
            log.warning("a wrong token was given to the page", event_id=Event.PAGE_REFUSED, client=client.address)

    async def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call what may wait for a disk, outside of the server's loop, in the language of this request."""
        return await self._reading.call(function, *arguments, **named)


def context_of(request: Request) -> Context:
    """The context of the server that a request came to."""
    known: Any = request.app.state.context
    assert isinstance(known, Context)
    return known
