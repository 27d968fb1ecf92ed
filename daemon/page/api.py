"""The routes of `/api/v1`: read only, the JSON of docs/answers.md."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from daemon.page.answers import answer
from daemon.page.context import context_of

PREFIX = "/api/v1"


async def status(request: Request) -> Response:
    """Return what `ckptd status --json` prints."""
    context = context_of(request)
    return answer(request, await context.call(context.reader.status))


def routes() -> list[BaseRoute]:
    """Return the routes of the API."""
    return [Route(f"{PREFIX}/status", status)]
