"""`/healthz` and `/readyz` for whoever keeps the daemon running, and `/metrics` for a scraper.

The first two need no token and say nothing but a word. `/healthz`: the daemon is there and its main loop writes what it knows; a full disk
or a bad checkpoint is no reason to restart it. `/readyz`: it watches and takes work: it is not stopping, and not unwell.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from daemon.page.context import context_of

OPEN = ("/healthz", "/readyz")
"""Paths that need no token."""


async def healthz(request: Request) -> Response:
    """Return 200 while the daemon makes its rounds."""
    context = context_of(request)
    daemon = await context.health.call(context.reader.daemon)
    return _word(daemon.lives)


async def readyz(request: Request) -> Response:
    """Return 200 while the daemon takes work."""
    context = context_of(request)
    daemon = await context.health.call(context.reader.daemon)
    return _word(daemon.lives and daemon.is_ready)


async def metrics(request: Request) -> Response:
    """Return the figures for a scraper."""
    context = context_of(request)
    body, kind = await context.call(context.exposition, request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": kind, "Cache-Control": "no-store"})


def _word(good: bool) -> Response:
    return PlainTextResponse("ok\n" if good else "unavailable\n", 200 if good else 503, headers={"Cache-Control": "no-store"})


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
