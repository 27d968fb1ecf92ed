"""`/events`: server-sent events, so that an open page knows when to look again. What has changed is asked for as ever.

All streams share one look at the journal and the live file a second, by their times alone; while nobody listens there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from daemon.page.access.connections import most_connections
from daemon.page.answers import refusal
from daemon.page.context import Context

LOOK_SECONDS = 1.0
REST_SECONDS = 2.0
"""After an event: a busy daemon writes several times a second."""
BEAT_SECONDS = 15.0
"""Between two signs that the stream lives; a proxy ends one that says nothing for long."""
MOST_STREAMS = 32


def most_streams() -> int:
    """How many there may be: of the connections, half are left for what is asked."""
    return min(MOST_STREAMS, most_connections() // 2)


class Feed:
    """Tells the open streams of one server when something was written."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether no further stream may begin."""
        return len(self._streams) >= most_streams()

    async def lines(self) -> AsyncIterator[str]:
        """Yield the text of a stream until the server ends."""
        news = asyncio.Event()
        self._streams.add(news)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        closing = asyncio.ensure_future(self._context.closing.wait())
        waiting = closing
        try:
            yield "retry: 3000\nevent: begin\ndata: {}\n\n"
            while not closing.done():
                waiting = asyncio.ensure_future(news.wait())
                await asyncio.wait((waiting, closing), timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if news.is_set():
                    news.clear()
                    yield "event: changed\ndata: {}\n\n"
                elif not closing.done():
                    yield ": still here\n\n"
        finally:  # a reader that goes ends this within a wait
            waiting.cancel()
            closing.cancel()
            self._streams.discard(news)

    async def _look(self) -> None:
        seen: tuple[int, ...] | None = None
        while self._streams and not self._context.closing.is_set():
            stamp = await self._context.call(self._context.reader.stamp)
            pause = LOOK_SECONDS
            if seen is not None and stamp != seen:
                pause = REST_SECONDS
                self._context.reader.forget()  # else who looks again is shown what was kept of before, and told of nothing more
                for news in self._streams:
                    news.set()
            seen = stamp
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._context.closing.wait(), pause)


async def events(request: Request) -> Response:
    """Return a stream that says when to look again."""
    feed: Feed = request.app.state.feed
    if feed.is_full:
        return refusal(503, f"{most_streams()} pages are open already", "close some of them", headers={"Retry-After": "30"})
    if request.method == "HEAD":
        return Response(media_type="text/event-stream")
    return StreamingResponse(feed.lines(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def routes(context: Context) -> tuple[Feed, list[BaseRoute]]:
    """Return the feed and its route."""
    return Feed(context), [Route("/events", events)]
