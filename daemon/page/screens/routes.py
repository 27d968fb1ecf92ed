"""The routes of the pages for people: what they show comes from `Context.reader`, by `Context.call`.

`answer_in` (`daemon.contract.language.catalog`) gives a request its language, which `Context.call` takes along.
"""

from __future__ import annotations

import html

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from daemon.page.context import context_of


async def overview(request: Request) -> Response:
    """Return the first page."""
    context = context_of(request)
    value = await context.call(context.reader.status)
    counts = "".join(f"<li>{html.escape(state)}: {count}</li>" for state, count in value.counts.items())
    return HTMLResponse(f"<!doctype html><html lang=en><title>ckptd</title><h1>ckptd {html.escape(value.version)}</h1><ul>{counts}</ul>")


def routes() -> list[BaseRoute]:
    """Return the routes, without those of the API."""
    return [Route("/", overview)]
