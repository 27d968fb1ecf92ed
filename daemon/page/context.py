"""What every route of the page has: the settings in use, the reader, and threads for what may wait for a disk."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from daemon.config.page import PageSettings
from daemon.config.settings import Settings
from daemon.contract.faults.events import Event
from daemon.operating.outward import Exposition, Serving
from daemon.page.reader import Reader
from daemon.page.tokens import Tries
from daemon.system.logger import Logger

if TYPE_CHECKING:
    from starlette.requests import Request

log = Logger("page")

P = ParamSpec("P")
T = TypeVar("T")
READING_THREADS = 3
"""Threads that read for requests; a disk that does not answer holds these, and never the daemon's."""


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
        self._threads = ThreadPoolExecutor(READING_THREADS, "page-read")

    @property
    def page(self) -> PageSettings:
        """The settings of the page."""
        return self.settings.page

    def note_wrong(self, client: str) -> None:
        """Count a wrong token, and say so once a minute for each client."""
        if self.tries.wrong(client):
            log.warning("a wrong token was given to the page", event_id=Event.PAGE_REFUSED, client=client)

    async def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call what may wait for a disk, outside of the server's loop, in the language of this request."""
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: run(function, *arguments, **named))

    def close(self) -> None:
        """Begin nothing more; what a disk keeps waiting is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def context_of(request: Request) -> Context:
    """The context of the server that a request came to."""
    known: Any = request.app.state.context
    assert isinstance(known, Context)
    return known
